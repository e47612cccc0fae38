"""Programs that measure facts about the GPU on which kernels are designed."""
