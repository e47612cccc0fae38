#include "torch/statistics.h"

#include <torch/library.h>

#include "torch/ops.h"

namespace customconv::torch_layer {

using at::Tensor;

void check_statistics(const Tensor& input, const Tensor& weight, const BatchNormStatistics& norm) {
  TORCH_CHECK(input.dim() == 4, "conv2d_statistics: expected a batch of images, but got an input ",
              "of shape ", input.sym_sizes());
  for (const auto* running : {&norm.running_mean, &norm.running_var}) {
    if (!*running || !(*running)->defined()) continue;
    const Tensor& t = **running;
    TORCH_CHECK(t.dim() == 1 && t.sym_size(0) == weight.sym_size(0) && t.device() == input.device(),
                "conv2d_statistics: expected running statistics of shape [", weight.sym_size(0),
                "] on ", input.device(), ", but got ", t.sym_sizes(), " on ", t.device());
  }
}

OutputAndStatistics with_statistics(Tensor output, const BatchNormStatistics& norm) {
  const bool wide = output.scalar_type() == at::kDouble;
  auto [variance, mean] = at::var_mean(output.to(wide ? at::kDouble : at::kFloat), {0, 2, 3},
                                       /*correction=*/0, /*keepdim=*/true);
  const auto update = [&](const std::optional<Tensor>& running, const Tensor& value) {
    if (!running || !running->defined()) return;
    running->mul_(1 - norm.momentum).add_(value.view({-1}), norm.momentum);
  };
  const auto pixels = static_cast<double>(output.size(0) * output.size(2) * output.size(3));
  update(norm.running_mean, mean);
  update(norm.running_var, variance * (pixels / (pixels - 1)));
  Tensor reciprocal_std = (variance + norm.eps).rsqrt();
  return {std::move(output), std::move(variance), std::move(mean), std::move(reciprocal_std)};
}

namespace {

OutputAndStatistics conv2d_statistics(const Tensor& input, const Tensor& weight,
                                      const std::optional<Tensor>& bias, at::IntArrayRef stride,
                                      at::IntArrayRef padding, at::IntArrayRef dilation,
                                      int64_t groups, double eps,
                                      const std::optional<Tensor>& running_mean,
                                      const std::optional<Tensor>& running_var, double momentum) {
  const BatchNormStatistics norm{eps, running_mean, running_var, momentum};
  check_statistics(input, weight, norm);
  return with_statistics(
      conv2d(input, weight, bias, c10::fromIntArrayRefSlow(stride),
             c10::fromIntArrayRefSlow(padding), c10::fromIntArrayRefSlow(dilation), groups, "auto"),
      norm);
}

}  // namespace

// For graphs that are compiled: it has no derivative.
TORCH_LIBRARY_IMPL(customconv, CompositeExplicitAutograd, m) {
  m.impl("conv2d_statistics", conv2d_statistics);
}

}  // namespace customconv::torch_layer
