#include "torch/fused.h"

#include <c10/core/GradMode.h>

#include <array>
#include <string>

#include "torch/problem.h"

namespace customconv::torch_layer {

namespace {

using at::Tensor;

constexpr std::array<std::pair<std::string_view, Activation>, 6> kActivations = {{
    {"none", Activation::kNone},
    {"relu", Activation::kRelu},
    {"silu", Activation::kSilu},
    {"gelu", Activation::kGelu},
    {"hardswish", Activation::kHardswish},
    {"leaky_relu", Activation::kLeakyRelu},
}};

bool is_given(const std::optional<Tensor>& tensor) { return tensor && tensor->defined(); }

// One value for each channel, shaped so that it broadcasts over the pixels.
Tensor per_channel(const Tensor& values) { return values.view({-1, 1, 1}); }

Tensor activate(Tensor value, const FusedOptions& options, bool in_place) {
  switch (activation_named(options.activation)) {
    case Activation::kNone:
      return value;
    case Activation::kRelu:
      return in_place ? value.relu_() : value.relu();
    case Activation::kSilu:
      return in_place ? at::silu_(value) : at::silu(value);
    case Activation::kGelu:
      return in_place ? at::gelu_(value) : at::gelu(value);
    case Activation::kHardswish:
      return in_place ? at::hardswish_(value) : at::hardswish(value);
    case Activation::kLeakyRelu:
      return in_place ? at::leaky_relu_(value, options.negative_slope)
                      : at::leaky_relu(value, options.negative_slope);
  }
  return value;
}

}  // namespace

Activation activation_named(std::string_view name) {
  std::string known;
  for (const auto& [known_name, activation] : kActivations) {
    if (name == known_name) return activation;
    known += (known.empty() ? "'" : ", '") + std::string(known_name) + "'";
  }
  TORCH_CHECK_VALUE(false, "unknown activation '", name, "': expected one of ", known);
}

void check_fused(const FusedOptions& options, const Tensor& input,
                 c10::SymIntArrayRef output_sizes) {
  activation_named(options.activation);
  const auto check_kind = [&](const Tensor& t, const char* name) {
    TORCH_CHECK(t.scalar_type() == input.scalar_type() && t.device() == input.device(),
                "conv2d_fused: expected ", name, " of type ", input.scalar_type(), " on ",
                input.device(), ", as the input is, but got ", t.scalar_type(), " on ", t.device());
  };
  const c10::SymInt& channels = output_sizes[output_sizes.size() - 3];
  if (is_given(options.scale)) {
    check_kind(*options.scale, "a scale");
    TORCH_CHECK(options.scale->dim() == 1 && options.scale->sym_size(0) == channels,
                "conv2d_fused: expected a scale of shape [", channels,
                "], one number for each output channel, but got ", options.scale->sym_sizes());
  }
  if (is_given(options.residual)) {
    check_kind(*options.residual, "a residual");
    TORCH_CHECK(options.residual->sym_sizes() == output_sizes,
                "conv2d_fused: expected a residual of the output's shape ", output_sizes,
                ", but got ", options.residual->sym_sizes());
  }
}

int count_passes(const FusedOptions& options, bool has_bias) {
  const int scale = is_given(options.scale) ? 1 + has_bias : 0;
  return scale + is_given(options.residual) +
         (activation_named(options.activation) != Activation::kNone);
}

Tensor compose_fused(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                     c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                     c10::SymIntArrayRef dilation, const c10::SymInt& groups,
                     const FusedOptions& options, std::string_view algorithm, bool in_place) {
  const bool scaled = is_given(options.scale);
  Tensor y = conv2d(input, weight, scaled ? std::nullopt : bias, stride, padding, dilation, groups,
                    algorithm);
  check_fused(options, input, y.sym_sizes());
  const auto add = [&](const Tensor& term) { y = in_place ? y.add_(term) : y + term; };
  if (scaled) {
    const Tensor scale = per_channel(*options.scale);
    y = in_place ? y.mul_(scale) : y * scale;
    if (is_given(bias)) add(per_channel(*bias));
  }
  const bool has_residual = is_given(options.residual);
  if (has_residual && !options.residual_last) add(*options.residual);
  y = activate(y, options, in_place);
  if (has_residual && options.residual_last) add(*options.residual);
  return y;
}

bool is_known_by_result(const FusedOptions& options) {
  if (is_given(options.residual) && options.residual_last) return false;
  const Activation activation = activation_named(options.activation);
  return activation == Activation::kRelu ||
         (activation == Activation::kLeakyRelu && options.negative_slope >= 0);
}

Tensor activation_backward(const Tensor& grad, const Tensor& at_value, bool is_result,
                           const FusedOptions& options) {
  switch (activation_named(options.activation)) {
    case Activation::kNone:
      return grad;
    case Activation::kRelu:
      return at::threshold_backward(grad, at_value, 0);
    case Activation::kSilu:
      if (c10::GradMode::is_enabled()) {  // silu_backward has no derivative
        const Tensor sigmoid = at_value.sigmoid();
        return grad * sigmoid * (1 + at_value * (1 - sigmoid));
      }
      return at::silu_backward(grad, at_value);
    case Activation::kGelu:
      return at::gelu_backward(grad, at_value);
    case Activation::kHardswish:
      return at::hardswish_backward(grad, at_value);
    case Activation::kLeakyRelu:
      return at::leaky_relu_backward(grad, at_value, options.negative_slope, is_result);
  }
  return grad;
}

}  // namespace customconv::torch_layer
