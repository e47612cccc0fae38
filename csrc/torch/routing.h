// PyTorch's own convolutions on CUDA by kernels of ours, while routing is on.
//
// aten::convolution, aten::_convolution and aten::convolution_backward are overridden on CUDA when
// this library is loaded. Calls are PyTorch's until routing is switched on (core/state.h).
#pragma once

namespace customconv::torch_layer {

// Overrides them on the CPU too, for tests. Each call falls back to PyTorch; or, if `opaque`, it is
// computed below everything that records a program, as kernels on CUDA are.
void install_routing_on_cpu(bool opaque);

// While one lives, calls of this thread are PyTorch's.
class BypassRouting {
 public:
  BypassRouting();
  ~BypassRouting();
  BypassRouting(const BypassRouting&) = delete;
  BypassRouting& operator=(const BypassRouting&) = delete;

 private:
  bool before_;
};

}  // namespace customconv::torch_layer
