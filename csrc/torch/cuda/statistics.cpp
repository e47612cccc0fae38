#include "torch/cuda/statistics.h"

#include <ATen/cuda/EmptyTensor.h>
#include <torch/library.h>

#include <limits>

#include "torch/core.h"
#include "torch/cuda/convolve.h"
#include "torch/cuda/place.h"
#include "torch/statistics.h"

namespace customconv::torch_layer {

namespace {

using at::Tensor;

Tensor empty_floats(at::IntArrayRef sizes, c10::Device device) {
  return at::detail::empty_cuda(sizes, at::kFloat, device, std::nullopt);
}

// Whether a kernel updates it, if it is given.
bool is_updatable(const std::optional<Tensor>& running) {
  return !running || !running->defined() ||
         (running->scalar_type() == at::kFloat && running->is_contiguous());
}

float* updated(const std::optional<Tensor>& running) {
  return running && running->defined() ? running->mutable_data_ptr<float>() : nullptr;
}

// A dense output as kernels read it.
ConvProblem described(const Tensor& output) {
  const Shape5 shape = shape_of(output.sizes());
  const Shape5 sizes = rows_of_slices(shape);
  ConvProblem p;
  p.dtype = dtype_of(output.scalar_type());
  p.N = sizes[0];
  p.K = sizes[1];
  p.P = sizes[2];
  p.Q = sizes[3];
  p.y_strides = dense_strides(sizes, dense_layout(shape, strides_of(output)));
  return p;
}

template <int kDims>
OutputAndStatistics conv_statistics_cuda(const Tensor& input, const Tensor& weight,
                                         const std::optional<Tensor>& bias, at::IntArrayRef stride,
                                         at::IntArrayRef padding, at::IntArrayRef dilation,
                                         int64_t groups, double eps,
                                         const std::optional<Tensor>& running_mean,
                                         const std::optional<Tensor>& running_var,
                                         double momentum) {
  const BatchNormStatistics norm{eps, running_mean, running_var, momentum};
  check_statistics(kDims, input, weight, norm);
  auto convolved =
      convolve_with_statistics(input, weight, bias, {kDims, stride, padding, dilation, groups});
  if (!convolved) {
    return with_statistics(conv<kDims>(input, weight, bias, c10::fromIntArrayRefSlow(stride),
                                       c10::fromIntArrayRefSlow(padding),
                                       c10::fromIntArrayRefSlow(dilation), groups, "auto"),
                           norm);
  }
  Tensor& output = convolved->output;
  const ConvProblem problem = described(output);
  const bool wide = output.scalar_type() == at::kDouble;
  const bool fits = problem.P * problem.Q <= std::numeric_limits<int32_t>::max();
  if (wide || !fits || !is_updatable(running_mean) || !is_updatable(running_var)) {
    return with_statistics(std::move(output), norm);
  }
  const c10::DeviceGuard guard(output.device());
  const Place place = place_on(output.device().index());
  const KernelLibrary& kernels = *customconv_kernels(place.device);
  StatisticsMemory& memory = convolved->statistics;
  if (memory.count == 0) {
    memory = {kernels.count_statistics_parts(problem), problem.K, output.device()};
    check(kernels.statistics_parts(problem, output.const_data_ptr(), memory.parts, place));
  }
  Tensor found[3];  // variance, mean, reciprocal_std
  for (Tensor& each : found) each = empty_floats(statistics_sizes(output), output.device());
  statistics::Merged to;
  to.variance = found[0].mutable_data_ptr<float>();
  to.mean = found[1].mutable_data_ptr<float>();
  to.reciprocal_std = found[2].mutable_data_ptr<float>();
  to.eps = static_cast<float>(eps);
  to.running_mean = updated(running_mean);
  to.running_variance = updated(running_var);
  to.momentum = static_cast<float>(momentum);
  check(kernels.merge_statistics(memory.parts, memory.count, problem.K,
                                 problem.N * problem.P * problem.Q, to, place));
  return {std::move(output), found[0], found[1], found[2]};
}

}  // namespace

StatisticsMemory::StatisticsMemory(int64_t count, int64_t channels, c10::Device device)
    : count(count) {
  if (count == 0) return;
  memory = empty_floats({count * (2 * channels + 1)}, device);
  parts.moments = memory.mutable_data_ptr<float>();
  parts.counts = parts.moments + count * 2 * channels;
}

TORCH_LIBRARY_IMPL(customconv, CUDA, m) {
  m.impl("conv2d_statistics", conv_statistics_cuda<2>);
  m.impl("conv3d_statistics", conv_statistics_cuda<3>);
}

}  // namespace customconv::torch_layer
