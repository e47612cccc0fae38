// Derivatives: a C++ Function for each operator, so that an eager call costs no Python.
//
// Each formula is written with the operators themselves, so derivatives of any order run on
// them.
#include <ATen/FuncTorchTLS.h>
#include <c10/util/DimVector.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "torch/aten.h"
#include "torch/fused.h"
#include "torch/ops.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The arguments that a Function carries from forward to backward. Lists are the caller's until a
// forward pass has found them well formed.
struct Geometry {
  c10::SymDimVector stride, padding, output_padding, dilation;
  c10::SymInt groups;
  std::string algorithm;

  void save(AutogradContext* ctx) const {
    std::vector<c10::SymInt> sizes;
    for (const auto* list : {&stride, &padding, &output_padding, &dilation}) {
      sizes.push_back(list->front());
      sizes.push_back(list->back());
    }
    sizes.push_back(groups);
    ctx->saved_data["geometry"] = c10::SymIntArrayRef(sizes);
    ctx->saved_data["algorithm"] = algorithm;
  }

  static Geometry load(AutogradContext* ctx) {
    const std::vector<c10::SymInt> v = ctx->saved_data["geometry"].toSymIntVector();
    return {{v[0], v[1]}, {v[2], v[3]}, {v[4], v[5]},
            {v[6], v[7]}, v[8],         ctx->saved_data["algorithm"].toStringRef()};
  }
};

struct Conv2d : Geometry {
  explicit Conv2d(Geometry geometry) : Geometry(std::move(geometry)) {}
  Conv2d(c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
         const c10::SymInt& groups, std::string_view algorithm)
      : Geometry{c10::SymDimVector(stride),
                 c10::SymDimVector(padding),
                 {0, 0},
                 c10::SymDimVector(dilation),
                 groups,
                 std::string(algorithm)} {}

  Tensor forward(const Tensor& input, const Tensor& weight,
                 const std::optional<Tensor>& bias) const {
    return conv2d(input, weight, bias, stride, padding, dilation, groups, algorithm);
  }
  Tensor fused(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
               const FusedOptions& options) const {
    return conv2d_fused(input, weight, bias, stride, padding, dilation, groups, options, algorithm);
  }
  Gradients backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                     std::array<bool, 3> mask) const {
    return conv2d_backward(grad_output, input, weight, stride, padding, dilation, groups, mask,
                           algorithm);
  }
  Tensor aten_forward(const Tensor& input, const Tensor& weight,
                      const std::optional<Tensor>& bias) const {
    return aten_conv2d(input, weight, bias, stride, padding, dilation, groups);
  }
  Gradients aten_backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                          std::array<bool, 3> mask) const {
    return aten_conv2d_backward(grad_output, input, weight, stride, padding, dilation, groups,
                                mask);
  }
};

struct ConvTranspose2d : Geometry {
  explicit ConvTranspose2d(Geometry geometry) : Geometry(std::move(geometry)) {}
  ConvTranspose2d(c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                  c10::SymIntArrayRef output_padding, const c10::SymInt& groups,
                  c10::SymIntArrayRef dilation, std::string_view algorithm)
      : Geometry{c10::SymDimVector(stride),
                 c10::SymDimVector(padding),
                 c10::SymDimVector(output_padding),
                 c10::SymDimVector(dilation),
                 groups,
                 std::string(algorithm)} {}

  Tensor forward(const Tensor& input, const Tensor& weight,
                 const std::optional<Tensor>& bias) const {
    return conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups, dilation,
                            algorithm);
  }
  Gradients backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                     std::array<bool, 3> mask) const {
    return conv_transpose2d_backward(grad_output, input, weight, stride, padding, output_padding,
                                     groups, dilation, mask, algorithm);
  }
  Tensor aten_forward(const Tensor& input, const Tensor& weight,
                      const std::optional<Tensor>& bias) const {
    return aten_conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups,
                                 dilation);
  }
  Gradients aten_backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                          std::array<bool, 3> mask) const {
    return aten_conv_transpose2d_backward(grad_output, input, weight, stride, padding,
                                          output_padding, groups, dilation, mask);
  }
};

template <typename Op>
class ForwardFunction : public torch::autograd::Function<ForwardFunction<Op>> {
 public:
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, const Tensor& input, const Tensor& weight,
                        const std::optional<Tensor>& bias, const Op& op) {
    at::AutoDispatchBelowADInplaceOrView below;
    Tensor output = op.forward(input, weight, bias);
    op.save(ctx);
    ctx->saved_data["has_bias"] = bias.has_value() && bias->defined();
    ctx->save_for_backward({input, weight});
    ctx->set_materialize_grads(false);
    return output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    variable_list gradients(4);
    const Tensor& grad_output = grad_outputs[0];
    if (!grad_output.defined()) return gradients;
    const variable_list saved = ctx->get_saved_variables();
    const bool has_bias = ctx->saved_data["has_bias"].toBool();
    const std::array<bool, 3> mask = {ctx->needs_input_grad(0), ctx->needs_input_grad(1),
                                      has_bias && ctx->needs_input_grad(2)};
    std::tie(gradients[0], gradients[1], gradients[2]) =
        Op(Geometry::load(ctx)).backward(grad_output, saved[0], saved[1], mask);
    return gradients;
  }
};

// Returns the gradients that the mask asks for, in order.
template <typename Op>
class BackwardFunction : public torch::autograd::Function<BackwardFunction<Op>> {
 public:
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* ctx, const Tensor& grad_output, const Tensor& input,
                               const Tensor& weight, const Op& op,
                               std::array<bool, 3> output_mask) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [grad_input, grad_weight, grad_bias] =
        op.backward(grad_output, input, weight, output_mask);
    op.save(ctx);
    ctx->saved_data["mask"] = c10::List<bool>({output_mask[0], output_mask[1], output_mask[2]});
    ctx->save_for_backward({grad_output, input, weight});
    ctx->set_materialize_grads(false);
    variable_list asked;
    if (output_mask[0]) asked.push_back(grad_input);
    if (output_mask[1]) asked.push_back(grad_weight);
    if (output_mask[2]) asked.push_back(grad_bias);
    return asked;
  }

  // The gradients are bilinear: in grad_output and weight, in grad_output and input. With u, v, b
  // the incoming gradients of grad_input, grad_weight and grad_bias, for either operator:
  //   d grad_output = op(u, weight, b) + op(input, v)
  //   d input = op's grad_input(grad_output, v),  d weight = op's grad_weight(grad_output, u)
  static variable_list backward(AutogradContext* ctx, const variable_list& incoming) {
    const auto mask = ctx->saved_data["mask"].toBoolList();
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &grad_output = saved[0], &input = saved[1], &weight = saved[2];
    const Op op(Geometry::load(ctx));
    size_t next = 0;
    Tensor u, v, b;
    if (mask[0]) u = incoming[next++];
    if (mask[1]) v = incoming[next++];
    if (mask[2]) b = incoming[next++];

    variable_list gradients(5);
    if (ctx->needs_input_grad(0)) {
      Tensor& sum = gradients[0];
      if (u.defined()) {
        sum = op.forward(u, weight, b.defined() ? std::make_optional(b) : std::nullopt);
      } else if (b.defined()) {
        sum = b.view({-1, 1, 1}).expand_as(grad_output);
      }
      if (v.defined()) {
        const Tensor term = op.forward(input, v, std::nullopt);
        sum = sum.defined() ? sum + term : term;
      }
    }
    if (ctx->needs_input_grad(1) && v.defined()) {
      gradients[1] = std::get<0>(op.backward(grad_output, input, v, {true, false, false}));
    }
    if (ctx->needs_input_grad(2) && u.defined()) {
      gradients[2] = std::get<1>(op.backward(grad_output, u, weight, {false, true, false}));
    }
    return gradients;
  }
};

// An undefined tensor as none, and the other way round: an autograd function saves only tensors.
std::optional<Tensor> given(const Tensor& t) {
  return t.defined() ? std::make_optional(t) : std::nullopt;
}
Tensor saved(const std::optional<Tensor>& t) { return t.value_or(Tensor()); }

// Keeps no more than the forward pass has anyway: its arguments, and its result where the
// activation's derivative follows from that. Else the activation's argument is computed again.
class Conv2dFusedFunction : public torch::autograd::Function<Conv2dFusedFunction> {
 public:
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, const Tensor& input, const Tensor& weight,
                        const std::optional<Tensor>& bias, const std::optional<Tensor>& scale,
                        const std::optional<Tensor>& residual, c10::SymIntArrayRef stride,
                        c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                        const c10::SymInt& groups, std::string_view activation, bool residual_last,
                        double negative_slope, std::string_view algorithm) {
    const FusedOptions options{scale, residual, activation, residual_last, negative_slope};
    at::AutoDispatchBelowADInplaceOrView below;
    const Conv2d op(stride, padding, dilation, groups, algorithm);
    Tensor output = op.fused(input, weight, bias, options);
    op.save(ctx);
    ctx->saved_data["activation"] = std::string(activation);
    ctx->saved_data["residual_last"] = residual_last;
    ctx->saved_data["negative_slope"] = negative_slope;
    const bool by_result = is_known_by_result(options);
    const bool by_argument = !by_result && activation_named(activation) != Activation::kNone;
    ctx->saved_data["has_bias"] = saved(bias).defined();
    ctx->saved_data["has_residual"] = saved(residual).defined();
    const Tensor none;
    ctx->save_for_backward({input, weight, saved(scale), by_argument ? saved(bias) : none,
                            by_argument && !residual_last ? saved(residual) : none,
                            by_result ? output : none});
    ctx->set_materialize_grads(false);
    return output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    variable_list gradients(13);
    const Tensor& grad_output = grad_outputs[0];
    if (!grad_output.defined()) return gradients;
    const variable_list kept = ctx->get_saved_variables();
    const Tensor &input = kept[0], &weight = kept[1], &scale = kept[2], &result = kept[5];
    const Conv2d op(Geometry::load(ctx));
    const std::string activation = ctx->saved_data["activation"].toStringRef();
    const bool residual_last = ctx->saved_data["residual_last"].toBool();
    const bool has_bias = ctx->saved_data["has_bias"].toBool();
    const bool has_residual = ctx->saved_data["has_residual"].toBool();
    FusedOptions options{given(scale), given(kept[4]), activation, residual_last,
                         ctx->saved_data["negative_slope"].toDouble()};
    // Edges are counted over the tensors that there are.
    int edge = 2;
    const bool wants_bias = has_bias && ctx->needs_input_grad(edge++);
    const bool wants_scale = scale.defined() && ctx->needs_input_grad(edge++);
    const bool wants_residual = has_residual && ctx->needs_input_grad(edge++);
    const bool wants_input = ctx->needs_input_grad(0), wants_weight = ctx->needs_input_grad(1);

    // Of the activation's argument.
    Tensor grad = grad_output;
    if (activation_named(activation) != Activation::kNone) {
      Tensor at_value = result;
      if (!at_value.defined()) {
        FusedOptions argument = options;
        argument.activation = "none";
        argument.residual_last = false;
        at_value = op.fused(input, weight, given(kept[3]), argument);
      }
      grad = activation_backward(grad_output, at_value, result.defined(), options);
    }
    if (wants_residual) gradients[4] = residual_last ? grad_output : grad;
    const auto sum_of_channels = [](const Tensor& t) {
      return t.dim() == 4 ? t.sum({0, 2, 3}) : t.sum({1, 2});
    };
    if (wants_scale) {
      gradients[3] = sum_of_channels(grad * op.forward(input, weight, std::nullopt));
    }
    const bool own_bias = wants_bias && scale.defined();
    if (own_bias) gradients[2] = sum_of_channels(grad);
    const std::array<bool, 3> mask = {wants_input, wants_weight, wants_bias && !own_bias};
    if (mask[0] || mask[1] || mask[2]) {
      if (scale.defined()) grad = grad * scale.view({-1, 1, 1});
      Gradients found = op.backward(grad, input, weight, mask);
      gradients[0] = std::get<0>(found);
      gradients[1] = std::get<1>(found);
      if (mask[2]) gradients[2] = std::get<2>(found);
    }
    return gradients;
  }
};

bool has_forward_gradient(const Tensor& t) {
  return t.defined() && t._fw_grad(/*level=*/0).defined();
}

// functorch refuses C++ Functions inside its transforms, and tells so only by throwing.
bool inside_functorch() {
  const auto& functorch = at::functorch::functorchTLSAccessor();
  if (functorch == nullptr) return false;
  try {
    functorch->checkSupportsCppAutogradFunction();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

// A C++ Function has no rule for forward mode either; dtypes and devices that are not ours are
// ATen's with their derivatives.
bool is_for_aten(const Tensor& input, const Tensor& weight, const Tensor& other) {
  const auto ours = [](c10::DeviceType type) {
    return type == c10::kCUDA || type == c10::kCPU || type == c10::kMeta;
  };
  return !is_kernel_dtype(input.scalar_type()) || !ours(input.device().type()) ||
         input.layout() != at::kStrided || has_forward_gradient(input) ||
         has_forward_gradient(weight) || has_forward_gradient(other) || inside_functorch();
}

bool needs_gradient(const Tensor& t) { return t.defined() && t.requires_grad(); }

template <typename Op>
Tensor forward_autograd(const Tensor& input, const Tensor& weight,
                        const std::optional<Tensor>& bias, const Op& op) {
  static const Tensor none;
  const Tensor& bias_or_none = bias.has_value() ? *bias : none;
  if (algorithm_named(op.algorithm) == Algorithm::kAten ||
      is_for_aten(input, weight, bias_or_none)) {
    check_runs_on(op.algorithm, input);
    return op.aten_forward(input, weight, bias);
  }
  const bool differentiate =
      at::GradMode::is_enabled() &&
      (needs_gradient(input) || needs_gradient(weight) || needs_gradient(bias_or_none));
  if (!differentiate) {
    at::AutoDispatchBelowADInplaceOrView below;
    return op.forward(input, weight, bias);
  }
  return ForwardFunction<Op>::apply(input, weight, bias, op);
}

template <typename Op>
Gradients backward_autograd(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                            std::array<bool, 3> output_mask, const Op& op) {
  if (algorithm_named(op.algorithm) == Algorithm::kAten ||
      is_for_aten(input, weight, grad_output)) {
    check_runs_on(op.algorithm, input);
    return op.aten_backward(grad_output, input, weight, output_mask);
  }
  const bool any = output_mask[0] || output_mask[1] || output_mask[2];
  const bool differentiate =
      any && at::GradMode::is_enabled() &&
      (needs_gradient(grad_output) || needs_gradient(input) || needs_gradient(weight));
  if (!differentiate) {
    at::AutoDispatchBelowADInplaceOrView below;
    return op.backward(grad_output, input, weight, output_mask);
  }
  const variable_list asked =
      BackwardFunction<Op>::apply(grad_output, input, weight, op, output_mask);
  size_t next = 0;
  const auto take = [&](bool wanted) { return wanted ? asked[next++] : Tensor(); };
  Gradients gradients;
  std::get<0>(gradients) = take(output_mask[0]);
  std::get<1>(gradients) = take(output_mask[1]);
  std::get<2>(gradients) = take(output_mask[2]);
  return gradients;
}

Tensor conv2d_autograd(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                       c10::SymIntArrayRef dilation, c10::SymInt groups,
                       std::string_view algorithm) {
  return forward_autograd(input, weight, bias,
                          Conv2d(stride, padding, dilation, groups, algorithm));
}

Tensor conv_transpose2d_autograd(const Tensor& input, const Tensor& weight,
                                 const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
                                 c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                                 c10::SymInt groups, c10::SymIntArrayRef dilation,
                                 std::string_view algorithm) {
  return forward_autograd(
      input, weight, bias,
      ConvTranspose2d(stride, padding, output_padding, groups, dilation, algorithm));
}

Tensor conv2d_fused_autograd(const Tensor& input, const Tensor& weight,
                             const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
                             c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                             c10::SymInt groups, const std::optional<Tensor>& scale,
                             const std::optional<Tensor>& residual, std::string_view activation,
                             bool residual_last, double negative_slope,
                             std::string_view algorithm) {
  const FusedOptions options{scale, residual, activation, residual_last, negative_slope};
  const Tensor others[] = {saved(bias), saved(scale), saved(residual)};
  const auto any = [&](auto has) { return std::any_of(std::begin(others), std::end(others), has); };
  if (algorithm_named(algorithm) == Algorithm::kAten || any(has_forward_gradient) ||
      is_for_aten(input, weight, Tensor())) {
    return compose_fused(input, weight, bias, stride, padding, dilation, groups, options, algorithm,
                         /*in_place=*/false);
  }
  const bool differentiate =
      at::GradMode::is_enabled() &&
      (needs_gradient(input) || needs_gradient(weight) || any(needs_gradient));
  if (!differentiate) {
    at::AutoDispatchBelowADInplaceOrView below;
    return conv2d_fused(input, weight, bias, stride, padding, dilation, groups, options, algorithm);
  }
  return Conv2dFusedFunction::apply(input, weight, bias, scale, residual, stride, padding, dilation,
                                    groups, activation, residual_last, negative_slope, algorithm);
}

Gradients conv2d_backward_autograd(const Tensor& grad_output, const Tensor& input,
                                   const Tensor& weight, c10::SymIntArrayRef stride,
                                   c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                                   c10::SymInt groups, std::array<bool, 3> output_mask,
                                   std::string_view algorithm) {
  return backward_autograd(grad_output, input, weight, output_mask,
                           Conv2d(stride, padding, dilation, groups, algorithm));
}

Gradients conv_transpose2d_backward_autograd(const Tensor& grad_output, const Tensor& input,
                                             const Tensor& weight, c10::SymIntArrayRef stride,
                                             c10::SymIntArrayRef padding,
                                             c10::SymIntArrayRef output_padding, c10::SymInt groups,
                                             c10::SymIntArrayRef dilation,
                                             std::array<bool, 3> output_mask,
                                             std::string_view algorithm) {
  return backward_autograd(
      grad_output, input, weight, output_mask,
      ConvTranspose2d(stride, padding, output_padding, groups, dilation, algorithm));
}

}  // namespace

TORCH_LIBRARY_IMPL(customconv, Autograd, m) {
  m.impl("conv2d", conv2d_autograd);
  m.impl("conv2d_fused", conv2d_fused_autograd);
  m.impl("conv2d_backward", conv2d_backward_autograd);
  m.impl("conv_transpose2d", conv_transpose2d_autograd);
  m.impl("conv_transpose2d_backward", conv_transpose2d_backward_autograd);
}

}  // namespace customconv::torch_layer
