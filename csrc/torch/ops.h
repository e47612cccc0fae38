// The operators as C++ functions: each call goes through the dispatcher. `kDims` is 2 for those of
// images and 3 for those of volumes: conv2d is conv<2>.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <optional>
#include <string_view>
#include <tuple>

namespace customconv::torch_layer {

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // of input, weight, bias

template <int kDims>
at::Tensor conv(const at::Tensor& input, const at::Tensor& weight,
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

template <int kDims>
at::Tensor conv_fused(const at::Tensor& input, const at::Tensor& weight,
                      const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                      c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                      const c10::SymInt& groups, const FusedOptions& options,
                      std::string_view algorithm);

template <int kDims>
Gradients conv_backward(const at::Tensor& grad_output, const at::Tensor& input,
                        const at::Tensor& weight, c10::SymIntArrayRef stride,
                        c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                        const c10::SymInt& groups, std::array<bool, 3> output_mask,
                        std::string_view algorithm);

template <int kDims>
at::Tensor conv_transpose(const at::Tensor& input, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                          c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                          const c10::SymInt& groups, c10::SymIntArrayRef dilation,
                          std::string_view algorithm);

template <int kDims>
at::Tensor conv_transpose_fused(const at::Tensor& input, const at::Tensor& weight,
                                const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                                c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                                const c10::SymInt& groups, c10::SymIntArrayRef dilation,
                                const FusedOptions& options, std::string_view algorithm);

template <int kDims>
Gradients conv_transpose_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                  const at::Tensor& weight, c10::SymIntArrayRef stride,
                                  c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                                  const c10::SymInt& groups, c10::SymIntArrayRef dilation,
                                  std::array<bool, 3> output_mask, std::string_view algorithm);

// One value for each channel, shaped so that it broadcasts over the dimensions behind it.
inline at::Tensor per_channel(const at::Tensor& values, size_t dims) {
  constexpr int64_t kSizes[] = {-1, 1, 1, 1};
  return values.view(at::IntArrayRef(kSizes, dims + 1));
}

// Makes a function of this kind for images and for volumes, where it is defined.
#define CUSTOMCONV_FOR_DIMS(function)         \
  template decltype(function<2>) function<2>; \
  template decltype(function<3>) function<3>;

}  // namespace customconv::torch_layer
