// PyTorch's own convolution, for whatever is not ours to compute and for raising its errors.
#pragma once

#include "torch/ops.h"

namespace customconv::torch_layer {

at::Tensor aten_conv2d(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                       c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       const c10::SymInt& groups);

// Takes unbatched input too. Gradients come in the layout that ours have.
Gradients aten_conv2d_backward(const at::Tensor& grad_output, const at::Tensor& input,
                               const at::Tensor& weight, c10::SymIntArrayRef stride,
                               c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                               const c10::SymInt& groups, std::array<bool, 3> output_mask);

at::Tensor aten_conv_transpose2d(const at::Tensor& input, const at::Tensor& weight,
                                 const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                                 c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                                 const c10::SymInt& groups, c10::SymIntArrayRef dilation);

Gradients aten_conv_transpose2d_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                         const at::Tensor& weight, c10::SymIntArrayRef stride,
                                         c10::SymIntArrayRef padding,
                                         c10::SymIntArrayRef output_padding,
                                         const c10::SymInt& groups, c10::SymIntArrayRef dilation,
                                         std::array<bool, 3> output_mask);

}  // namespace customconv::torch_layer
