// The operators on CUDA.
#include <torch/library.h>

#include "torch/aten.h"
#include "torch/batch_invariance.h"
#include "torch/core.h"
#include "torch/cuda/convolve.h"
#include "torch/fused.h"
#include "torch/operator.h"
#include "torch/ops.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

namespace {

using at::Tensor;

template <int kDims>
Tensor conv_cuda(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                 at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                 int64_t groups, std::string_view algorithm) {
  auto output = convolve(input, weight, bias, {kDims, stride, padding, dilation, groups},
                         algorithm_named(algorithm));
  if (output) return std::move(*output);
  check_runs_on(algorithm, input);
  fall_back(output.why());
  const AsTuned as_tuned(output.why());
  return aten_conv<kDims>(input, weight, bias, c10::fromIntArrayRefSlow(stride),
                          c10::fromIntArrayRefSlow(padding), c10::fromIntArrayRefSlow(dilation),
                          groups);
}

// By one kernel where the planner says so, else by a convolution and PyTorch's operators.
template <typename Op>
Tensor fused_cuda(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                  const Geometry& geometry, const FusedOptions& options, const Op& op) {
  auto output =
      convolve_fused(input, weight, bias, geometry, options, algorithm_named(op.algorithm));
  if (output) return std::move(*output);
  return compose_fused(op, input, weight, bias, options, /*in_place=*/true);
}

template <int kDims>
Tensor conv_fused_cuda(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                       int64_t groups, const std::optional<Tensor>& scale,
                       const std::optional<Tensor>& residual, std::string_view activation,
                       bool residual_last, double negative_slope, std::string_view algorithm) {
  return fused_cuda(input, weight, bias, {kDims, stride, padding, dilation, groups},
                    {scale, residual, activation, residual_last, negative_slope},
                    Conv<kDims>(c10::fromIntArrayRefSlow(stride), c10::fromIntArrayRefSlow(padding),
                                c10::fromIntArrayRefSlow(dilation), groups, algorithm));
}

template <int kDims>
Tensor conv_transpose_fused_cuda(const Tensor& input, const Tensor& weight,
                                 const std::optional<Tensor>& bias, at::IntArrayRef stride,
                                 at::IntArrayRef padding, at::IntArrayRef output_padding,
                                 int64_t groups, at::IntArrayRef dilation,
                                 const std::optional<Tensor>& scale,
                                 const std::optional<Tensor>& residual, std::string_view activation,
                                 bool residual_last, double negative_slope,
                                 std::string_view algorithm) {
  return fused_cuda(
      input, weight, bias, {kDims, stride, padding, dilation, groups, true, output_padding},
      {scale, residual, activation, residual_last, negative_slope},
      ConvTranspose<kDims>(c10::fromIntArrayRefSlow(stride), c10::fromIntArrayRefSlow(padding),
                           c10::fromIntArrayRefSlow(output_padding), groups,
                           c10::fromIntArrayRefSlow(dilation), algorithm));
}

template <int kDims>
Tensor conv_transpose_cuda(const Tensor& input, const Tensor& weight,
                           const std::optional<Tensor>& bias, at::IntArrayRef stride,
                           at::IntArrayRef padding, at::IntArrayRef output_padding, int64_t groups,
                           at::IntArrayRef dilation, std::string_view algorithm) {
  const Geometry geometry{kDims, stride, padding, dilation, groups, true, output_padding};
  auto output = convolve(input, weight, bias, geometry, algorithm_named(algorithm));
  if (output) return std::move(*output);
  check_runs_on(algorithm, input);
  fall_back(output.why());
  const AsTuned as_tuned(output.why());
  return aten_conv_transpose<kDims>(
      input, weight, bias, c10::fromIntArrayRefSlow(stride), c10::fromIntArrayRefSlow(padding),
      c10::fromIntArrayRefSlow(output_padding), groups, c10::fromIntArrayRefSlow(dilation));
}

// A forced algorithm is refused where its arguments are not ours; where merely no family computes
// one of the gradients, PyTorch does.
void check_backward(Fallback why, std::string_view algorithm, const Tensor& input,
                    std::array<bool, 3> output_mask) {
  if (why != Fallback::kNoFamily) check_runs_on(algorithm, input);
  output_mask[0] ? fall_back(why) : count(why);
}

template <int kDims>
Gradients conv_backward_cuda(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                             at::IntArrayRef stride, at::IntArrayRef padding,
                             at::IntArrayRef dilation, int64_t groups,
                             std::array<bool, 3> output_mask, std::string_view algorithm) {
  auto gradients =
      convolve_backward(grad_output, input, weight, {kDims, stride, padding, dilation, groups},
                        output_mask, algorithm_named(algorithm));
  if (gradients) return std::move(*gradients);
  check_backward(gradients.why(), algorithm, input, output_mask);
  return aten_conv_backward<kDims>(grad_output, input, weight, c10::fromIntArrayRefSlow(stride),
                                   c10::fromIntArrayRefSlow(padding),
                                   c10::fromIntArrayRefSlow(dilation), groups, output_mask);
}

template <int kDims>
Gradients conv_transpose_backward_cuda(const Tensor& grad_output, const Tensor& input,
                                       const Tensor& weight, at::IntArrayRef stride,
                                       at::IntArrayRef padding, at::IntArrayRef output_padding,
                                       int64_t groups, at::IntArrayRef dilation,
                                       std::array<bool, 3> output_mask,
                                       std::string_view algorithm) {
  const Geometry geometry{kDims, stride, padding, dilation, groups, true, output_padding};
  auto gradients = convolve_backward(grad_output, input, weight, geometry, output_mask,
                                     algorithm_named(algorithm));
  if (gradients) return std::move(*gradients);
  check_backward(gradients.why(), algorithm, input, output_mask);
  return aten_conv_transpose_backward<kDims>(
      grad_output, input, weight, c10::fromIntArrayRefSlow(stride),
      c10::fromIntArrayRefSlow(padding), c10::fromIntArrayRefSlow(output_padding), groups,
      c10::fromIntArrayRefSlow(dilation), output_mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(customconv, CUDA, m) {
  m.impl("conv2d", conv_cuda<2>);
  m.impl("conv2d_fused", conv_fused_cuda<2>);
  m.impl("conv2d_backward", conv_backward_cuda<2>);
  m.impl("conv_transpose2d", conv_transpose_cuda<2>);
  m.impl("conv_transpose2d_fused", conv_transpose_fused_cuda<2>);
  m.impl("conv_transpose2d_backward", conv_transpose_backward_cuda<2>);
  m.impl("conv3d", conv_cuda<3>);
  m.impl("conv3d_fused", conv_fused_cuda<3>);
  m.impl("conv3d_backward", conv_backward_cuda<3>);
  m.impl("conv_transpose3d", conv_transpose_cuda<3>);
  m.impl("conv_transpose3d_fused", conv_transpose_fused_cuda<3>);
  m.impl("conv_transpose3d_backward", conv_transpose_backward_cuda<3>);
}

}  // namespace customconv::torch_layer
