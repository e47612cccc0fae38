#include "torch/cuda/convolve.h"

#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAGuard.h>

#include "torch/aten.h"
#include "torch/cuda/bias.h"
#include "torch/cuda/device.h"
#include "torch/cuda/plans.h"
#include "torch/cuda/run.h"
#include "torch/fused.h"
#include "torch/operator.h"
#include "torch/stats.h"

namespace customconv::torch_layer {

namespace {

using at::Tensor;

Tensor empty_like(const Tensor& like, at::IntArrayRef sizes, at::MemoryFormat format) {
  return at::detail::empty_cuda(sizes, like.scalar_type(), like.device(), format);
}

// The memory of a tensor that is only read: one that shares it until it is written goes on sharing.
void* read_only(const Tensor& tensor) { return const_cast<void*>(tensor.const_data_ptr()); }

// Why the call is PyTorch's from the start: by choice, because only another argument is on CUDA
// (PyTorch raises), or because the device is of an architecture that was not built for.
std::optional<Fallback> refusal(Algorithm wanted, const Tensor& input) {
  if (wanted == Algorithm::kAten) return Fallback::kAsked;
  if (!input.is_cuda()) return Fallback::kDevice;
  if (has_kernels_for(input.get_device())) return std::nullopt;
  TORCH_CHECK(wanted == Algorithm::kAuto, "algorithm '", to_string(wanted), "' cannot run on ",
              input.device(), ": customconv was built for the architectures ",
              CUSTOMCONV_ARCH_LIST);
  return Fallback::kArchitecture;
}

bool is_dense(const Tensor& t, at::MemoryFormat format) {
  return t.is_contiguous(format) && is_aligned(t);
}

// Whether operands must be copied because they are not dense: where they are rounded to TF32 or
// batches are invariant, so that not only the precision but each bit follows from the numbers, and
// not from their strides or, of an image, from its place in a batch.
bool wants_copies(const Convolution& conv, Pass pass, Algorithm wanted) {
  if (is_dense(conv.input, conv.format) && is_dense(conv.weight, conv.format)) return false;
  if (conv.problem.batch_invariant && pass != Pass::kWgrad) return true;
  return rounds_on(conv.input.get_device(), conv.problem_of(pass), wanted);
}

// Why PyTorch computes what has this plan.
Fallback why_aten(const ConvPlan& plan, const Tensor& input) {
  if (plan.tuned) return Fallback::kTuned;
  return device_properties(input.get_device()).has_prices() ? Fallback::kNoFamily
                                                            : Fallback::kUnmeasured;
}

// Whether it does for want of measured times, which is asked before operands are copied.
bool is_unmeasured(const Convolution& conv, Pass pass, Algorithm wanted) {
  const c10::DeviceIndex device = conv.input.get_device();
  if (conv.problem.batch_invariant) return false;
  if (wanted != Algorithm::kAuto || device_properties(device).has_prices()) return false;
  ConvProblem problem = conv.problem_of(pass);
  const ConvPlan plan = plan_on(device, problem, wanted, /*prefer=*/true);
  return plan.family == FamilyId::kAten && !plan.tuned;
}

// Operands as wants_copies asks for them.
OrFallback<Convolution> describe_dense(const Convolution& conv, const Tensor& input,
                                       const Tensor& weight, const std::optional<Tensor>& bias,
                                       const Geometry& geometry, bool tf32) {
  return describe(dense_and_aligned(input, conv.format), dense_and_aligned(weight, conv.format),
                  bias, geometry, tf32);
}

// The problem of the output. A transposed convolution's input is copied if it does not lie in its
// memory format.
ConvProblem problem_of_output(Convolution& conv) {
  if (conv.transposed) conv.input = conv.input.contiguous(conv.format);
  ConvProblem problem = conv.problem_of(Pass::kFprop);
  if (conv.transposed) problem.y_aligned = is_aligned(conv.input);
  return problem;
}

// Runs a plan of ours for the output: of a transposed convolution by the kernels of an input
// gradient.
Tensor run_plan(const Convolution& conv, const ConvProblem& problem, const ConvPlan& plan,
                const std::optional<Tensor>& bias, const FusedOptions& options,
                const StatisticsParts& statistics = {}) {
  const Tensor output = empty_like(conv.input, conv.output_sizes(), conv.format);
  Operands operands;
  operands.*(conv.transposed ? &Operands::y : &Operands::x) = read_only(conv.input);
  operands.w = read_only(conv.weight);
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
  const bool adds_bias = problem.has_bias && conv.transposed && !plan.fuses;
  if (problem.has_bias && !adds_bias) epilogue.bias = data_of(*bias);
  if (plan.fuses) {
    if (has_scale) epilogue.scale = data_of(*options.scale);
    if (problem.has_residual) epilogue.residual = options.residual->const_data_ptr();
    epilogue.residual_last = options.residual_last;
    epilogue.activation = activation_named(options.activation);
    epilogue.negative_slope = static_cast<float>(options.negative_slope);
  }
  run(problem, plan, operands, conv.input.scalar_type());
  count(Pass::kFprop, plan.family);
  if (adds_bias) output.add_(bias->view({-1, 1, 1}));
  return conv.batched ? output : output.squeeze(0);
}

OrFallback<WithStatistics> with_statistics_of(Convolution& conv,
                                              const std::optional<Tensor>& bias) {
  ConvProblem problem = problem_of_output(conv);
  const ConvPlan chosen =
      plan_on(conv.input.get_device(), problem, Algorithm::kAuto, /*prefer=*/false);
  if (chosen.family == FamilyId::kAten) return why_aten(chosen, conv.input);
  StatisticsMemory statistics(chosen.statistics_parts, problem.K, conv.input.device());
  return WithStatistics{run_plan(conv, problem, chosen, bias, {}, statistics.parts),
                        std::move(statistics)};
}

OrFallback<Tensor> output_of(Convolution& conv, const std::optional<Tensor>& bias,
                             Algorithm wanted) {
  ConvProblem problem = problem_of_output(conv);
  const ConvPlan chosen = plan_on(conv.input.get_device(), problem, wanted, /*prefer=*/false);
  if (chosen.family == FamilyId::kAten) return why_aten(chosen, conv.input);
  return run_plan(conv, problem, chosen, bias, {});
}

// Whether a residual lies as the output will. Another one is added by PyTorch, which need not copy
// it, as kernels would have to.
bool lies_as_output(const Convolution& conv, const Tensor& residual) {
  if (residual.layout() != at::kStrided || !is_aligned(residual)) return false;
  const Tensor batched = conv.batched ? residual : residual.unsqueeze(0);
  const at::IntArrayRef s = batched.strides();
  const bool channels_last = conv.format == at::MemoryFormat::ChannelsLast;
  return strides_match(conv.output_sizes(), {s[0], s[1], s[2], s[3]},
                       channels_last ? Layout::kNhwc : Layout::kNchw);
}

Tensor batched(const Tensor& images) { return images.dim() == 3 ? images.unsqueeze(0) : images; }

// Whether this is a gradient of the convolution's output.
bool is_grad_output(const Convolution& conv, const Tensor& grad_output) {
  return grad_output.dim() == (conv.batched ? 4 : 3) && grad_output.layout() == at::kStrided &&
         grad_output.scalar_type() == conv.input.scalar_type() &&
         grad_output.device() == conv.input.device() &&
         batched(grad_output).sizes() == at::IntArrayRef(conv.output_sizes());
}

// The gradients of input and weight that the mask asks for, by PyTorch as it was tuned.
Gradients tuned_gradients_of(const Convolution& conv, const Tensor& grad, const Geometry& g,
                             std::array<bool, 3> mask) {
  count(Fallback::kTuned);
  const AsTuned as_tuned(Fallback::kTuned);
  const auto stride = c10::fromIntArrayRefSlow(g.stride);
  const auto padding = c10::fromIntArrayRefSlow(g.padding);
  const auto dilation = c10::fromIntArrayRefSlow(g.dilation);
  if (g.transposed) {
    return aten_conv_transpose2d_backward(grad, conv.input, conv.weight, stride, padding,
                                          c10::fromIntArrayRefSlow(g.output_padding), g.groups,
                                          dilation, mask);
  }
  return aten_conv2d_backward(grad, conv.input, conv.weight, stride, padding, dilation, g.groups,
                              mask);
}

// The gradients that the mask asks for; a reason where one of them has no family.
OrFallback<Gradients> gradients_of(const Convolution& conv, const Tensor& grad_output,
                                   const Geometry& geometry, const GradientFormats& formats,
                                   std::array<bool, 3> output_mask, Algorithm wanted) {
  const auto laid_out = [&](const Tensor& tensor, bool needed) {
    return needed ? tensor.contiguous(conv.format) : tensor;
  };
  const Tensor grad = laid_out(batched(grad_output), output_mask[0] || output_mask[1]);
  const Tensor images = laid_out(conv.input, conv.transposed && output_mask[1]);
  const auto grad_operand = conv.transposed ? &Operands::x : &Operands::y;
  const auto input_operand = conv.transposed ? &Operands::y : &Operands::x;
  const auto problem_of = [&](Pass pass) {
    ConvProblem problem =
        conv.problem_of(pass, pass == Pass::kDgrad ? formats.input : formats.weight);
    (conv.transposed ? problem.x_aligned : problem.y_aligned) = is_aligned(grad);
    if (pass == Pass::kWgrad) {
      (conv.transposed ? problem.y_aligned : problem.x_aligned) = is_aligned(images);
    }
    return problem;
  };
  const auto plan_of = [&](ConvProblem& problem) {
    return plan_on(grad.get_device(), problem, wanted, /*prefer=*/true);
  };
  const auto by_plan = [&](Pass pass, const ConvProblem& problem, const ConvPlan& plan,
                           const Operands& operands) {
    run(problem, plan, operands, grad.scalar_type());
    count(pass, plan.family);
  };
  std::array<bool, 3> by_aten{};  // where tuning chose it
  Gradients gradients;
  if (output_mask[0]) {
    ConvProblem problem = problem_of(Pass::kDgrad);
    const ConvPlan plan = plan_of(problem);
    if (plan.family != FamilyId::kAten) {
      const Tensor written = empty_like(images, images.sizes(), formats.input);
      Operands operands;
      operands.*grad_operand = read_only(grad);
      operands.*input_operand = written.mutable_data_ptr();
      operands.w = read_only(conv.weight);
      by_plan(Pass::kDgrad, problem, plan, operands);
      std::get<0>(gradients) = conv.batched ? written : written.squeeze(0);
    } else if (plan.tuned) {
      by_aten[0] = true;
    } else {
      return why_aten(plan, grad);
    }
  }
  if (output_mask[1]) {
    ConvProblem problem = problem_of(Pass::kWgrad);
    const ConvPlan plan = plan_of(problem);
    if (plan.family != FamilyId::kAten) {
      const Tensor written = empty_like(conv.weight, conv.weight.sizes(), formats.weight);
      Operands operands;
      operands.*grad_operand = read_only(grad);
      operands.*input_operand = read_only(images);
      operands.w = written.mutable_data_ptr();
      by_plan(Pass::kWgrad, problem, plan, operands);
      std::get<1>(gradients) = written;
    } else if (plan.tuned) {
      by_aten[1] = true;
    } else {
      return why_aten(plan, grad);
    }
  }
  if (by_aten[0] || by_aten[1]) {
    Gradients theirs = tuned_gradients_of(conv, grad, geometry, by_aten);
    if (by_aten[0]) {
      const Tensor& of_input = std::get<0>(theirs);
      std::get<0>(gradients) = conv.batched ? of_input : of_input.squeeze(0);
    }
    if (by_aten[1]) std::get<1>(gradients) = std::get<1>(theirs);
  }
  if (output_mask[2]) std::get<2>(gradients) = bias_gradient(grad);
  return gradients;
}

}  // namespace

OrFallback<Tensor> convolve(const Tensor& input, const Tensor& weight,
                            const std::optional<Tensor>& bias, const Geometry& geometry,
                            Algorithm wanted, bool tf32) {
  if (const auto why = refusal(wanted, input)) return *why;
  const c10::cuda::CUDAGuard guard(input.device());
  auto conv = describe(input, weight, bias, geometry, tf32);
  if (!conv) return conv.why();
  if (is_unmeasured(*conv, Pass::kFprop, wanted)) return Fallback::kUnmeasured;
  if (wants_copies(*conv, Pass::kFprop, wanted)) {
    conv = describe_dense(*conv, input, weight, bias, geometry, tf32);
  }
  return output_of(*conv, bias, wanted);
}

OrFallback<WithStatistics> convolve_with_statistics(const Tensor& input, const Tensor& weight,
                                                    const std::optional<Tensor>& bias,
                                                    const Geometry& geometry) {
  if (const auto why = refusal(Algorithm::kAuto, input)) return *why;
  const c10::cuda::CUDAGuard guard(input.device());
  auto conv = describe(input, weight, bias, geometry);
  if (!conv) return conv.why();
  if (is_unmeasured(*conv, Pass::kFprop, Algorithm::kAuto)) return Fallback::kUnmeasured;
  conv->problem.has_statistics = true;
  if (wants_copies(*conv, Pass::kFprop, Algorithm::kAuto)) {
    conv = describe_dense(*conv, input, weight, bias, geometry, allows_tf32());
    conv->problem.has_statistics = true;
  }
  return with_statistics_of(*conv, bias);
}

std::optional<Tensor> convolve_fused(const Tensor& input, const Tensor& weight,
                                     const std::optional<Tensor>& bias, const Geometry& geometry,
                                     const FusedOptions& options, Algorithm wanted) {
  if (refusal(wanted, input)) return std::nullopt;
  const c10::cuda::CUDAGuard guard(input.device());
  const bool wide_bias = bias && bias->defined() && is_wide(*bias, input);
  const std::optional<Tensor> usual_bias = wide_bias ? std::nullopt : bias;
  auto conv = describe(input, weight, usual_bias, geometry);
  if (!conv) return std::nullopt;
  if (wants_copies(*conv, Pass::kFprop, wanted)) {
    if (!conv->problem.batch_invariant) return std::nullopt;
    conv = describe_dense(*conv, input, weight, usual_bias, geometry, allows_tf32());
  }
  auto sizes = conv->output_sizes();
  const at::IntArrayRef asked = conv->batched ? sizes : at::IntArrayRef(sizes).slice(1);
  check_fused(geometry.transposed ? ConvTranspose2d::kFused : Conv2d::kFused, bias, options, input,
              c10::fromIntArrayRefSlow(asked));
  ConvProblem& described = conv->problem;
  described.has_bias = described.has_bias || wide_bias;
  described.epilogue_passes = count_passes(bias, options, input, geometry.transposed);
  described.has_residual = options.residual && options.residual->defined();
  if (described.epilogue_passes == 0 && !wide_bias) return std::nullopt;
  const bool moves = described.has_residual && !lies_as_output(*conv, *options.residual);
  if (moves && !described.batch_invariant) return std::nullopt;
  ConvProblem problem = problem_of_output(*conv);
  const ConvPlan chosen = plan_on(input.get_device(), problem, wanted, /*prefer=*/false);
  if (!chosen.fuses) return std::nullopt;
  FusedOptions laid_out = options;
  if (moves) laid_out.residual = dense_and_aligned(*options.residual, conv->format);
  return run_plan(*conv, problem, chosen, bias, laid_out);
}

OrFallback<Gradients> convolve_backward(const Tensor& grad_output, const Tensor& input,
                                        const Tensor& weight, const Geometry& geometry,
                                        std::array<bool, 3> output_mask, Algorithm wanted,
                                        bool tf32) {
  if (const auto why = refusal(wanted, input)) return *why;
  const c10::cuda::CUDAGuard guard(input.device());
  auto conv = describe(input, weight, std::nullopt, geometry, tf32);
  if (!conv) return conv.why();
  if (!is_grad_output(*conv, grad_output)) return Fallback::kArguments;
  const GradientFormats formats =
      gradient_formats(batched(grad_output), conv->input, weight, geometry.transposed, output_mask);
  if ((output_mask[0] && is_unmeasured(*conv, Pass::kDgrad, wanted)) ||
      (output_mask[1] && is_unmeasured(*conv, Pass::kWgrad, wanted))) {
    return Fallback::kUnmeasured;
  }
  const bool copies = (output_mask[0] && wants_copies(*conv, Pass::kDgrad, wanted)) ||
                      (output_mask[1] && wants_copies(*conv, Pass::kWgrad, wanted));
  if (copies) conv = describe_dense(*conv, input, weight, std::nullopt, geometry, tf32);
  const bool may_round = conv->problem.tf32 && (output_mask[0] || output_mask[1]);
  const bool is_invariant = conv->problem.batch_invariant && output_mask[0];
  const Tensor grad =
      may_round || is_invariant ? dense_and_aligned(grad_output, conv->format) : grad_output;
  return gradients_of(*conv, grad, geometry, formats, output_mask, wanted);
}

}  // namespace customconv::torch_layer
