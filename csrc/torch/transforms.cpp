// What happens to a call above autograd: autocast, and vmap.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "torch/aten.h"
#include "torch/ops.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

namespace {

// conv2d is one of the operators that autocast runs in its lower precision.
template <c10::DeviceType device>
at::Tensor conv2d_autocast(const at::Tensor& input, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                           c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                           c10::SymInt groups, std::string_view algorithm) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::DispatchKeySet(at::autocast::get_autocast_dispatch_key_from_device_type(device)));
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
  return conv2d(at::autocast::cached_cast(dtype, input, device),
                at::autocast::cached_cast(dtype, weight, device),
                at::autocast::cached_cast(dtype, bias, device), stride, padding, dilation, groups,
                algorithm);
}

// ATen has the batching rules.
at::Tensor conv2d_vmap(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                       c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       c10::SymInt groups, std::string_view algorithm) {
  check_runs_on(algorithm, input);
  return aten_conv2d(input, weight, bias, stride, padding, dilation, groups);
}

Gradients conv2d_backward_vmap(const at::Tensor& grad_output, const at::Tensor& input,
                               const at::Tensor& weight, c10::SymIntArrayRef stride,
                               c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                               c10::SymInt groups, std::array<bool, 3> output_mask,
                               std::string_view algorithm) {
  check_runs_on(algorithm, input);
  return aten_conv2d_backward(grad_output, input, weight, stride, padding, dilation, groups,
                              output_mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(customconv, AutocastCUDA, m) { m.impl("conv2d", conv2d_autocast<at::kCUDA>); }

TORCH_LIBRARY_IMPL(customconv, AutocastCPU, m) { m.impl("conv2d", conv2d_autocast<at::kCPU>); }

TORCH_LIBRARY_IMPL(customconv, FuncTorchBatched, m) {
  m.impl("conv2d", conv2d_vmap);
  m.impl("conv2d_backward", conv2d_backward_vmap);
}

}  // namespace customconv::torch_layer
