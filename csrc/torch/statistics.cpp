#include "torch/statistics.h"

#include <torch/library.h>

#include "torch/ops.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

using at::Tensor;

void check_statistics(int dims, const Tensor& input, const Tensor& weight,
                      const BatchNormStatistics& norm) {
  TORCH_CHECK(input.dim() == dims + 2, "conv", dims, "d_statistics: expected a batch of ",
              dims == 2 ? "images" : "volumes", ", but got an input of shape ", input.sym_sizes());
  for (const auto* running : {&norm.running_mean, &norm.running_var}) {
    if (!*running || !(*running)->defined()) continue;
    const Tensor& t = **running;
    TORCH_CHECK(t.dim() == 1 && t.sym_size(0) == weight.sym_size(0) && t.device() == input.device(),
                "conv", dims, "d_statistics: expected running statistics of shape [",
                weight.sym_size(0), "] on ", input.device(), ", but got ", t.sym_sizes(), " on ",
                t.device());
  }
}

at::DimVector statistics_sizes(const Tensor& output) {
  at::DimVector sizes(static_cast<size_t>(output.dim()), 1);
  sizes[1] = output.size(1);
  return sizes;
}

OutputAndStatistics with_statistics(Tensor output, const BatchNormStatistics& norm) {
  const bool wide = output.scalar_type() == at::kDouble;
  auto [variance, mean] =
      at::var_mean(output.to(wide ? at::kDouble : at::kFloat), all_but_channels(output.dim()),
                   /*correction=*/0, /*keepdim=*/true);
  const auto update = [&](const std::optional<Tensor>& running, const Tensor& value) {
    if (!running || !running->defined()) return;
    running->mul_(1 - norm.momentum).add_(value.view({-1}), norm.momentum);
  };
  const auto pixels = static_cast<double>(output.numel() / output.size(1));
  update(norm.running_mean, mean);
  update(norm.running_var, variance * (pixels / (pixels - 1)));
  Tensor reciprocal_std = (variance + norm.eps).rsqrt();
  return {std::move(output), std::move(variance), std::move(mean), std::move(reciprocal_std)};
}

namespace {

template <int kDims>
OutputAndStatistics conv_statistics(const Tensor& input, const Tensor& weight,
                                    const std::optional<Tensor>& bias, at::IntArrayRef stride,
                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                    int64_t groups, double eps,
                                    const std::optional<Tensor>& running_mean,
                                    const std::optional<Tensor>& running_var, double momentum) {
  const BatchNormStatistics norm{eps, running_mean, running_var, momentum};
  check_statistics(kDims, input, weight, norm);
  return with_statistics(conv<kDims>(input, weight, bias, c10::fromIntArrayRefSlow(stride),
                                     c10::fromIntArrayRefSlow(padding),
                                     c10::fromIntArrayRefSlow(dilation), groups, "auto"),
                         norm);
}

}  // namespace

// For graphs that are compiled: it has no derivative.
TORCH_LIBRARY_IMPL(customconv, CompositeExplicitAutograd, m) {
  m.impl("conv2d_statistics", conv_statistics<2>);
  m.impl("conv3d_statistics", conv_statistics<3>);
}

}  // namespace customconv::torch_layer
