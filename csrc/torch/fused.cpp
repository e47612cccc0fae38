#include "torch/fused.h"

#include <c10/core/GradMode.h>

#include <array>
#include <string>

#include "torch/problem.h"

namespace customconv::torch_layer {

namespace {

using at::Tensor;

constexpr std::array<std::pair<std::string_view, Activation>, 10> kActivations = {{
    {"none", Activation::kNone},
    {"relu", Activation::kRelu},
    {"relu6", Activation::kRelu6},
    {"leaky_relu", Activation::kLeakyRelu},
    {"sigmoid", Activation::kSigmoid},
    {"hardsigmoid", Activation::kHardsigmoid},
    {"silu", Activation::kSilu},
    {"hardswish", Activation::kHardswish},
    {"gelu", Activation::kGelu},
    {"gelu_tanh", Activation::kGeluTanh},
}};

bool is_given(const std::optional<Tensor>& tensor) { return tensor && tensor->defined(); }

Tensor activate(Tensor value, const FusedOptions& options, bool in_place) {
  switch (activation_named(options.activation)) {
    case Activation::kNone:
      return value;
    case Activation::kRelu:
      return in_place ? value.relu_() : value.relu();
    case Activation::kRelu6:
      return in_place ? at::hardtanh_(value, 0, 6) : at::hardtanh(value, 0, 6);
    case Activation::kLeakyRelu:
      return in_place ? at::leaky_relu_(value, options.negative_slope)
                      : at::leaky_relu(value, options.negative_slope);
    case Activation::kSigmoid:
      return in_place ? value.sigmoid_() : value.sigmoid();
    case Activation::kHardsigmoid:
      return in_place ? at::hardsigmoid_(value) : at::hardsigmoid(value);
    case Activation::kSilu:
      return in_place ? at::silu_(value) : at::silu(value);
    case Activation::kHardswish:
      return in_place ? at::hardswish_(value) : at::hardswish(value);
    case Activation::kGelu:
      return in_place ? at::gelu_(value) : at::gelu(value);
    case Activation::kGeluTanh:
      return in_place ? at::gelu_(value, "tanh") : at::gelu(value, "tanh");
  }
  return value;
}

// Whether a bias is added apart from the convolution: after the scale, or in float32.
bool adds_bias(const std::optional<Tensor>& bias, const FusedOptions& options,
               const Tensor& input) {
  return is_given(bias) && (is_given(options.scale) || is_wide(*bias, input));
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

bool is_wide(const Tensor& vector, const Tensor& input) {
  return vector.scalar_type() == at::kFloat &&
         (input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16);
}

void check_fused(const char* function, size_t dims, const std::optional<Tensor>& bias,
                 const FusedOptions& options, const Tensor& input,
                 c10::SymIntArrayRef output_sizes) {
  activation_named(options.activation);
  const auto check_kind = [&](const Tensor& t, const char* name) {
    TORCH_CHECK(t.scalar_type() == input.scalar_type() && t.device() == input.device(), function,
                ": expected ", name, " of type ", input.scalar_type(), " on ", input.device(),
                ", as the input is, but got ", t.scalar_type(), " on ", t.device());
  };
  const c10::SymInt& channels = output_sizes[output_sizes.size() - 1 - dims];
  const auto check_vector = [&](const Tensor& t, const char* name) {
    if (!is_wide(t, input)) check_kind(t, name);
    TORCH_CHECK(t.dim() == 1 && t.sym_size(0) == channels && t.device() == input.device(), function,
                ": expected ", name, " of shape [", channels,
                "], one number for each output channel, on ", input.device(), ", but got ",
                t.sym_sizes(), " on ", t.device());
  };
  if (is_given(options.scale)) check_vector(*options.scale, "a scale");
  if (is_given(bias) && is_wide(*bias, input)) check_vector(*bias, "a bias");
  if (is_given(options.residual)) {
    check_kind(*options.residual, "a residual");
    TORCH_CHECK(options.residual->sym_sizes() == output_sizes, function,
                ": expected a residual of the output's shape ", output_sizes, ", but got ",
                options.residual->sym_sizes());
  }
}

int count_passes(const std::optional<Tensor>& bias, const FusedOptions& options,
                 const Tensor& input, bool transposed) {
  const bool of_bias = !transposed && adds_bias(bias, options, input);
  return is_given(options.scale) + of_bias + is_given(options.residual) +
         (activation_named(options.activation) != Activation::kNone);
}

template <typename Op>
Tensor compose_fused(const Op& op, const Tensor& input, const Tensor& weight,
                     const std::optional<Tensor>& bias, const FusedOptions& options,
                     bool in_place) {
  const bool bias_later = adds_bias(bias, options, input);
  Tensor y = op.forward(input, weight, bias_later ? std::nullopt : bias);
  check_fused(Op::kFused, Op::kDims, bias, options, input, y.sym_sizes());
  const at::ScalarType dtype = y.scalar_type();
  const auto add = [&](const Tensor& term) { y = in_place ? y.add_(term) : (y + term).to(dtype); };
  if (is_given(options.scale)) {
    const Tensor scale = per_channel(*options.scale, Op::kDims);
    y = in_place ? y.mul_(scale) : (y * scale).to(dtype);
  }
  if (bias_later) add(per_channel(*bias, Op::kDims));
  const bool has_residual = is_given(options.residual);
  if (has_residual && !options.residual_last) add(*options.residual);
  y = activate(y, options, in_place);
  if (has_residual && options.residual_last) add(*options.residual);
  return y;
}

#define CUSTOMCONV_COMPOSE(Op)                                           \
  template Tensor compose_fused(const Op&, const Tensor&, const Tensor&, \
                                const std::optional<Tensor>&, const FusedOptions&, bool);
CUSTOMCONV_COMPOSE(Conv<2>)
CUSTOMCONV_COMPOSE(Conv<3>)
CUSTOMCONV_COMPOSE(ConvTranspose<2>)
CUSTOMCONV_COMPOSE(ConvTranspose<3>)
#undef CUSTOMCONV_COMPOSE

bool is_known_by_result(const FusedOptions& options) {
  if (is_given(options.residual) && options.residual_last) return false;
  switch (activation_named(options.activation)) {
    case Activation::kRelu:
    case Activation::kRelu6:
    case Activation::kSigmoid:
    case Activation::kHardsigmoid:
      return true;
    case Activation::kLeakyRelu:
      return options.negative_slope >= 0;
    default:
      return false;
  }
}

Tensor activation_backward(const Tensor& grad, const Tensor& at_value, bool is_result,
                           const FusedOptions& options) {
  switch (activation_named(options.activation)) {
    case Activation::kNone:
      return grad;
    case Activation::kRelu:
      return at::threshold_backward(grad, at_value, 0);
    case Activation::kRelu6:
      return at::hardtanh_backward(grad, at_value, 0, 6);
    case Activation::kLeakyRelu:
      return at::leaky_relu_backward(grad, at_value, options.negative_slope, is_result);
    case Activation::kSigmoid:
      return at::sigmoid_backward(grad, is_result ? at_value : at_value.sigmoid());
    case Activation::kHardsigmoid:  // hardsigmoid_backward has no derivative
      return at::hardtanh_backward(grad, at_value, is_result ? 0 : -3, is_result ? 1 : 3) / 6;
    case Activation::kSilu:
      if (c10::GradMode::is_enabled()) {  // silu_backward has no derivative
        const Tensor sigmoid = at_value.sigmoid();
        return grad * sigmoid * (1 + at_value * (1 - sigmoid));
      }
      return at::silu_backward(grad, at_value);
    case Activation::kHardswish:
      return at::hardswish_backward(grad, at_value);
    case Activation::kGelu:
      return at::gelu_backward(grad, at_value);
    case Activation::kGeluTanh:
      return at::gelu_backward(grad, at_value, "tanh");
  }
  return grad;
}

}  // namespace customconv::torch_layer
