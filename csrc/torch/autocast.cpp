// Autocast: convolutions are among the operators that it runs in its lower precision.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "torch/operator.h"

namespace customconv::torch_layer {

namespace {

template <int kDims, c10::DeviceType device>
at::Tensor conv_autocast(const at::Tensor& input, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                         c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                         c10::SymInt groups, std::string_view algorithm) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::DispatchKeySet(at::autocast::get_autocast_dispatch_key_from_device_type(device)));
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
  return conv<kDims>(at::autocast::cached_cast(dtype, input, device),
                     at::autocast::cached_cast(dtype, weight, device),
                     at::autocast::cached_cast(dtype, bias, device), stride, padding, dilation,
                     groups, algorithm);
}

template <int kDims, c10::DeviceType device>
at::Tensor conv_transpose_autocast(const at::Tensor& input, const at::Tensor& weight,
                                   const std::optional<at::Tensor>& bias,
                                   c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                                   c10::SymIntArrayRef output_padding, c10::SymInt groups,
                                   c10::SymIntArrayRef dilation, std::string_view algorithm) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::DispatchKeySet(at::autocast::get_autocast_dispatch_key_from_device_type(device)));
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
  const auto cast = [&](const auto& t) { return at::autocast::cached_cast(dtype, t, device); };
  return conv_transpose<kDims>(cast(input), cast(weight), cast(bias), stride, padding,
                               output_padding, groups, dilation, algorithm);
}

template <c10::DeviceType device, typename Op>
at::Tensor fused_autocast(const at::Tensor& input, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, const FusedOptions& options,
                          const Op& op) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::DispatchKeySet(at::autocast::get_autocast_dispatch_key_from_device_type(device)));
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
  const auto cast = [&](const auto& t) { return at::autocast::cached_cast(dtype, t, device); };
  // Kernels read bias and scale in float32 too: no need to round them.
  const auto vector = [&](const std::optional<at::Tensor>& t) {
    return t && t->defined() && t->scalar_type() == at::kFloat ? t : cast(t);
  };
  FusedOptions cast_options = options;
  cast_options.scale = vector(options.scale);
  cast_options.residual = cast(options.residual);
  return op.fused(cast(input), cast(weight), vector(bias), cast_options);
}

template <int kDims, c10::DeviceType device>
at::Tensor conv_fused_autocast(const at::Tensor& input, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                               c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                               c10::SymInt groups, const std::optional<at::Tensor>& scale,
                               const std::optional<at::Tensor>& residual,
                               std::string_view activation, bool residual_last,
                               double negative_slope, std::string_view algorithm) {
  return fused_autocast<device>(input, weight, bias,
                                {scale, residual, activation, residual_last, negative_slope},
                                Conv<kDims>(stride, padding, dilation, groups, algorithm));
}

template <int kDims, c10::DeviceType device>
at::Tensor conv_transpose_fused_autocast(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, c10::SymIntArrayRef dilation, const std::optional<at::Tensor>& scale,
    const std::optional<at::Tensor>& residual, std::string_view activation, bool residual_last,
    double negative_slope, std::string_view algorithm) {
  return fused_autocast<device>(
      input, weight, bias, {scale, residual, activation, residual_last, negative_slope},
      ConvTranspose<kDims>(stride, padding, output_padding, groups, dilation, algorithm));
}

// Those of a device.
template <c10::DeviceType device>
void implement(torch::Library& m) {
  m.impl("conv2d", conv_autocast<2, device>);
  m.impl("conv_transpose2d", conv_transpose_autocast<2, device>);
  m.impl("conv2d_fused", conv_fused_autocast<2, device>);
  m.impl("conv_transpose2d_fused", conv_transpose_fused_autocast<2, device>);
  m.impl("conv3d", conv_autocast<3, device>);
  m.impl("conv_transpose3d", conv_transpose_autocast<3, device>);
  m.impl("conv3d_fused", conv_fused_autocast<3, device>);
  m.impl("conv_transpose3d_fused", conv_transpose_fused_autocast<3, device>);
}

}  // namespace

TORCH_LIBRARY_IMPL(customconv, AutocastCUDA, m) { implement<at::kCUDA>(m); }
TORCH_LIBRARY_IMPL(customconv, AutocastCPU, m) { implement<at::kCPU>(m); }

}  // namespace customconv::torch_layer
