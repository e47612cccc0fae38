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

namespace {

// An operator of images or of volumes.
template <int kDims, typename Signature>
auto typed_operator(const char* of_images, const char* of_volumes) {
  static_assert(kDims == 2 || kDims == 3);
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(kDims == 2 ? of_images : of_volumes, "")
      .typed<Signature>();
}

}  // namespace

template <int kDims>
at::Tensor conv(const at::Tensor& input, const at::Tensor& weight,
                const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                const c10::SymInt& groups, std::string_view algorithm) {
  using Signature = at::Tensor(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, c10::SymIntArrayRef,
      c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt, std::string_view);
  static const auto op =
      typed_operator<kDims, Signature>("customconv::conv2d", "customconv::conv3d");
  return op.call(input, weight, bias, stride, padding, dilation, groups, algorithm);
}

template <int kDims>
at::Tensor conv_fused(const at::Tensor& input, const at::Tensor& weight,
                      const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                      c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                      const c10::SymInt& groups, const FusedOptions& options,
                      std::string_view algorithm) {
  using Signature = at::Tensor(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, c10::SymIntArrayRef,
      c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt, const std::optional<at::Tensor>&,
      const std::optional<at::Tensor>&, std::string_view, bool, double, std::string_view);
  static const auto op =
      typed_operator<kDims, Signature>("customconv::conv2d_fused", "customconv::conv3d_fused");
  return op.call(input, weight, bias, stride, padding, dilation, groups, options.scale,
                 options.residual, options.activation, options.residual_last,
                 options.negative_slope, algorithm);
}

template <int kDims>
Gradients conv_backward(const at::Tensor& grad_output, const at::Tensor& input,
                        const at::Tensor& weight, c10::SymIntArrayRef stride,
                        c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                        const c10::SymInt& groups, std::array<bool, 3> output_mask,
                        std::string_view algorithm) {
  using Signature = Gradients(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymIntArrayRef,
                              c10::SymInt, std::array<bool, 3>, std::string_view);
  static const auto op = typed_operator<kDims, Signature>("customconv::conv2d_backward",
                                                          "customconv::conv3d_backward");
  return op.call(grad_output, input, weight, stride, padding, dilation, groups, output_mask,
                 algorithm);
}

template <int kDims>
at::Tensor conv_transpose(const at::Tensor& input, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                          c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                          const c10::SymInt& groups, c10::SymIntArrayRef dilation,
                          std::string_view algorithm) {
  using Signature = at::Tensor(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, c10::SymIntArrayRef,
      c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt, c10::SymIntArrayRef, std::string_view);
  static const auto op = typed_operator<kDims, Signature>("customconv::conv_transpose2d",
                                                          "customconv::conv_transpose3d");
  return op.call(input, weight, bias, stride, padding, output_padding, groups, dilation, algorithm);
}

template <int kDims>
at::Tensor conv_transpose_fused(const at::Tensor& input, const at::Tensor& weight,
                                const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                                c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                                const c10::SymInt& groups, c10::SymIntArrayRef dilation,
                                const FusedOptions& options, std::string_view algorithm) {
  using Signature = at::Tensor(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, c10::SymIntArrayRef,
      c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt, c10::SymIntArrayRef,
      const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, std::string_view, bool,
      double, std::string_view);
  static const auto op = typed_operator<kDims, Signature>("customconv::conv_transpose2d_fused",
                                                          "customconv::conv_transpose3d_fused");
  return op.call(input, weight, bias, stride, padding, output_padding, groups, dilation,
                 options.scale, options.residual, options.activation, options.residual_last,
                 options.negative_slope, algorithm);
}

template <int kDims>
Gradients conv_transpose_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                  const at::Tensor& weight, c10::SymIntArrayRef stride,
                                  c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                                  const c10::SymInt& groups, c10::SymIntArrayRef dilation,
                                  std::array<bool, 3> output_mask, std::string_view algorithm) {
  using Signature =
      Gradients(const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef,
                c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt, c10::SymIntArrayRef,
                std::array<bool, 3>, std::string_view);
  static const auto op = typed_operator<kDims, Signature>("customconv::conv_transpose2d_backward",
                                                          "customconv::conv_transpose3d_backward");
  return op.call(grad_output, input, weight, stride, padding, output_padding, groups, dilation,
                 output_mask, algorithm);
}

CUSTOMCONV_FOR_DIMS(conv)
CUSTOMCONV_FOR_DIMS(conv_fused)
CUSTOMCONV_FOR_DIMS(conv_backward)
CUSTOMCONV_FOR_DIMS(conv_transpose)
CUSTOMCONV_FOR_DIMS(conv_transpose_fused)
CUSTOMCONV_FOR_DIMS(conv_transpose_backward)

namespace {

// String padding, as ATen does it: what "same" adds on one side only is put there first.
template <int kDims>
at::Tensor conv_padding(const at::Tensor& input, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                        std::string_view padding, at::IntArrayRef dilation, int64_t groups,
                        std::string_view algorithm) {
  const auto all = [](at::IntArrayRef values, auto condition) {
    return (values.size() == 1 || values.size() == kDims) &&
           std::all_of(values.begin(), values.end(), condition);
  };
  const bool well_formed = weight.dim() == kDims + 2 &&
                           (input.dim() == kDims + 1 || input.dim() == kDims + 2) &&
                           all(dilation, [](int64_t v) { return v > 0; });
  const bool valid = padding == "valid";
  const bool same = padding == "same" && all(stride, [](int64_t v) { return v == 1; });
  if (!well_formed || !(valid || same)) {
    // ATen raises, in its own words.
    if constexpr (kDims == 2) {
      return at::conv2d(input, weight, bias, stride, padding, dilation, groups);
    } else {
      return at::conv3d(input, weight, bias, stride, padding, dilation, groups);
    }
  }
  std::array<c10::SymInt, kDims> before;
  // What is missing on the other side, as constant_pad_nd takes it: the last dimension comes first.
  std::array<c10::SymInt, 2 * kDims> excess;
  bool pads = false;
  for (size_t i = 0; same && i < kDims; ++i) {
    const c10::SymInt taps = weight.sym_size(static_cast<int64_t>(i) + 2);
    const c10::SymInt total = (taps - 1) * dilation[i % dilation.size()];
    before[i] = total / 2;
    c10::SymInt& missing = excess[2 * (kDims - 1 - i) + 1];
    missing = total - before[i] * 2;
    pads = pads || missing != 0;
  }
  const at::Tensor padded = pads ? at::constant_pad_nd_symint(input, excess, 0) : input;
  return conv<kDims>(padded, weight, bias, c10::fromIntArrayRefSlow(stride), before,
                     c10::fromIntArrayRefSlow(dilation), groups, algorithm);
}

// The operator for callers who write integers beside lists: PyTorch expands an int to a list for
// int[2], but not for SymInt[2].
template <int kDims>
at::Tensor conv_int(const at::Tensor& input, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                    at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                    std::optional<std::string_view> algorithm) {
  return conv<kDims>(input, weight, bias, c10::fromIntArrayRefSlow(stride),
                     c10::fromIntArrayRefSlow(padding), c10::fromIntArrayRefSlow(dilation), groups,
                     algorithm.value_or("auto"));
}

template <int kDims>
std::array<c10::SymInt, kDims> repeated(const c10::SymInt& v) {
  std::array<c10::SymInt, kDims> all;
  all.fill(v);
  return all;
}

// The operator for plain integers, which may be symbolic while a graph is traced.
template <int kDims>
at::Tensor conv_symint(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::SymInt stride,
                       c10::SymInt padding, c10::SymInt dilation, c10::SymInt groups,
                       std::string_view algorithm) {
  return conv<kDims>(input, weight, bias, repeated<kDims>(stride), repeated<kDims>(padding),
                     repeated<kDims>(dilation), groups, algorithm);
}

// Every backend that has no kernel of ours. `of_images`: whether an output or an input gradient is
// asked for, not that of meta tensors, which have no numbers.
void check_and_count(std::string_view algorithm, const at::Tensor& input, bool of_images = true) {
  check_runs_on(algorithm, input);
  const bool asked = algorithm_named(algorithm) == Algorithm::kAten;
  const Fallback why = asked ? Fallback::kAsked : Fallback::kDevice;
  of_images && !input.is_meta() ? fall_back(why) : count(why);
}

template <int kDims>
at::Tensor conv_aten(const at::Tensor& input, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                     c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, c10::SymInt groups,
                     std::string_view algorithm) {
  check_and_count(algorithm, input);
  return aten_conv<kDims>(input, weight, bias, stride, padding, dilation, groups);
}

template <int kDims>
Gradients conv_backward_aten(const at::Tensor& grad_output, const at::Tensor& input,
                             const at::Tensor& weight, c10::SymIntArrayRef stride,
                             c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                             c10::SymInt groups, std::array<bool, 3> output_mask,
                             std::string_view algorithm) {
  check_and_count(algorithm, input, output_mask[0]);
  return aten_conv_backward<kDims>(grad_output, input, weight, stride, padding, dilation, groups,
                                   output_mask);
}

template <int kDims>
at::Tensor conv_transpose_int(const at::Tensor& input, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                              at::IntArrayRef padding, at::IntArrayRef output_padding,
                              int64_t groups, at::IntArrayRef dilation,
                              std::optional<std::string_view> algorithm) {
  return conv_transpose<kDims>(input, weight, bias, c10::fromIntArrayRefSlow(stride),
                               c10::fromIntArrayRefSlow(padding),
                               c10::fromIntArrayRefSlow(output_padding), groups,
                               c10::fromIntArrayRefSlow(dilation), algorithm.value_or("auto"));
}

template <int kDims>
at::Tensor conv_transpose_symint(const at::Tensor& input, const at::Tensor& weight,
                                 const std::optional<at::Tensor>& bias, c10::SymInt stride,
                                 c10::SymInt padding, c10::SymInt output_padding,
                                 c10::SymInt groups, c10::SymInt dilation,
                                 std::string_view algorithm) {
  return conv_transpose<kDims>(input, weight, bias, repeated<kDims>(stride),
                               repeated<kDims>(padding), repeated<kDims>(output_padding), groups,
                               repeated<kDims>(dilation), algorithm);
}

template <int kDims>
at::Tensor conv_transpose_aten(const at::Tensor& input, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                               c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                               c10::SymInt groups, c10::SymIntArrayRef dilation,
                               std::string_view algorithm) {
  check_and_count(algorithm, input);
  return aten_conv_transpose<kDims>(input, weight, bias, stride, padding, output_padding, groups,
                                    dilation);
}

template <int kDims>
Gradients conv_transpose_backward_aten(const at::Tensor& grad_output, const at::Tensor& input,
                                       const at::Tensor& weight, c10::SymIntArrayRef stride,
                                       c10::SymIntArrayRef padding,
                                       c10::SymIntArrayRef output_padding, c10::SymInt groups,
                                       c10::SymIntArrayRef dilation,
                                       std::array<bool, 3> output_mask,
                                       std::string_view algorithm) {
  check_and_count(algorithm, input, output_mask[0]);
  return aten_conv_transpose_backward<kDims>(grad_output, input, weight, stride, padding,
                                             output_padding, groups, dilation, output_mask);
}

// The same for plain integers, as conv_int.
template <int kDims>
at::Tensor conv_fused_int(const at::Tensor& input, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                          at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                          const std::optional<at::Tensor>& scale,
                          const std::optional<at::Tensor>& residual, std::string_view activation,
                          bool residual_last, double negative_slope,
                          std::optional<std::string_view> algorithm) {
  return conv_fused<kDims>(input, weight, bias, c10::fromIntArrayRefSlow(stride),
                           c10::fromIntArrayRefSlow(padding), c10::fromIntArrayRefSlow(dilation),
                           groups, {scale, residual, activation, residual_last, negative_slope},
                           algorithm.value_or("auto"));
}

// Every backend that has no kernel of ours, in place; and vmap, not in place.
template <int kDims, bool in_place>
at::Tensor conv_fused_composite(const at::Tensor& input, const at::Tensor& weight,
                                const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                                c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                                c10::SymInt groups, const std::optional<at::Tensor>& scale,
                                const std::optional<at::Tensor>& residual,
                                std::string_view activation, bool residual_last,
                                double negative_slope, std::string_view algorithm) {
  return compose_fused(Conv<kDims>(stride, padding, dilation, groups, algorithm), input, weight,
                       bias, {scale, residual, activation, residual_last, negative_slope},
                       in_place);
}

template <int kDims>
at::Tensor conv_transpose_fused_int(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef output_padding, int64_t groups,
    at::IntArrayRef dilation, const std::optional<at::Tensor>& scale,
    const std::optional<at::Tensor>& residual, std::string_view activation, bool residual_last,
    double negative_slope, std::optional<std::string_view> algorithm) {
  return conv_transpose_fused<kDims>(
      input, weight, bias, c10::fromIntArrayRefSlow(stride), c10::fromIntArrayRefSlow(padding),
      c10::fromIntArrayRefSlow(output_padding), groups, c10::fromIntArrayRefSlow(dilation),
      {scale, residual, activation, residual_last, negative_slope}, algorithm.value_or("auto"));
}

template <int kDims, bool in_place>
at::Tensor conv_transpose_fused_composite(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, c10::SymIntArrayRef dilation, const std::optional<at::Tensor>& scale,
    const std::optional<at::Tensor>& residual, std::string_view activation, bool residual_last,
    double negative_slope, std::string_view algorithm) {
  return compose_fused(
      ConvTranspose<kDims>(stride, padding, output_padding, groups, dilation, algorithm), input,
      weight, bias, {scale, residual, activation, residual_last, negative_slope}, in_place);
}

// The overloads that are made of others.
void decompose(torch::Library& m) {
  m.impl("conv2d.int", conv_int<2>);
  m.impl("conv2d.symint", conv_symint<2>);
  m.impl("conv2d.padding", conv_padding<2>);
  m.impl("conv2d_fused.int", conv_fused_int<2>);
  m.impl("conv_transpose2d.int", conv_transpose_int<2>);
  m.impl("conv_transpose2d.symint", conv_transpose_symint<2>);
  m.impl("conv_transpose2d_fused.int", conv_transpose_fused_int<2>);
  m.impl("conv3d.int", conv_int<3>);
  m.impl("conv3d.symint", conv_symint<3>);
  m.impl("conv3d.padding", conv_padding<3>);
  m.impl("conv3d_fused.int", conv_fused_int<3>);
  m.impl("conv_transpose3d.int", conv_transpose_int<3>);
  m.impl("conv_transpose3d.symint", conv_transpose_symint<3>);
  m.impl("conv_transpose3d_fused.int", conv_transpose_fused_int<3>);
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
  m.impl("conv2d_fused", conv_fused_composite<2, false>);
  m.impl("conv_transpose2d_fused", conv_transpose_fused_composite<2, false>);
  m.impl("conv3d_fused", conv_fused_composite<3, false>);
  m.impl("conv_transpose3d_fused", conv_transpose_fused_composite<3, false>);
}

TORCH_LIBRARY_IMPL(customconv, CompositeExplicitAutograd, m) {
  m.impl("conv2d", conv_aten<2>);
  m.impl("conv2d_fused", conv_fused_composite<2, true>);
  m.impl("conv2d_backward", conv_backward_aten<2>);
  m.impl("conv_transpose2d", conv_transpose_aten<2>);
  m.impl("conv_transpose2d_fused", conv_transpose_fused_composite<2, true>);
  m.impl("conv_transpose2d_backward", conv_transpose_backward_aten<2>);
  m.impl("conv3d", conv_aten<3>);
  m.impl("conv3d_fused", conv_fused_composite<3, true>);
  m.impl("conv3d_backward", conv_backward_aten<3>);
  m.impl("conv_transpose3d", conv_transpose_aten<3>);
  m.impl("conv_transpose3d_fused", conv_transpose_fused_composite<3, true>);
  m.impl("conv_transpose3d_backward", conv_transpose_backward_aten<3>);
}

}  // namespace customconv::torch_layer
