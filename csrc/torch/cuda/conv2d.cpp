// The operators on CUDA: device guard, checks, plan, output, launch.
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "torch/aten.h"
#include "torch/cuda/device.h"
#include "torch/cuda/plans.h"
#include "torch/cuda/run.h"
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

  const Tensor output = empty_like(input, conv->output_sizes(), conv->format);
  Operands operands;
  operands.x = read_only(conv->input);
  operands.w = read_only(conv->weight);
  operands.y = output.mutable_data_ptr();
  Tensor dense_bias;
  if (conv->problem.has_bias) {
    dense_bias = bias->contiguous();
    operands.bias = dense_bias.const_data_ptr();
  }
  run(conv->problem, chosen, operands, input.scalar_type());
  return conv->batched ? output : output.squeeze(0);
}

Gradients conv2d_backward_cuda(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                               at::IntArrayRef stride, at::IntArrayRef padding,
                               at::IntArrayRef dilation, int64_t groups,
                               std::array<bool, 3> output_mask, std::string_view algorithm) {
  const Algorithm wanted = algorithm_named(algorithm);
  const auto by_aten = [&](std::array<bool, 3> mask) {
    return aten_conv2d_backward(grad_output, input, weight, c10::fromIntArrayRefSlow(stride),
                                c10::fromIntArrayRefSlow(padding),
                                c10::fromIntArrayRefSlow(dilation), groups, mask);
  };
  if (!is_for_kernels(wanted, input)) return by_aten(output_mask);
  const c10::cuda::CUDAGuard guard(input.device());
  const auto conv = describe(input, weight, std::nullopt, stride, padding, dilation, groups);
  const bool matches =
      conv && grad_output.dim() == input.dim() && grad_output.layout() == at::kStrided &&
      grad_output.scalar_type() == input.scalar_type() && grad_output.device() == input.device() &&
      (conv->batched ? grad_output : grad_output.unsqueeze(0)).sizes() ==
          at::IntArrayRef(conv->output_sizes());
  if (!matches) {
    check_runs_on(algorithm, input);
    return by_aten(output_mask);
  }
  const Tensor grad =
      (conv->batched ? grad_output : grad_output.unsqueeze(0)).contiguous(conv->format);

  Gradients gradients;
  const auto gradient = [&](Pass pass, Operands operands, const Tensor& written) {
    const ConvProblem problem = conv->gradient(pass);
    const ConvPlan chosen = plan_on(input.get_device(), problem, wanted, /*prefer=*/true);
    if (chosen.family == FamilyId::kAten) return false;
    operands.y = read_only(grad);
    run(problem, chosen, operands, written.scalar_type());
    return true;
  };
  if (output_mask[0]) {
    Tensor dx = empty_like(input, conv->input.sizes(), conv->format);
    Operands operands;
    operands.x = dx.mutable_data_ptr();
    operands.w = read_only(conv->weight);
    if (!gradient(Pass::kDgrad, operands, dx)) {
      return by_aten(output_mask);
    }
    std::get<0>(gradients) = conv->batched ? dx : dx.squeeze(0);
  }
  if (output_mask[1]) {
    Tensor dw = empty_like(weight, weight.sizes(), conv->format);
    Operands operands;
    operands.x = read_only(conv->input);
    operands.w = dw.mutable_data_ptr();
    if (!gradient(Pass::kWgrad, operands, dw)) {
      return by_aten(output_mask);
    }
    std::get<1>(gradients) = dw;
  }
  if (output_mask[2]) std::get<2>(gradients) = grad.sum({0, 2, 3});
  return gradients;
}

}  // namespace

TORCH_LIBRARY_IMPL(customconv, CUDA, m) {
  m.impl("conv2d", conv2d_cuda);
  m.impl("conv2d_backward", conv2d_backward_cuda);
}

}  // namespace customconv::torch_layer
