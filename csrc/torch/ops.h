// The operators as C++ functions: each call goes through the dispatcher.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <optional>
#include <string_view>
#include <tuple>

namespace customconv::torch_layer {

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // of input, weight, bias

at::Tensor conv2d(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                  c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                  const c10::SymInt& groups, std::string_view algorithm);

// What fused operators do besides: activation(scale * sum + bias + residual), or the residual last.
struct FusedOptions {
  std::optional<at::Tensor> scale;     // one number for each output channel
  std::optional<at::Tensor> residual;  // as the output
  std::string_view activation = "none";
  bool residual_last = false;
  double negative_slope = 0.01;  // of "leaky_relu"
};

at::Tensor conv2d_fused(const at::Tensor& input, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                        c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                        const c10::SymInt& groups, const FusedOptions& options,
                        std::string_view algorithm);

Gradients conv2d_backward(const at::Tensor& grad_output, const at::Tensor& input,
                          const at::Tensor& weight, c10::SymIntArrayRef stride,
                          c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                          const c10::SymInt& groups, std::array<bool, 3> output_mask,
                          std::string_view algorithm);

at::Tensor conv_transpose2d(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                            c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                            const c10::SymInt& groups, c10::SymIntArrayRef dilation,
                            std::string_view algorithm);

at::Tensor conv_transpose2d_fused(const at::Tensor& input, const at::Tensor& weight,
                                  const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                                  c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                                  const c10::SymInt& groups, c10::SymIntArrayRef dilation,
                                  const FusedOptions& options, std::string_view algorithm);

Gradients conv_transpose2d_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                    const at::Tensor& weight, c10::SymIntArrayRef stride,
                                    c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                                    const c10::SymInt& groups, c10::SymIntArrayRef dilation,
                                    std::array<bool, 3> output_mask, std::string_view algorithm);

}  // namespace customconv::torch_layer
