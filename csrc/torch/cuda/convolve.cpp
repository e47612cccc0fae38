#include "torch/cuda/convolve.h"

#include <ATen/cuda/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>

#include "torch/aten.h"
#include "torch/batch_invariance.h"
#include "torch/cuda/bias.h"
#include "torch/cuda/decide.h"
#include "torch/cuda/run.h"
#include "torch/fused.h"
#include "torch/operator.h"

namespace customconv::torch_layer {

namespace {

using at::Tensor;

Tensor empty_like(const Tensor& like, at::IntArrayRef sizes, at::MemoryFormat format) {
  return at::detail::empty_cuda(sizes, like.scalar_type(), like.device(), format);
}

// The memory of a tensor that is only read: one that shares it until it is written goes on sharing.
void* read_only(const Tensor& tensor) { return const_cast<void*>(tensor.const_data_ptr()); }

// A call that kernels of ours may compute, or why it is PyTorch's from the start: by choice,
// because only another argument is on CUDA (PyTorch raises), because the device is of an
// architecture that was not built for, or by its arguments.
OrFallback<Convolution> described(Algorithm wanted, const Tensor& input, const Tensor& weight,
                                  const std::optional<Tensor>& bias, const Geometry& geometry,
                                  bool tf32, std::optional<at::MemoryFormat> format = {}) {
  if (wanted == Algorithm::kAten) return Fallback::kAsked;
  if (!input.is_cuda()) return Fallback::kDevice;
  if (has_kernels_for(input.get_device())) {
    return describe(input, weight, bias, geometry, tf32, format);
  }
  TORCH_CHECK(wanted == Algorithm::kAuto, "algorithm '", to_string(wanted), "' cannot run on ",
              input.device(), ": ", customconv_why_no_kernels(input.get_device()));
  return Fallback::kArchitecture;
}

Decision decided_for(const Convolution& conv, const ConvProblem& problem, Algorithm wanted,
                     bool prefer = false) {
  return decide_on(conv.input.get_device(), {problem, layout_of(conv.format), wanted, prefer});
}

bool is_atens(const Decision& decision) { return decision.plan.family == FamilyId::kAten; }

Tensor copied_if(bool copies, const Tensor& t, at::MemoryFormat format) {
  return copies ? dense_and_aligned(t, format) : t;
}

// The input as the plan reads it. A transposed convolution's must lie in its memory format.
Tensor input_of(const Convolution& conv, const Decision& decision) {
  return conv.transposed
             ? copied_if(decision.copies.y, conv.input.contiguous(conv.format), conv.format)
             : copied_if(decision.copies.x, conv.input, conv.format);
}

void launch(Pass pass, const Decision& decision, const Operands& operands, const Tensor& result,
            const std::optional<Tensor>& bias = {}) {
  run(decision.problem, decision.plan, operands, result, bias);
  count(pass, decision.plan.family);
}

// Writes the output by a plan of ours: of a transposed convolution by the kernels of an input
// gradient.
void write_output(const Convolution& conv, const Decision& decision,
                  const std::optional<Tensor>& bias, const FusedOptions& options,
                  const StatisticsParts& statistics, const Tensor& output) {
  const ConvProblem& problem = decision.problem;
  const ConvPlan& plan = decision.plan;
  const Tensor input = input_of(conv, decision);
  const Tensor weight = copied_if(decision.copies.w, conv.weight, conv.format);
  Operands operands;
  operands.*(conv.transposed ? &Operands::y : &Operands::x) = read_only(input);
  operands.w = read_only(weight);
  operands.*(conv.transposed ? &Operands::x : &Operands::y) = output.mutable_data_ptr();
  std::vector<Tensor> dense;  // lives until the launch
  Epilogue& epilogue = operands.epilogue;
  epilogue.statistics = statistics;
  const bool has_scale = options.scale && options.scale->defined();
  epilogue.float32_vectors = (problem.has_bias && is_wide(*bias, conv.input)) ||
                             (has_scale && is_wide(*options.scale, conv.input));
  const auto data_of = [&](const Tensor& values) {
    const bool converts = epilogue.float32_vectors && values.scalar_type() != at::kFloat;
    if (!converts && values.is_contiguous()) return values.const_data_ptr();
    dense.push_back(converts ? values.to(at::kFloat).contiguous() : values.contiguous());
    return dense.back().const_data_ptr();
  };
  if (problem.has_bias) epilogue.bias = data_of(*bias);
  if (plan.fuses) {
    if (has_scale) epilogue.scale = data_of(*options.scale);
    if (problem.has_residual) epilogue.residual = options.residual->const_data_ptr();
    epilogue.residual_last = options.residual_last;
    epilogue.activation = activation_named(options.activation);
    epilogue.negative_slope = static_cast<float>(options.negative_slope);
  }
  launch(Pass::kFprop, decision, operands, output, bias);
}

const char* fused_name(const Geometry& geometry) {
  if (geometry.dims == 3) return geometry.transposed ? ConvTranspose<3>::kFused : Conv<3>::kFused;
  return geometry.transposed ? ConvTranspose<2>::kFused : Conv<2>::kFused;
}

Tensor output_of(const Convolution& conv, const Decision& decision,
                 const std::optional<Tensor>& bias, const FusedOptions& options = {},
                 const StatisticsParts& statistics = {}) {
  const Tensor output = empty_like(conv.input, conv.output_sizes(), conv.format);
  write_output(conv, decision, bias, options, statistics, output);
  return conv.batched ? output : output.squeeze(0);
}

Tensor batched(const Convolution& conv, const Tensor& t) {
  return conv.batched ? t : t.unsqueeze(0);
}

// Whether a residual lies as the output will. Another one is added by PyTorch, which need not copy
// it, as kernels would have to.
bool lies_as_output(const Convolution& conv, const Tensor& residual) {
  if (residual.layout() != at::kStrided || !is_aligned(residual)) return false;
  const Tensor lying = batched(conv, residual);
  return strides_match(conv.output_shape(), strides_of(lying), layout_of(conv.format));
}

// Whether a tensor is as the convolution's output is, of these sizes.
bool is_as_output(const Convolution& conv, const Tensor& t, at::IntArrayRef sizes) {
  return t.layout() == at::kStrided && t.scalar_type() == conv.input.scalar_type() &&
         t.device() == conv.input.device() && t.sizes() == sizes;
}

template <int kDims>
Gradients aten_gradients(const Convolution& conv, const Tensor& grad, const Geometry& g,
                         std::array<bool, 3> mask) {
  const auto stride = c10::fromIntArrayRefSlow(g.stride);
  const auto padding = c10::fromIntArrayRefSlow(g.padding);
  const auto dilation = c10::fromIntArrayRefSlow(g.dilation);
  if (!g.transposed) {
    return aten_conv_backward<kDims>(grad, conv.input, conv.weight, stride, padding, dilation,
                                     g.groups, mask);
  }
  return aten_conv_transpose_backward<kDims>(grad, conv.input, conv.weight, stride, padding,
                                             c10::fromIntArrayRefSlow(g.output_padding), g.groups,
                                             dilation, mask);
}

// Adds the gradients of input and weight that the mask asks for, by PyTorch.
void add_aten_gradients(const Convolution& conv, const Tensor& grad, const Geometry& g,
                        std::array<bool, 3> mask, Fallback why, Gradients& gradients) {
  if (!mask[0] && !mask[1]) return;
  mask[0] ? fall_back(why) : count(why);
  const AsTuned as_tuned(why);
  const auto [of_input, of_weight, none] =
      (g.dims == 3 ? aten_gradients<3> : aten_gradients<2>)(conv, grad, g, mask);
  if (mask[0]) std::get<0>(gradients) = conv.batched ? of_input : of_input.squeeze(0);
  if (mask[1]) std::get<1>(gradients) = of_weight;
}

// Adds the gradients of input and weight that were decided to be by plans of ours.
void add_gradients(const Convolution& conv, const Tensor& grad, const GradientFormats& formats,
                   const std::optional<Decision>& of_input,
                   const std::optional<Decision>& of_weight, Gradients& gradients) {
  const auto input_operand = conv.transposed ? &Operands::y : &Operands::x;
  Operands operands;
  operands.*(conv.transposed ? &Operands::x : &Operands::y) = read_only(grad);
  if (of_input && !is_atens(*of_input)) {
    const Tensor weight = copied_if(of_input->copies.w, conv.weight, conv.format);
    const Tensor written = empty_like(conv.input, conv.input.sizes(), formats.input);
    operands.w = read_only(weight);
    operands.*input_operand = written.mutable_data_ptr();
    launch(Pass::kDgrad, *of_input, operands, written);
    std::get<0>(gradients) = conv.batched ? written : written.squeeze(0);
  }
  if (of_weight && !is_atens(*of_weight)) {
    const Tensor input = input_of(conv, *of_weight);
    const Tensor written = empty_like(conv.weight, conv.weight.sizes(), formats.weight);
    operands.*input_operand = read_only(input);
    operands.w = written.mutable_data_ptr();
    launch(Pass::kWgrad, *of_weight, operands, written);
    std::get<1>(gradients) = written;
  }
}

}  // namespace

const bool kHasCuda = true;

OrFallback<Tensor> convolve(const Tensor& input, const Tensor& weight,
                            const std::optional<Tensor>& bias, const Geometry& geometry,
                            Algorithm wanted, bool tf32) {
  const auto conv = described(wanted, input, weight, bias, geometry, tf32);
  if (!conv) return conv.why();
  const c10::DeviceGuard guard(input.device());
  const Decision decided = decided_for(*conv, conv->problem_of(Pass::kFprop), wanted);
  if (is_atens(decided)) return why_aten(input.get_device(), decided);
  return output_of(*conv, decided, bias);
}

OrFallback<bool> convolve_part(const Tensor& input, const Tensor& weight,
                               const std::optional<Tensor>& bias, const Geometry& geometry,
                               Algorithm wanted, const Whole& whole, at::MemoryFormat format,
                               const Tensor& output) {
  const auto conv = described(wanted, input, weight, bias, geometry, allows_tf32(), format);
  if (!conv) return conv.why();
  const auto sizes = conv->output_sizes();
  TORCH_CHECK(is_as_output(*conv, output, sizes), "expected an output of ", input.scalar_type(),
              " of sizes ", at::IntArrayRef(sizes), " on ", input.device(), ", but got one of ",
              output.scalar_type(), " of sizes ", output.sizes(), " on ", output.device());
  // A part of an image (`Image`) has no depth.
  if (geometry.dims == 3 && conv->problem.batch_invariant) return false;
  const c10::DeviceGuard guard(input.device());
  Asked asked{conv->problem_of(Pass::kFprop), layout_of(format), wanted};
  ConvProblem& problem = asked.problem;
  const Shape5 strides = strides_of(output);
  const bool in_order = problem.batch_invariant;
  const bool in_place = !in_order || (is_aligned(output) &&
                                      strides_match(conv->output_shape(), strides, asked.layout));
  if (in_order) {
    asked.image = image_of(*conv, whole);
  } else {
    (conv->transposed ? problem.x_strides : problem.y_strides) = strides;
    (conv->transposed ? problem.x_aligned : problem.y_aligned) = is_aligned(output);
  }
  // Tuning writes whole tensors, not slices.
  const Decision decided = decide_on(input.get_device(), asked, /*records=*/false);
  if (is_atens(decided)) {
    return in_order ? OrFallback<bool>(false) : why_aten(input.get_device(), decided);
  }
  if (in_place) {
    write_output(*conv, decided, bias, {}, {}, output);
  } else {
    output.copy_(output_of(*conv, decided, bias));
  }
  return true;
}

OrFallback<WithStatistics> convolve_with_statistics(const Tensor& input, const Tensor& weight,
                                                    const std::optional<Tensor>& bias,
                                                    const Geometry& geometry) {
  const auto conv = described(Algorithm::kAuto, input, weight, bias, geometry, allows_tf32());
  if (!conv) return conv.why();
  const c10::DeviceGuard guard(input.device());
  ConvProblem problem = conv->problem_of(Pass::kFprop);
  problem.has_statistics = true;
  const Decision decided = decided_for(*conv, problem, Algorithm::kAuto);
  if (is_atens(decided)) return why_aten(input.get_device(), decided);
  StatisticsMemory statistics(decided.plan.statistics_parts, problem.K, input.device());
  return WithStatistics{output_of(*conv, decided, bias, {}, statistics.parts),
                        std::move(statistics)};
}

std::optional<Tensor> convolve_fused(const Tensor& input, const Tensor& weight,
                                     const std::optional<Tensor>& bias, const Geometry& geometry,
                                     const FusedOptions& options, Algorithm wanted) {
  const bool wide_bias = bias && bias->defined() && is_wide(*bias, input);
  auto conv =
      described(wanted, input, weight, wide_bias ? std::nullopt : bias, geometry, allows_tf32());
  if (!conv) return std::nullopt;
  const c10::DeviceGuard guard(input.device());
  const auto sizes = conv->output_sizes();
  check_fused(fused_name(geometry), static_cast<size_t>(geometry.dims), bias, options, input,
              c10::fromIntArrayRefSlow(at::IntArrayRef(sizes).slice(conv->batched ? 0 : 1)));
  ConvProblem& described = conv->problem;
  described.has_bias = described.has_bias || wide_bias;
  described.epilogue_passes = count_passes(bias, options, input, geometry.transposed);
  described.has_residual = options.residual && options.residual->defined();
  if (described.epilogue_passes == 0 && !wide_bias) return std::nullopt;
  const bool moves = described.has_residual && !lies_as_output(*conv, *options.residual);
  if (moves && !described.batch_invariant) return std::nullopt;
  const Decision decided = decided_for(*conv, conv->problem_of(Pass::kFprop), wanted);
  if (!decided.plan.fuses) return std::nullopt;
  FusedOptions laid_out = options;
  if (moves) {
    laid_out.residual = dense_and_aligned(batched(*conv, *options.residual), conv->format);
  }
  return output_of(*conv, decided, bias, laid_out);
}

OrFallback<Gradients> convolve_backward(const Tensor& grad_output, const Tensor& input,
                                        const Tensor& weight, const Geometry& geometry,
                                        std::array<bool, 3> output_mask, Algorithm wanted,
                                        bool tf32) {
  const auto conv = described(wanted, input, weight, std::nullopt, geometry, tf32);
  if (!conv) return conv.why();
  const auto sizes = conv->output_sizes();
  if (!is_as_output(*conv, grad_output, at::IntArrayRef(sizes).slice(conv->batched ? 0 : 1))) {
    return Fallback::kArguments;
  }
  const c10::DeviceGuard guard(input.device());
  Tensor grad = batched(*conv, grad_output);
  const GradientFormats formats = gradient_formats(grad, *conv, weight, output_mask);
  const bool aligned = is_aligned_in(grad, conv->format);
  const auto decided = [&](bool needed, Pass pass,
                           at::MemoryFormat written) -> std::optional<Decision> {
    if (!needed) return std::nullopt;
    ConvProblem problem = conv->problem_of(pass, written);
    (conv->transposed ? problem.x_aligned : problem.y_aligned) = aligned;
    return decided_for(*conv, problem, wanted, /*prefer=*/true);
  };
  const std::optional<Decision> of_input = decided(output_mask[0], Pass::kDgrad, formats.input);
  const std::optional<Decision> of_weight = decided(output_mask[1], Pass::kWgrad, formats.weight);
  const auto is_ours = [](const std::optional<Decision>& decision) {
    return decision && !is_atens(*decision);
  };
  // No fast family may take a pass of volumes: the other is ours nevertheless.
  const bool may_part = conv->problem.is_deep() && (is_ours(of_input) || is_ours(of_weight));
  std::array<bool, 3> by_aten{};
  Fallback why = Fallback::kTuned;
  bool copies_grad = false;
  for (const std::optional<Decision>* each : {&of_input, &of_weight}) {
    if (!*each) continue;
    const Decision& decision = **each;
    if (is_atens(decision)) {
      why = why_aten(input.get_device(), decision);
      if (!decision.tuned && !may_part) return why;
      by_aten[each == &of_weight] = true;
    }
    const Copies& copies = decision.copies;
    copies_grad = copies_grad || (conv->transposed ? copies.x : copies.y);
  }
  if (of_input || of_weight) grad = grad.contiguous(conv->format);
  grad = copied_if(copies_grad, grad, conv->format);
  Gradients gradients;
  add_gradients(*conv, grad, formats, of_input, of_weight, gradients);
  add_aten_gradients(*conv, grad, geometry, by_aten, why, gradients);
  if (output_mask[2]) std::get<2>(gradients) = bias_gradient(grad);
  return gradients;
}

}  // namespace customconv::torch_layer
