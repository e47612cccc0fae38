// PyTorch's own convolutions on CUDA by kernels of ours, while routing is on.
#pragma once

namespace customconv::torch_layer {

// Overrides aten::convolution, aten::_convolution and aten::convolution_backward on CUDA, for the
// rest of the process: to take an override back while other threads convolve is not safe. Calls are
// PyTorch's until routing is switched on.
void install_routing();
// The same on the CPU, for tests. Each call falls back to PyTorch; or, if `opaque`, it is computed
// below everything that records a program, as kernels on CUDA are.
void install_routing_on_cpu(bool opaque);

// Routing is on, in all threads, while more were begun than ended.
void begin_routing();
// False, and nothing changes, where none is left to end.
bool end_routing();
bool is_routing();

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
