#include "torch/aten.h"

#include <ATen/Context.h>

#include <mutex>

#include "torch/problem.h"
#include "torch/routing.h"

namespace customconv::torch_layer {

namespace {

std::mutex deterministic_mutex;
int64_t deterministic_count = 0;
bool deterministic_before = false;  // the user's, meaningful while the count is positive

Gradients convolution_backward(const at::Tensor& grad_output, const at::Tensor& input,
                               const at::Tensor& weight, c10::SymIntArrayRef stride,
                               c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                               bool transposed, c10::SymIntArrayRef output_padding,
                               const c10::SymInt& groups, std::array<bool, 3> output_mask) {
  const int64_t dims = weight.dim();
  if (input.dim() == dims - 1 && grad_output.dim() == dims - 1) {
    Gradients gradients =
        convolution_backward(grad_output.unsqueeze(0), input.unsqueeze(0), weight, stride, padding,
                             dilation, transposed, output_padding, groups, output_mask);
    at::Tensor& grad_input = std::get<0>(gradients);
    if (grad_input.defined()) grad_input = grad_input.squeeze(0);
    return gradients;
  }
  const BypassRouting bypass;
  const std::array<c10::SymInt, 1> bias_sizes = {transposed ? weight.sym_size(1) * groups
                                                            : weight.sym_size(0)};
  Gradients gradients = at::convolution_backward_symint(
      grad_output, input, weight, c10::SymIntArrayRef(bias_sizes), stride, padding, dilation,
      transposed, output_padding, groups, output_mask);
  // Some backends compute more than they were asked for.
  if (!output_mask[0]) std::get<0>(gradients) = at::Tensor();
  if (!output_mask[1]) std::get<1>(gradients) = at::Tensor();
  if (!output_mask[2]) std::get<2>(gradients) = at::Tensor();
  // Volumes' gradients stay as PyTorch's own function lays them out.
  if (input.dim() == 4 && dims == 4) {
    const GradientFormats formats =
        gradient_formats(grad_output, input, weight, transposed, output_mask);
    at::Tensor& grad_input = std::get<0>(gradients);
    at::Tensor& grad_weight = std::get<1>(gradients);
    if (grad_input.defined()) grad_input = grad_input.contiguous(formats.input);
    if (grad_weight.defined()) grad_weight = grad_weight.contiguous(formats.weight);
  }
  return gradients;
}

}  // namespace

DeterministicCudnn::DeterministicCudnn() {
  const std::lock_guard<std::mutex> lock(deterministic_mutex);
  if (deterministic_count++ > 0) return;
  deterministic_before = at::globalContext().deterministicCuDNN();
  at::globalContext().setDeterministicCuDNN(true);
}

DeterministicCudnn::~DeterministicCudnn() {
  const std::lock_guard<std::mutex> lock(deterministic_mutex);
  if (--deterministic_count > 0) return;
  at::globalContext().setDeterministicCuDNN(deterministic_before);
}

namespace {

template <int kDims>
at::Tensor aten_pass_of(const ConvProblem& p, const std::array<c10::SymInt, kDims>& stride,
                        const std::array<c10::SymInt, kDims>& padding,
                        const std::array<c10::SymInt, kDims>& dilation, const at::Tensor& x,
                        const at::Tensor& w, const at::Tensor& y,
                        const std::optional<at::Tensor>& bias) {
  if (p.pass == Pass::kFprop) {
    return aten_conv<kDims>(x, w, bias, stride, padding, dilation, p.groups);
  }
  const bool of_x = p.pass == Pass::kDgrad;
  const Gradients gradients =
      aten_conv_backward<kDims>(y, x, w, stride, padding, dilation, p.groups, {of_x, !of_x, false});
  if (!of_x) return std::get<1>(gradients);
  const at::Tensor& result = std::get<0>(gradients);
  return bias && bias->defined() ? result.add_(per_channel(*bias, kDims)) : result;
}

}  // namespace

at::Tensor aten_pass(const ConvProblem& p, const at::Tensor& x, const at::Tensor& w,
                     const at::Tensor& y, const std::optional<at::Tensor>& bias) {
  const DeterministicCudnn deterministic;
  if (p.is_deep()) {
    return aten_pass_of<3>(p, {p.stride_d, p.stride_h, p.stride_w}, {p.pad_d, p.pad_h, p.pad_w},
                           {p.dilation_d, p.dilation_h, p.dilation_w}, x, w, y, bias);
  }
  return aten_pass_of<2>(p, {p.stride_h, p.stride_w}, {p.pad_h, p.pad_w},
                         {p.dilation_h, p.dilation_w}, x, w, y, bias);
}

template <int kDims>
at::Tensor aten_conv(const at::Tensor& input, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                     c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                     const c10::SymInt& groups) {
  const BypassRouting bypass;
  if constexpr (kDims == 2) {
    return at::conv2d_symint(input, weight, bias, stride, padding, dilation, groups);
  } else {
    return at::conv3d_symint(input, weight, bias, stride, padding, dilation, groups);
  }
}

template <int kDims>
Gradients aten_conv_backward(const at::Tensor& grad_output, const at::Tensor& input,
                             const at::Tensor& weight, c10::SymIntArrayRef stride,
                             c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                             const c10::SymInt& groups, std::array<bool, 3> output_mask) {
  const std::array<c10::SymInt, kDims> output_padding{};
  return convolution_backward(grad_output, input, weight, stride, padding, dilation,
                              /*transposed=*/false, output_padding, groups, output_mask);
}

template <int kDims>
at::Tensor aten_conv_transpose(const at::Tensor& input, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                               c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                               const c10::SymInt& groups, c10::SymIntArrayRef dilation) {
  const BypassRouting bypass;
  if constexpr (kDims == 2) {
    return at::conv_transpose2d_symint(input, weight, bias, stride, padding, output_padding, groups,
                                       dilation);
  } else {
    return at::conv_transpose3d_symint(input, weight, bias, stride, padding, output_padding, groups,
                                       dilation);
  }
}

template <int kDims>
Gradients aten_conv_transpose_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                       const at::Tensor& weight, c10::SymIntArrayRef stride,
                                       c10::SymIntArrayRef padding,
                                       c10::SymIntArrayRef output_padding,
                                       const c10::SymInt& groups, c10::SymIntArrayRef dilation,
                                       std::array<bool, 3> output_mask) {
  return convolution_backward(grad_output, input, weight, stride, padding, dilation,
                              /*transposed=*/true, output_padding, groups, output_mask);
}

CUSTOMCONV_FOR_DIMS(aten_conv)
CUSTOMCONV_FOR_DIMS(aten_conv_backward)
CUSTOMCONV_FOR_DIMS(aten_conv_transpose)
CUSTOMCONV_FOR_DIMS(aten_conv_transpose_backward)

}  // namespace customconv::torch_layer
