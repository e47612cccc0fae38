// Derivatives, by nodes that are written by hand (node.h), so that an eager call costs no Python
// and functorch's transforms and forward mode work on them.
//
// Each formula is written with the operators themselves, so derivatives of any order run on
// them.
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "torch/fused.h"
#include "torch/node.h"
#include "torch/operator.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

namespace {

using at::Tensor;
using torch::autograd::variable_list;

template <typename Op>
Settings settings_of(const Op& op) {
  Settings s;
  s.geometry.reserve(4 * Op::kDims + 1);
  for (const auto& list : {op.stride, op.padding, op.output_padding, op.dilation}) {
    for (size_t i = 0; i < Op::kDims; ++i) {  // one number is that of all dimensions
      s.geometry.push_back(list.empty() ? c10::SymInt(0) : list[list.size() == 1 ? 0 : i]);
    }
  }
  s.geometry.push_back(op.groups);
  s.algorithm = op.algorithm;
  return s;
}

// Refers to the settings.
template <typename Op>
Op operator_of(const Settings& s) {
  const c10::SymIntArrayRef numbers(s.geometry);
  const auto list = [&](size_t i) { return numbers.slice(i * Op::kDims, Op::kDims); };
  return Op(Operator(list(0), list(1), list(2), list(3), numbers.back(), s.algorithm));
}

// An undefined tensor as none, and the other way round.
std::optional<Tensor> given(const Tensor& t) {
  return t.defined() ? std::make_optional(t) : std::nullopt;
}
Tensor or_undefined(const std::optional<Tensor>& t) { return t.value_or(Tensor()); }

// The sum of terms of which any may be undefined.
Tensor sum_of(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() ? a : b;
  return a + b;
}

// Gradients of input, weight and bias.
template <typename Op>
variable_list gradients_of_output(const variable_list& incoming, const variable_list& kept,
                                  const Settings& settings, const std::vector<bool>& needed) {
  variable_list gradients(3);
  const Tensor& grad_output = incoming[0];
  if (!grad_output.defined()) return gradients;
  std::tie(gradients[0], gradients[1], gradients[2]) = operator_of<Op>(settings).backward(
      grad_output, kept[0], kept[1], {needed[0], needed[1], needed[2]});
  return gradients;
}

// Gradients of grad_output, input and weight. The operator's gradients are bilinear: in grad_output
// and weight, in grad_output and input. With u, v, b the incoming gradients of grad_input,
// grad_weight and grad_bias, for either operator:
//   d grad_output = op(u, weight, b) + op(input, v)
//   d input = op's grad_input(grad_output, v),  d weight = op's grad_weight(grad_output, u)
template <typename Op>
variable_list gradients_of_gradients(const variable_list& incoming, const variable_list& kept,
                                     const Settings& settings, const std::vector<bool>& needed) {
  const Tensor &grad_output = kept[0], &input = kept[1], &weight = kept[2];
  const Tensor &u = incoming[0], &v = incoming[1], &b = incoming[2];
  const Op op = operator_of<Op>(settings);
  variable_list gradients(3);
  if (needed[0]) {
    if (u.defined()) {
      gradients[0] = op.forward(u, weight, given(b));
    } else if (b.defined()) {
      gradients[0] = per_channel(b, Op::kDims).expand_as(grad_output);
    }
    if (v.defined()) gradients[0] = sum_of(gradients[0], op.forward(input, v, std::nullopt));
  }
  if (needed[1] && v.defined()) {
    gradients[1] = std::get<0>(op.backward(grad_output, input, v, {true, false, false}));
  }
  if (needed[2] && u.defined()) {
    gradients[2] = std::get<1>(op.backward(grad_output, u, weight, {false, true, false}));
  }
  return gradients;
}

// Gradients of input, weight, bias, scale and residual. The node keeps no more than the forward
// pass has anyway: its arguments, and its result where the activation's derivative follows from
// that. Else the activation's argument is computed again.
template <typename Op>
variable_list gradients_of_fused(const variable_list& incoming, const variable_list& kept,
                                 const Settings& settings, const std::vector<bool>& needed) {
  variable_list gradients(5);
  const Tensor& grad_output = incoming[0];
  if (!grad_output.defined()) return gradients;
  const Tensor &input = kept[0], &weight = kept[1], &scale = kept[2], &result = kept[5];
  const Op op = operator_of<Op>(settings);
  const bool wants_bias = needed[2], wants_scale = needed[3], wants_residual = needed[4];
  const FusedOptions options{given(scale), given(kept[4]), settings.activation,
                             settings.residual_last, settings.negative_slope};

  // The gradient of the activation's argument.
  Tensor grad = grad_output;
  if (activation_named(options.activation) != Activation::kNone) {
    Tensor at_value = result;
    if (!at_value.defined()) {
      FusedOptions argument = options;
      argument.activation = "none";
      argument.residual_last = false;
      at_value = op.fused(input, weight, given(kept[3]), argument);
    }
    grad = activation_backward(grad_output, at_value, result.defined(), options);
  }
  if (wants_residual) gradients[4] = options.residual_last ? grad_output : grad;
  const auto sum_of_channels = [&scale](const Tensor& t) {
    std::array<int64_t, Op::kDims + 1> dims{};  // the batch, and those behind the channels
    std::iota(dims.begin() + 1, dims.end(), t.dim() - Op::kDims);
    return t.sum(at::IntArrayRef(dims).slice(t.dim() == Op::kDims + 2 ? 0 : 1), /*keepdim=*/false,
                 scale.scalar_type());
  };
  if (wants_scale) {
    gradients[3] = sum_of_channels(grad * op.forward(input, weight, std::nullopt));
  }
  const bool own_bias = wants_bias && scale.defined();
  if (own_bias) gradients[2] = sum_of_channels(grad);
  const std::array<bool, 3> mask = {needed[0], needed[1], wants_bias && !own_bias};
  if (mask[0] || mask[1] || mask[2]) {
    if (scale.defined()) grad = (grad * per_channel(scale, Op::kDims)).to(grad.scalar_type());
    Gradients found = op.backward(grad, input, weight, mask);
    gradients[0] = std::get<0>(found);
    gradients[1] = std::get<1>(found);
    if (mask[2]) gradients[2] = std::get<2>(found);
  }
  return gradients;
}

Tensor tangent_of(const Tensor& t) { return t.defined() ? t._fw_grad(/*level=*/0) : Tensor(); }
Tensor primal_of(const Tensor& t) { return t.defined() ? t._fw_primal(/*level=*/0) : Tensor(); }
bool has_tangent(const Tensor& t) { return tangent_of(t).defined(); }
void set_tangent(const Tensor& result, const Tensor& tangent) {
  if (result.defined() && tangent.defined()) {
    result._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  }
}

bool needs_gradient(const Tensor& t) { return t.defined() && t.requires_grad(); }

// Dtypes and devices that are not ours are ATen's with their derivatives.
bool is_for_aten(const Tensor& input) {
  const auto ours = [](c10::DeviceType type) {
    return type == c10::kCUDA || type == c10::kCPU || type == c10::kMeta;
  };
  return !is_kernel_dtype(input.scalar_type()) || !ours(input.device().type()) ||
         input.layout() != at::kStrided;
}

template <typename Op>
Tensor forward_autograd(const Tensor& input, const Tensor& weight,
                        const std::optional<Tensor>& bias_or_none, const Op& op) {
  if (is_for_aten(input)) {
    check_runs_on(op.algorithm, input);
    return op.aten_forward(input, weight, bias_or_none);
  }
  const Tensor bias = or_undefined(bias_or_none);
  Tensor output;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    output = op.forward(input, weight, bias_or_none);
  }
  if (at::GradMode::is_enabled() &&
      (needs_gradient(input) || needs_gradient(weight) || needs_gradient(bias))) {
    set_history({output}, Op::kName, gradients_of_output<Op>, {input, weight, bias},
                {input, weight}, settings_of(op));
  }
  if (has_tangent(input) || has_tangent(weight) || has_tangent(bias)) {
    const Tensor x = tangent_of(input), w = tangent_of(weight), b = tangent_of(bias);
    Tensor tangent;
    if (x.defined()) tangent = op.forward(x, primal_of(weight), given(b));
    if (w.defined()) {
      tangent =
          sum_of(tangent, op.forward(primal_of(input), w, x.defined() ? std::nullopt : given(b)));
    }
    if (!tangent.defined()) tangent = per_channel(b, Op::kDims).expand_as(output);
    set_tangent(output, tangent);
  }
  return output;
}

template <typename Op>
Tensor fused_autograd(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                      const FusedOptions& options, const Op& op) {
  const Tensor others[] = {or_undefined(bias), or_undefined(options.scale),
                           or_undefined(options.residual)};
  const auto any = [&](auto has) {
    return has(input) || has(weight) || std::any_of(std::begin(others), std::end(others), has);
  };
  if (is_for_aten(input) || any(has_tangent)) {
    return compose_fused(op, input, weight, bias, options, /*in_place=*/false);
  }
  Tensor output;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    output = op.fused(input, weight, bias, options);
  }
  if (at::GradMode::is_enabled() && any(needs_gradient)) {
    const bool by_result = is_known_by_result(options);
    const bool by_argument =
        !by_result && activation_named(options.activation) != Activation::kNone;
    const Tensor none;
    Settings settings = settings_of(op);
    settings.activation = options.activation;
    settings.residual_last = options.residual_last;
    settings.negative_slope = options.negative_slope;
    set_history(
        {output}, Op::kFusedName, gradients_of_fused<Op>,
        {input, weight, others[0], others[1], others[2]},
        {input, weight, others[1], by_argument ? others[0] : none,
         by_argument && !options.residual_last ? others[2] : none, by_result ? output : none},
        std::move(settings), /*last_is_result=*/true);
  }
  return output;
}

template <typename Op>
Gradients backward_autograd(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                            std::array<bool, 3> output_mask, const Op& op) {
  if (is_for_aten(input)) {
    check_runs_on(op.algorithm, input);
    return op.aten_backward(grad_output, input, weight, output_mask);
  }
  Gradients gradients;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    gradients = op.backward(grad_output, input, weight, output_mask);
  }
  const auto& [grad_input, grad_weight, grad_bias] = gradients;
  const bool any = output_mask[0] || output_mask[1] || output_mask[2];
  if (any && at::GradMode::is_enabled() &&
      (needs_gradient(grad_output) || needs_gradient(input) || needs_gradient(weight))) {
    set_history({grad_input, grad_weight, grad_bias}, Op::kBackwardName, gradients_of_gradients<Op>,
                {grad_output, input, weight}, {grad_output, input, weight}, settings_of(op));
  }
  if (has_tangent(grad_output) || has_tangent(input) || has_tangent(weight)) {
    const Tensor g = tangent_of(grad_output), x = tangent_of(input), w = tangent_of(weight);
    const Tensor grad = primal_of(grad_output), image = primal_of(input),
                 filter = primal_of(weight);
    Tensor of_input, of_weight, of_bias;
    if (g.defined()) {
      std::tie(of_input, of_weight, of_bias) = op.backward(g, image, filter, output_mask);
    }
    if (output_mask[0] && w.defined()) {
      of_input = sum_of(of_input, std::get<0>(op.backward(grad, image, w, {true, false, false})));
    }
    if (output_mask[1] && x.defined()) {
      of_weight =
          sum_of(of_weight, std::get<1>(op.backward(grad, x, filter, {false, true, false})));
    }
    set_tangent(grad_input, of_input);
    set_tangent(grad_weight, of_weight);
    set_tangent(grad_bias, of_bias);
  }
  return gradients;
}

template <int kDims>
Tensor conv_autograd(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                     c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                     c10::SymIntArrayRef dilation, c10::SymInt groups, std::string_view algorithm) {
  return forward_autograd(input, weight, bias,
                          Conv<kDims>(stride, padding, dilation, groups, algorithm));
}

template <int kDims>
Tensor conv_transpose_autograd(const Tensor& input, const Tensor& weight,
                               const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
                               c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                               c10::SymInt groups, c10::SymIntArrayRef dilation,
                               std::string_view algorithm) {
  return forward_autograd(
      input, weight, bias,
      ConvTranspose<kDims>(stride, padding, output_padding, groups, dilation, algorithm));
}

template <int kDims>
Tensor conv_fused_autograd(const Tensor& input, const Tensor& weight,
                           const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
                           c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                           c10::SymInt groups, const std::optional<Tensor>& scale,
                           const std::optional<Tensor>& residual, std::string_view activation,
                           bool residual_last, double negative_slope, std::string_view algorithm) {
  return fused_autograd(input, weight, bias,
                        {scale, residual, activation, residual_last, negative_slope},
                        Conv<kDims>(stride, padding, dilation, groups, algorithm));
}

template <int kDims>
Tensor conv_transpose_fused_autograd(
    const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, c10::SymIntArrayRef dilation, const std::optional<Tensor>& scale,
    const std::optional<Tensor>& residual, std::string_view activation, bool residual_last,
    double negative_slope, std::string_view algorithm) {
  return fused_autograd(
      input, weight, bias, {scale, residual, activation, residual_last, negative_slope},
      ConvTranspose<kDims>(stride, padding, output_padding, groups, dilation, algorithm));
}

template <int kDims>
Gradients conv_backward_autograd(const Tensor& grad_output, const Tensor& input,
                                 const Tensor& weight, c10::SymIntArrayRef stride,
                                 c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                                 c10::SymInt groups, std::array<bool, 3> output_mask,
                                 std::string_view algorithm) {
  return backward_autograd(grad_output, input, weight, output_mask,
                           Conv<kDims>(stride, padding, dilation, groups, algorithm));
}

template <int kDims>
Gradients conv_transpose_backward_autograd(const Tensor& grad_output, const Tensor& input,
                                           const Tensor& weight, c10::SymIntArrayRef stride,
                                           c10::SymIntArrayRef padding,
                                           c10::SymIntArrayRef output_padding, c10::SymInt groups,
                                           c10::SymIntArrayRef dilation,
                                           std::array<bool, 3> output_mask,
                                           std::string_view algorithm) {
  return backward_autograd(
      grad_output, input, weight, output_mask,
      ConvTranspose<kDims>(stride, padding, output_padding, groups, dilation, algorithm));
}

}  // namespace

TORCH_LIBRARY_IMPL(customconv, Autograd, m) {
  m.impl("conv2d", conv_autograd<2>);
  m.impl("conv2d_fused", conv_fused_autograd<2>);
  m.impl("conv2d_backward", conv_backward_autograd<2>);
  m.impl("conv_transpose2d", conv_transpose_autograd<2>);
  m.impl("conv_transpose2d_fused", conv_transpose_fused_autograd<2>);
  m.impl("conv_transpose2d_backward", conv_transpose_backward_autograd<2>);
  m.impl("conv3d", conv_autograd<3>);
  m.impl("conv3d_fused", conv_fused_autograd<3>);
  m.impl("conv3d_backward", conv_backward_autograd<3>);
  m.impl("conv_transpose3d", conv_transpose_autograd<3>);
  m.impl("conv_transpose3d_fused", conv_transpose_fused_autograd<3>);
  m.impl("conv_transpose3d_backward", conv_transpose_backward_autograd<3>);
}

}  // namespace customconv::torch_layer
