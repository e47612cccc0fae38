// The operators on CUDA: device guard, checks, plan, output, launch.
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "torch/aten.h"
#include "torch/cuda/bias.h"
#include "torch/cuda/device.h"
#include "torch/cuda/plans.h"
#include "torch/cuda/run.h"
#include "torch/fused.h"
#include "torch/ops.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

namespace {

using at::Tensor;

Tensor empty_like(const Tensor& like, at::IntArrayRef sizes, at::MemoryFormat format) {
  return at::detail::empty_cuda(sizes, like.scalar_type(), like.device(), format);
}

// Of a tensor that is only read: one that shares its memory until it is written goes on sharing it.
void* read_only(const Tensor& tensor) { return const_cast<void*>(tensor.const_data_ptr()); }

// False where the call is ATen's from the start: by choice, because only another argument is on
// CUDA (ATen raises), or because the device is of an architecture that was not built for.
bool is_for_kernels(Algorithm wanted, const Tensor& input) {
  if (wanted == Algorithm::kAten || !input.is_cuda()) return false;
  if (has_kernels_for(input.get_device())) return true;
  TORCH_CHECK(wanted == Algorithm::kAuto, "algorithm '", to_string(wanted), "' cannot run on ",
              input.device(), ": customconv was built for the architectures ",
              CUSTOMCONV_ARCH_LIST);
  return false;
}

// The output of a plan of ours.
Tensor fprop(const Convolution& conv, const ConvPlan& plan, const std::optional<Tensor>& bias,
             const FusedOptions& options) {
  const Tensor output = empty_like(conv.input, conv.output_sizes(), conv.format);
  Operands operands;
  operands.x = read_only(conv.input);
  operands.w = read_only(conv.weight);
  operands.y = output.mutable_data_ptr();
  std::vector<Tensor> dense;  // lives until the launch
  const auto data_of = [&](const Tensor& values) {
    dense.push_back(values.contiguous());
    return dense.back().const_data_ptr();
  };
  Epilogue& epilogue = operands.epilogue;
  if (conv.problem.has_bias) epilogue.bias = data_of(*bias);
  if (plan.fuses) {
    if (options.scale && options.scale->defined()) epilogue.scale = data_of(*options.scale);
    if (conv.problem.has_residual) epilogue.residual = options.residual->const_data_ptr();
    epilogue.residual_last = options.residual_last;
    epilogue.activation = activation_named(options.activation);
    epilogue.negative_slope = static_cast<float>(options.negative_slope);
  }
  run(conv.problem, plan, operands, conv.input.scalar_type());
  return conv.batched ? output : output.squeeze(0);
}

Tensor conv2d_cuda(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                   int64_t groups, std::string_view algorithm) {
  const Algorithm wanted = algorithm_named(algorithm);
  const auto by_aten = [&] {
    check_runs_on(algorithm, input);
    return at::conv2d(input, weight, bias, stride, padding, dilation, groups);
  };
  if (!is_for_kernels(wanted, input)) return by_aten();
  const c10::cuda::CUDAGuard guard(input.device());
  const auto conv = describe(input, weight, bias, stride, padding, dilation, groups);
  if (!conv) return by_aten();
  const ConvPlan chosen = plan_on(input.get_device(), conv->problem, wanted, /*prefer=*/false);
  if (chosen.family == FamilyId::kAten) return by_aten();
  return fprop(*conv, chosen, bias, {});
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

// By one kernel where the planner says so, else by conv2d and PyTorch's operators.
Tensor conv2d_fused_cuda(const Tensor& input, const Tensor& weight,
                         const std::optional<Tensor>& bias, at::IntArrayRef stride,
                         at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                         const std::optional<Tensor>& scale, const std::optional<Tensor>& residual,
                         std::string_view activation, bool residual_last, double negative_slope,
                         std::string_view algorithm) {
  const FusedOptions options{scale, residual, activation, residual_last, negative_slope};
  const Algorithm wanted = algorithm_named(algorithm);
  const auto composite = [&] {
    return compose_fused(input, weight, bias, c10::fromIntArrayRefSlow(stride),
                         c10::fromIntArrayRefSlow(padding), c10::fromIntArrayRefSlow(dilation),
                         groups, options, algorithm, /*in_place=*/true);
  };
  if (!is_for_kernels(wanted, input)) return composite();
  const c10::cuda::CUDAGuard guard(input.device());
  auto conv = describe(input, weight, bias, stride, padding, dilation, groups);
  if (!conv) return composite();
  ConvProblem& problem = conv->problem;
  auto sizes = conv->output_sizes();
  const at::IntArrayRef asked = conv->batched ? sizes : at::IntArrayRef(sizes).slice(1);
  check_fused(options, input, c10::fromIntArrayRefSlow(asked));
  problem.epilogue_passes = count_passes(options, problem.has_bias);
  problem.has_residual = residual && residual->defined();
  if (problem.epilogue_passes == 0) return composite();
  if (problem.has_residual && !lies_as_output(*conv, *residual)) return composite();
  const ConvPlan chosen = plan_on(input.get_device(), problem, wanted, /*prefer=*/false);
  return chosen.fuses ? fprop(*conv, chosen, bias, options) : composite();
}

Tensor conv_transpose2d_cuda(const Tensor& input, const Tensor& weight,
                             const std::optional<Tensor>& bias, at::IntArrayRef stride,
                             at::IntArrayRef padding, at::IntArrayRef output_padding,
                             int64_t groups, at::IntArrayRef dilation, std::string_view algorithm) {
  const Algorithm wanted = algorithm_named(algorithm);
  const auto by_aten = [&] {
    check_runs_on(algorithm, input);
    return at::conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups,
                                dilation);
  };
  if (!is_for_kernels(wanted, input)) return by_aten();
  const c10::cuda::CUDAGuard guard(input.device());
  const auto conv =
      describe_transpose(input, weight, bias, stride, padding, output_padding, groups, dilation);
  if (!conv) return by_aten();
  const Tensor dense = conv->input.contiguous(conv->format);
  ConvProblem problem = conv->problem_of(Pass::kFprop);
  problem.y_aligned = is_aligned(dense);
  const ConvPlan chosen = plan_on(input.get_device(), problem, wanted, /*prefer=*/false);
  if (chosen.family == FamilyId::kAten) return by_aten();
  Tensor output = empty_like(input, conv->output_sizes(), conv->format);
  Operands operands;
  operands.x = output.mutable_data_ptr();
  operands.w = read_only(conv->weight);
  operands.y = read_only(dense);
  run(problem, chosen, operands, input.scalar_type());
  if (bias && bias->defined()) output.add_(bias->view({-1, 1, 1}));
  return conv->batched ? output : output.squeeze(0);
}

Tensor batched(const Tensor& images) { return images.dim() == 3 ? images.unsqueeze(0) : images; }

// Whether this is a gradient of the convolution's output.
bool is_grad_output(const Convolution& conv, const Tensor& grad_output) {
  return grad_output.dim() == (conv.batched ? 4 : 3) && grad_output.layout() == at::kStrided &&
         grad_output.scalar_type() == conv.input.scalar_type() &&
         grad_output.device() == conv.input.device() &&
         batched(grad_output).sizes() == at::IntArrayRef(conv.output_sizes());
}

// Gradients by plans of ours; nothing where one of them is ATen's.
std::optional<Gradients> backward(const Convolution& conv, const Tensor& grad_output,
                                  std::array<bool, 3> output_mask, Algorithm wanted) {
  const auto laid_out = [&](const Tensor& images, bool needed) {
    return needed ? images.contiguous(conv.format) : images;
  };
  const Tensor grad = laid_out(batched(grad_output), output_mask[0] || output_mask[1]);
  const Tensor input = laid_out(conv.input, conv.transposed && output_mask[1]);
  const auto grad_operand = conv.transposed ? &Operands::x : &Operands::y;
  const auto input_operand = conv.transposed ? &Operands::y : &Operands::x;
  const auto by_plan = [&](Pass pass, const Operands& operands) {
    ConvProblem problem = conv.problem_of(pass);
    problem.x_aligned = is_aligned(conv.transposed ? grad : input);
    problem.y_aligned = is_aligned(conv.transposed ? input : grad);
    const ConvPlan chosen = plan_on(grad.get_device(), problem, wanted, /*prefer=*/true);
    if (chosen.family == FamilyId::kAten) return false;
    run(problem, chosen, operands, grad.scalar_type());
    return true;
  };
  Gradients gradients;
  if (output_mask[0]) {
    const Tensor written = empty_like(input, input.sizes(), conv.format);
    Operands operands;
    operands.*grad_operand = read_only(grad);
    operands.*input_operand = written.mutable_data_ptr();
    operands.w = read_only(conv.weight);
    if (!by_plan(Pass::kDgrad, operands)) return std::nullopt;
    std::get<0>(gradients) = conv.batched ? written : written.squeeze(0);
  }
  if (output_mask[1]) {
    const Tensor written = empty_like(conv.weight, conv.weight.sizes(), conv.format);
    Operands operands;
    operands.*grad_operand = read_only(grad);
    operands.*input_operand = read_only(input);
    operands.w = written.mutable_data_ptr();
    if (!by_plan(Pass::kWgrad, operands)) return std::nullopt;
    std::get<1>(gradients) = written;
  }
  if (output_mask[2]) std::get<2>(gradients) = bias_gradient(grad);
  return gradients;
}

Gradients conv2d_backward_cuda(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                               at::IntArrayRef stride, at::IntArrayRef padding,
                               at::IntArrayRef dilation, int64_t groups,
                               std::array<bool, 3> output_mask, std::string_view algorithm) {
  const Algorithm wanted = algorithm_named(algorithm);
  if (is_for_kernels(wanted, input)) {
    const c10::cuda::CUDAGuard guard(input.device());
    const auto conv = describe(input, weight, std::nullopt, stride, padding, dilation, groups);
    if (conv && is_grad_output(*conv, grad_output)) {
      const auto gradients = backward(*conv, grad_output, output_mask, wanted);
      if (gradients) return *gradients;
    } else {
      check_runs_on(algorithm, input);
    }
  }
  return aten_conv2d_backward(grad_output, input, weight, c10::fromIntArrayRefSlow(stride),
                              c10::fromIntArrayRefSlow(padding), c10::fromIntArrayRefSlow(dilation),
                              groups, output_mask);
}

Gradients conv_transpose2d_backward_cuda(const Tensor& grad_output, const Tensor& input,
                                         const Tensor& weight, at::IntArrayRef stride,
                                         at::IntArrayRef padding, at::IntArrayRef output_padding,
                                         int64_t groups, at::IntArrayRef dilation,
                                         std::array<bool, 3> output_mask,
                                         std::string_view algorithm) {
  const Algorithm wanted = algorithm_named(algorithm);
  if (is_for_kernels(wanted, input)) {
    const c10::cuda::CUDAGuard guard(input.device());
    const auto conv = describe_transpose(input, weight, std::nullopt, stride, padding,
                                         output_padding, groups, dilation);
    if (conv && is_grad_output(*conv, grad_output)) {
      const auto gradients = backward(*conv, grad_output, output_mask, wanted);
      if (gradients) return *gradients;
    } else {
      check_runs_on(algorithm, input);
    }
  }
  return aten_conv_transpose2d_backward(
      grad_output, input, weight, c10::fromIntArrayRefSlow(stride),
      c10::fromIntArrayRefSlow(padding), c10::fromIntArrayRefSlow(output_padding), groups,
      c10::fromIntArrayRefSlow(dilation), output_mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(customconv, CUDA, m) {
  m.impl("conv2d", conv2d_cuda);
  m.impl("conv2d_fused", conv2d_fused_cuda);
  m.impl("conv2d_backward", conv2d_backward_cuda);
  m.impl("conv_transpose2d", conv_transpose2d_cuda);
  m.impl("conv_transpose2d_backward", conv_transpose2d_backward_cuda);
}

}  // namespace customconv::torch_layer
