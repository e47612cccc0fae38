// Convolutions as types, for code that is the same for all: plain and transposed, of images
// (`kDims` is 2) and of volumes (3).
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

template <int kSpatial>
struct Conv : Operator {
  static constexpr int kDims = kSpatial;
  static constexpr const char* kFused = kDims == 2 ? "conv2d_fused" : "conv3d_fused";
  // Of nodes.
  static constexpr const char* kName =
      kDims == 2 ? "CustomconvConv2dBackward" : "CustomconvConv3dBackward";
  static constexpr const char* kFusedName =
      kDims == 2 ? "CustomconvConv2dFusedBackward" : "CustomconvConv3dFusedBackward";
  static constexpr const char* kBackwardName =
      kDims == 2 ? "CustomconvConv2dBackwardBackward" : "CustomconvConv3dBackwardBackward";

  explicit Conv(const Operator& op) : Operator(op) {}
  Conv(c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
       const c10::SymInt& groups, std::string_view algorithm)
      : Operator(stride, padding, {}, dilation, groups, algorithm) {}

  at::Tensor forward(const at::Tensor& input, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias) const {
    return conv<kDims>(input, weight, bias, stride, padding, dilation, groups, algorithm);
  }
  at::Tensor fused(const at::Tensor& input, const at::Tensor& weight,
                   const std::optional<at::Tensor>& bias, const FusedOptions& options) const {
    return conv_fused<kDims>(input, weight, bias, stride, padding, dilation, groups, options,
                             algorithm);
  }
  Gradients backward(const at::Tensor& grad_output, const at::Tensor& input,
                     const at::Tensor& weight, std::array<bool, 3> mask) const {
    return conv_backward<kDims>(grad_output, input, weight, stride, padding, dilation, groups, mask,
                                algorithm);
  }
  at::Tensor aten_forward(const at::Tensor& input, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias) const {
    return aten_conv<kDims>(input, weight, bias, stride, padding, dilation, groups);
  }
  Gradients aten_backward(const at::Tensor& grad_output, const at::Tensor& input,
                          const at::Tensor& weight, std::array<bool, 3> mask) const {
    return aten_conv_backward<kDims>(grad_output, input, weight, stride, padding, dilation, groups,
                                     mask);
  }
};

template <int kSpatial>
struct ConvTranspose : Operator {
  static constexpr int kDims = kSpatial;
  static constexpr const char* kFused =
      kDims == 2 ? "conv_transpose2d_fused" : "conv_transpose3d_fused";
  static constexpr const char* kName =
      kDims == 2 ? "CustomconvConvTranspose2dBackward" : "CustomconvConvTranspose3dBackward";
  static constexpr const char* kFusedName = kDims == 2 ? "CustomconvConvTranspose2dFusedBackward"
                                                       : "CustomconvConvTranspose3dFusedBackward";
  static constexpr const char* kBackwardName = kDims == 2
                                                   ? "CustomconvConvTranspose2dBackwardBackward"
                                                   : "CustomconvConvTranspose3dBackwardBackward";

  explicit ConvTranspose(const Operator& op) : Operator(op) {}
  ConvTranspose(c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                c10::SymIntArrayRef output_padding, const c10::SymInt& groups,
                c10::SymIntArrayRef dilation, std::string_view algorithm)
      : Operator(stride, padding, output_padding, dilation, groups, algorithm) {}

  at::Tensor forward(const at::Tensor& input, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias) const {
    return conv_transpose<kDims>(input, weight, bias, stride, padding, output_padding, groups,
                                 dilation, algorithm);
  }
  at::Tensor fused(const at::Tensor& input, const at::Tensor& weight,
                   const std::optional<at::Tensor>& bias, const FusedOptions& options) const {
    return conv_transpose_fused<kDims>(input, weight, bias, stride, padding, output_padding, groups,
                                       dilation, options, algorithm);
  }
  Gradients backward(const at::Tensor& grad_output, const at::Tensor& input,
                     const at::Tensor& weight, std::array<bool, 3> mask) const {
    return conv_transpose_backward<kDims>(grad_output, input, weight, stride, padding,
                                          output_padding, groups, dilation, mask, algorithm);
  }
  at::Tensor aten_forward(const at::Tensor& input, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias) const {
    return aten_conv_transpose<kDims>(input, weight, bias, stride, padding, output_padding, groups,
                                      dilation);
  }
  Gradients aten_backward(const at::Tensor& grad_output, const at::Tensor& input,
                          const at::Tensor& weight, std::array<bool, 3> mask) const {
    return aten_conv_transpose_backward<kDims>(grad_output, input, weight, stride, padding,
                                               output_padding, groups, dilation, mask);
  }
};

}  // namespace customconv::torch_layer
