// A convolution with the statistics that a batch norm in training needs, by PyTorch's operators.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>

namespace customconv::torch_layer {

// A batch norm as far as its statistics go. What is running is updated in place, where it is given.
struct BatchNormStatistics {
  double eps;
  std::optional<at::Tensor> running_mean, running_var;  // (K,)
  double momentum;
};

// The output, and of each channel the variance of the population, the mean and the reciprocal of
// the standard deviation, 1 / sqrt(variance + eps): (1, K, 1, 1), of volumes (1, K, 1, 1, 1), in
// float32, or in float64 where the output is.
using OutputAndStatistics = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Throws unless the input is a batch of images (2 dimensions) or volumes (3), and what is running
// has a number for each channel.
void check_statistics(int dims, const at::Tensor& input, const at::Tensor& weight,
                      const BatchNormStatistics& norm);

// The sizes of an output's statistics.
at::DimVector statistics_sizes(const at::Tensor& output);

// The statistics of an output.
OutputAndStatistics with_statistics(at::Tensor output, const BatchNormStatistics& norm);

}  // namespace customconv::torch_layer
