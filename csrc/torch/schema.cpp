// The operators' schemas, and what they decompose to or run on where no CUDA kernel of ours does.
#include <torch/library.h>

#include <algorithm>

#include "torch/aten.h"
#include "torch/batch_invariance.h"
#include "torch/core.h"
#include "torch/fused.h"
#include "torch/operator.h"
#include "torch/ops.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

at::Tensor conv2d(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                  c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                  const c10::SymInt& groups, std::string_view algorithm) {
  using Signature = at::Tensor(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, c10::SymIntArrayRef,
      c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt, std::string_view);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("customconv::conv2d", "").typed<Signature>();
  return op.call(input, weight, bias, stride, padding, dilation, groups, algorithm);
}

at::Tensor conv2d_fused(const at::Tensor& input, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                        c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                        const c10::SymInt& groups, const FusedOptions& options,
                        std::string_view algorithm) {
  using Signature = at::Tensor(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, c10::SymIntArrayRef,
      c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt, const std::optional<at::Tensor>&,
      const std::optional<at::Tensor>&, std::string_view, bool, double, std::string_view);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("customconv::conv2d_fused", "")
                             .typed<Signature>();
  return op.call(input, weight, bias, stride, padding, dilation, groups, options.scale,
                 options.residual, options.activation, options.residual_last,
                 options.negative_slope, algorithm);
}

Gradients conv2d_backward(const at::Tensor& grad_output, const at::Tensor& input,
                          const at::Tensor& weight, c10::SymIntArrayRef stride,
                          c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                          const c10::SymInt& groups, std::array<bool, 3> output_mask,
                          std::string_view algorithm) {
  using Signature = Gradients(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymIntArrayRef,
                              c10::SymInt, std::array<bool, 3>, std::string_view);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("customconv::conv2d_backward", "")
                             .typed<Signature>();
  return op.call(grad_output, input, weight, stride, padding, dilation, groups, output_mask,
                 algorithm);
}

at::Tensor conv_transpose2d(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                            c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                            const c10::SymInt& groups, c10::SymIntArrayRef dilation,
                            std::string_view algorithm) {
  using Signature = at::Tensor(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, c10::SymIntArrayRef,
      c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt, c10::SymIntArrayRef, std::string_view);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("customconv::conv_transpose2d", "")
                             .typed<Signature>();
  return op.call(input, weight, bias, stride, padding, output_padding, groups, dilation, algorithm);
}

at::Tensor conv_transpose2d_fused(const at::Tensor& input, const at::Tensor& weight,
                                  const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                                  c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                                  const c10::SymInt& groups, c10::SymIntArrayRef dilation,
                                  const FusedOptions& options, std::string_view algorithm) {
  using Signature = at::Tensor(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, c10::SymIntArrayRef,
      c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt, c10::SymIntArrayRef,
      const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, std::string_view, bool,
      double, std::string_view);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("customconv::conv_transpose2d_fused", "")
                             .typed<Signature>();
  return op.call(input, weight, bias, stride, padding, output_padding, groups, dilation,
                 options.scale, options.residual, options.activation, options.residual_last,
                 options.negative_slope, algorithm);
}

Gradients conv_transpose2d_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                    const at::Tensor& weight, c10::SymIntArrayRef stride,
                                    c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                                    const c10::SymInt& groups, c10::SymIntArrayRef dilation,
                                    std::array<bool, 3> output_mask, std::string_view algorithm) {
  using Signature =
      Gradients(const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef,
                c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt, c10::SymIntArrayRef,
                std::array<bool, 3>, std::string_view);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("customconv::conv_transpose2d_backward", "")
                             .typed<Signature>();
  return op.call(grad_output, input, weight, stride, padding, output_padding, groups, dilation,
                 output_mask, algorithm);
}

namespace {

// String padding, as ATen does it: what "same" adds on one side only is put there first.
at::Tensor conv2d_padding(const at::Tensor& input, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                          std::string_view padding, at::IntArrayRef dilation, int64_t groups,
                          std::string_view algorithm) {
  const auto all = [](at::IntArrayRef values, auto condition) {
    return (values.size() == 1 || values.size() == 2) &&
           std::all_of(values.begin(), values.end(), condition);
  };
  const bool well_formed = weight.dim() == 4 && (input.dim() == 3 || input.dim() == 4) &&
                           all(dilation, [](int64_t v) { return v > 0; });
  const bool valid = padding == "valid";
  const bool same = padding == "same" && all(stride, [](int64_t v) { return v == 1; });
  if (!well_formed || !(valid || same)) {
    // ATen raises, in its own words.
    return at::conv2d(input, weight, bias, stride, padding, dilation, groups);
  }
  std::array<c10::SymInt, 2> before = {0, 0};
  std::array<c10::SymInt, 2> excess = {0, 0};  // what is missing below and to the right
  for (size_t i = 0; same && i < 2; ++i) {
    const c10::SymInt taps = weight.sym_size(static_cast<int64_t>(i) + 2);
    const c10::SymInt total = (taps - 1) * dilation[i % dilation.size()];
    before[i] = total / 2;
    excess[i] = total - before[i] * 2;
  }
  at::Tensor padded = input;
  if (excess[0] != 0 || excess[1] != 0) {
    padded = at::constant_pad_nd_symint(input, {0, excess[1], 0, excess[0]}, 0);
  }
  return conv2d(padded, weight, bias, c10::fromIntArrayRefSlow(stride), before,
                c10::fromIntArrayRefSlow(dilation), groups, algorithm);
}

// The operator for callers who write integers beside lists: PyTorch expands an int to a list for
// int[2], but not for SymInt[2].
at::Tensor conv2d_int(const at::Tensor& input, const at::Tensor& weight,
                      const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                      at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                      std::optional<std::string_view> algorithm) {
  return conv2d(input, weight, bias, c10::fromIntArrayRefSlow(stride),
                c10::fromIntArrayRefSlow(padding), c10::fromIntArrayRefSlow(dilation), groups,
                algorithm.value_or("auto"));
}

std::array<c10::SymInt, 2> pair(const c10::SymInt& v) { return {v, v}; }

// The operator for plain integers, which may be symbolic while a graph is traced.
at::Tensor conv2d_symint(const at::Tensor& input, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias, c10::SymInt stride,
                         c10::SymInt padding, c10::SymInt dilation, c10::SymInt groups,
                         std::string_view algorithm) {
  return conv2d(input, weight, bias, pair(stride), pair(padding), pair(dilation), groups,
                algorithm);
}

// Every backend that has no kernel of ours. `of_images`: whether an output or an input gradient is
// asked for, not that of meta tensors, which have no numbers.
void check_and_count(std::string_view algorithm, const at::Tensor& input, bool of_images = true) {
  check_runs_on(algorithm, input);
  const bool asked = algorithm_named(algorithm) == Algorithm::kAten;
  const Fallback why = asked ? Fallback::kAsked : Fallback::kDevice;
  of_images && !input.is_meta() ? fall_back(why) : count(why);
}

at::Tensor conv2d_aten(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                       c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       c10::SymInt groups, std::string_view algorithm) {
  check_and_count(algorithm, input);
  return aten_conv2d(input, weight, bias, stride, padding, dilation, groups);
}

Gradients conv2d_backward_aten(const at::Tensor& grad_output, const at::Tensor& input,
                               const at::Tensor& weight, c10::SymIntArrayRef stride,
                               c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                               c10::SymInt groups, std::array<bool, 3> output_mask,
                               std::string_view algorithm) {
  check_and_count(algorithm, input, output_mask[0]);
  return aten_conv2d_backward(grad_output, input, weight, stride, padding, dilation, groups,
                              output_mask);
}

at::Tensor conv_transpose2d_int(const at::Tensor& input, const at::Tensor& weight,
                                const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                at::IntArrayRef padding, at::IntArrayRef output_padding,
                                int64_t groups, at::IntArrayRef dilation,
                                std::optional<std::string_view> algorithm) {
  return conv_transpose2d(input, weight, bias, c10::fromIntArrayRefSlow(stride),
                          c10::fromIntArrayRefSlow(padding),
                          c10::fromIntArrayRefSlow(output_padding), groups,
                          c10::fromIntArrayRefSlow(dilation), algorithm.value_or("auto"));
}

at::Tensor conv_transpose2d_symint(const at::Tensor& input, const at::Tensor& weight,
                                   const std::optional<at::Tensor>& bias, c10::SymInt stride,
                                   c10::SymInt padding, c10::SymInt output_padding,
                                   c10::SymInt groups, c10::SymInt dilation,
                                   std::string_view algorithm) {
  return conv_transpose2d(input, weight, bias, pair(stride), pair(padding), pair(output_padding),
                          groups, pair(dilation), algorithm);
}

at::Tensor conv_transpose2d_aten(const at::Tensor& input, const at::Tensor& weight,
                                 const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                                 c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                                 c10::SymInt groups, c10::SymIntArrayRef dilation,
                                 std::string_view algorithm) {
  check_and_count(algorithm, input);
  return aten_conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups,
                               dilation);
}

Gradients conv_transpose2d_backward_aten(const at::Tensor& grad_output, const at::Tensor& input,
                                         const at::Tensor& weight, c10::SymIntArrayRef stride,
                                         c10::SymIntArrayRef padding,
                                         c10::SymIntArrayRef output_padding, c10::SymInt groups,
                                         c10::SymIntArrayRef dilation,
                                         std::array<bool, 3> output_mask,
                                         std::string_view algorithm) {
  check_and_count(algorithm, input, output_mask[0]);
  return aten_conv_transpose2d_backward(grad_output, input, weight, stride, padding, output_padding,
                                        groups, dilation, output_mask);
}

// The same for plain integers, as conv2d_int.
at::Tensor conv2d_fused_int(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                            at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                            const std::optional<at::Tensor>& scale,
                            const std::optional<at::Tensor>& residual, std::string_view activation,
                            bool residual_last, double negative_slope,
                            std::optional<std::string_view> algorithm) {
  return conv2d_fused(input, weight, bias, c10::fromIntArrayRefSlow(stride),
                      c10::fromIntArrayRefSlow(padding), c10::fromIntArrayRefSlow(dilation), groups,
                      {scale, residual, activation, residual_last, negative_slope},
                      algorithm.value_or("auto"));
}

// Every backend that has no kernel of ours, in place; and vmap, not in place.
template <bool in_place>
at::Tensor conv2d_fused_composite(const at::Tensor& input, const at::Tensor& weight,
                                  const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                                  c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                                  c10::SymInt groups, const std::optional<at::Tensor>& scale,
                                  const std::optional<at::Tensor>& residual,
                                  std::string_view activation, bool residual_last,
                                  double negative_slope, std::string_view algorithm) {
  return compose_fused(Conv2d(stride, padding, dilation, groups, algorithm), input, weight, bias,
                       {scale, residual, activation, residual_last, negative_slope}, in_place);
}

at::Tensor conv_transpose2d_fused_int(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef output_padding, int64_t groups,
    at::IntArrayRef dilation, const std::optional<at::Tensor>& scale,
    const std::optional<at::Tensor>& residual, std::string_view activation, bool residual_last,
    double negative_slope, std::optional<std::string_view> algorithm) {
  return conv_transpose2d_fused(
      input, weight, bias, c10::fromIntArrayRefSlow(stride), c10::fromIntArrayRefSlow(padding),
      c10::fromIntArrayRefSlow(output_padding), groups, c10::fromIntArrayRefSlow(dilation),
      {scale, residual, activation, residual_last, negative_slope}, algorithm.value_or("auto"));
}

template <bool in_place>
at::Tensor conv_transpose2d_fused_composite(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, c10::SymIntArrayRef dilation, const std::optional<at::Tensor>& scale,
    const std::optional<at::Tensor>& residual, std::string_view activation, bool residual_last,
    double negative_slope, std::string_view algorithm) {
  return compose_fused(
      ConvTranspose2d(stride, padding, output_padding, groups, dilation, algorithm), input, weight,
      bias, {scale, residual, activation, residual_last, negative_slope}, in_place);
}

// The overloads that are made of others.
void decompose(torch::Library& m) {
  m.impl("conv2d.int", conv2d_int);
  m.impl("conv2d.symint", conv2d_symint);
  m.impl("conv2d.padding", conv2d_padding);
  m.impl("conv2d_fused.int", conv2d_fused_int);
  m.impl("conv_transpose2d.int", conv_transpose2d_int);
  m.impl("conv_transpose2d.symint", conv_transpose2d_symint);
  m.impl("conv_transpose2d_fused.int", conv_transpose2d_fused_int);
}

}  // namespace

TORCH_LIBRARY(customconv, m) {
#define CUSTOMCONV_OPERATOR(schema) m.def(schema, {at::Tag::pt2_compliant_tag});
#include "torch/operators.def"
#undef CUSTOMCONV_OPERATOR
}

TORCH_LIBRARY_IMPL(customconv, CompositeImplicitAutograd, m) { decompose(m); }

// A graph that is traced under autocast holds the casts then, too. Otherwise it would hold these
// overloads, without casts.
TORCH_LIBRARY_IMPL(customconv, AutocastCUDA, m) { decompose(m); }
TORCH_LIBRARY_IMPL(customconv, AutocastCPU, m) { decompose(m); }

// vmap looks for a rule of its own before it decomposes an operator. Rules for what is not composed
// are in vmap.cpp.
TORCH_LIBRARY_IMPL(customconv, FuncTorchBatched, m) {
  decompose(m);
  m.impl("conv2d_fused", conv2d_fused_composite<false>);
  m.impl("conv_transpose2d_fused", conv_transpose2d_fused_composite<false>);
}

TORCH_LIBRARY_IMPL(customconv, CompositeExplicitAutograd, m) {
  m.impl("conv2d", conv2d_aten);
  m.impl("conv2d_fused", conv2d_fused_composite<true>);
  m.impl("conv2d_backward", conv2d_backward_aten);
  m.impl("conv_transpose2d", conv_transpose2d_aten);
  m.impl("conv_transpose2d_fused", conv_transpose2d_fused_composite<true>);
  m.impl("conv_transpose2d_backward", conv_transpose2d_backward_aten);
}

}  // namespace customconv::torch_layer
