// Kernels that begin before the one in front of them has ended (programmatic dependent launch);
// before compute capability 9.0 they never do.
#pragma once

namespace customconv::ptx {

// The next kernel may begin, where there is room and it was launched so.
__device__ inline void launch_dependent_grids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the kernel in front has ended and its writes are seen.
__device__ inline void wait_on_dependent_grids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// blockIdx.x and threadIdx.x, read at this place: what follows from them takes no registers before.
__device__ inline int block_index_anew() {
  int index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}
__device__ inline int thread_index_anew() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

}  // namespace customconv::ptx
