// The two convolutions as types, for code that is the same for both.
#pragma once

#include "torch/aten.h"
#include "torch/ops.h"

namespace customconv::torch_layer {

// An operator with all of its arguments but the tensors. Lists are the caller's until a forward
// pass has found them well formed.
struct Operator {
  c10::SymIntArrayRef stride, padding, output_padding, dilation;
  c10::SymInt groups;
  std::string_view algorithm;

  Operator(c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
           c10::SymIntArrayRef output_padding, c10::SymIntArrayRef dilation, c10::SymInt groups,
           std::string_view algorithm)
      : stride(stride),
        padding(padding),
        output_padding(output_padding),
        dilation(dilation),
        groups(std::move(groups)),
        algorithm(algorithm) {}
};

struct Conv2d : Operator {
  static constexpr const char* kFused = "conv2d_fused";
  // Of nodes.
  static constexpr const char* kName = "CustomconvConv2dBackward";
  static constexpr const char* kFusedName = "CustomconvConv2dFusedBackward";
  static constexpr const char* kBackwardName = "CustomconvConv2dBackwardBackward";

  explicit Conv2d(const Operator& op) : Operator(op) {}
  Conv2d(c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
         const c10::SymInt& groups, std::string_view algorithm)
      : Operator(stride, padding, {}, dilation, groups, algorithm) {}

  at::Tensor forward(const at::Tensor& input, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias) const {
    return conv2d(input, weight, bias, stride, padding, dilation, groups, algorithm);
  }
  at::Tensor fused(const at::Tensor& input, const at::Tensor& weight,
                   const std::optional<at::Tensor>& bias, const FusedOptions& options) const {
    return conv2d_fused(input, weight, bias, stride, padding, dilation, groups, options, algorithm);
  }
  Gradients backward(const at::Tensor& grad_output, const at::Tensor& input,
                     const at::Tensor& weight, std::array<bool, 3> mask) const {
    return conv2d_backward(grad_output, input, weight, stride, padding, dilation, groups, mask,
                           algorithm);
  }
  at::Tensor aten_forward(const at::Tensor& input, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias) const {
    return aten_conv2d(input, weight, bias, stride, padding, dilation, groups);
  }
  Gradients aten_backward(const at::Tensor& grad_output, const at::Tensor& input,
                          const at::Tensor& weight, std::array<bool, 3> mask) const {
    return aten_conv2d_backward(grad_output, input, weight, stride, padding, dilation, groups,
                                mask);
  }
};

struct ConvTranspose2d : Operator {
  static constexpr const char* kFused = "conv_transpose2d_fused";
  static constexpr const char* kName = "CustomconvConvTranspose2dBackward";
  static constexpr const char* kFusedName = "CustomconvConvTranspose2dFusedBackward";
  static constexpr const char* kBackwardName = "CustomconvConvTranspose2dBackwardBackward";

  explicit ConvTranspose2d(const Operator& op) : Operator(op) {}
  ConvTranspose2d(c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                  c10::SymIntArrayRef output_padding, const c10::SymInt& groups,
                  c10::SymIntArrayRef dilation, std::string_view algorithm)
      : Operator(stride, padding, output_padding, dilation, groups, algorithm) {}

  at::Tensor forward(const at::Tensor& input, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias) const {
    return conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups, dilation,
                            algorithm);
  }
  at::Tensor fused(const at::Tensor& input, const at::Tensor& weight,
                   const std::optional<at::Tensor>& bias, const FusedOptions& options) const {
    return conv_transpose2d_fused(input, weight, bias, stride, padding, output_padding, groups,
                                  dilation, options, algorithm);
  }
  Gradients backward(const at::Tensor& grad_output, const at::Tensor& input,
                     const at::Tensor& weight, std::array<bool, 3> mask) const {
    return conv_transpose2d_backward(grad_output, input, weight, stride, padding, output_padding,
                                     groups, dilation, mask, algorithm);
  }
  at::Tensor aten_forward(const at::Tensor& input, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias) const {
    return aten_conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups,
                                 dilation);
  }
  Gradients aten_backward(const at::Tensor& grad_output, const at::Tensor& input,
                          const at::Tensor& weight, std::array<bool, 3> mask) const {
    return aten_conv_transpose2d_backward(grad_output, input, weight, stride, padding,
                                          output_padding, groups, dilation, mask);
  }
};

}  // namespace customconv::torch_layer
