// Convolutions by kernels of ours that do more than the operators of torch/convolve.h.
#pragma once

#include "torch/convolve.h"
#include "torch/cuda/statistics.h"

namespace customconv::torch_layer {

// An output, and what its kernel left for the statistics of its channels.
struct WithStatistics {
  at::Tensor output;
  StatisticsMemory statistics;  // empty where the kernel leaves nothing
};

// `convolve` with what the kernel leaves for statistics, of a batch of images.
OrFallback<WithStatistics> convolve_with_statistics(const at::Tensor& input,
                                                    const at::Tensor& weight,
                                                    const std::optional<at::Tensor>& bias,
                                                    const Geometry& geometry);

// `convolve` with scale, residual and activation by the same kernel; without a value where no
// kernel does all of it.
std::optional<at::Tensor> convolve_fused(const at::Tensor& input, const at::Tensor& weight,
                                         const std::optional<at::Tensor>& bias,
                                         const Geometry& geometry, const FusedOptions& options,
                                         Algorithm wanted);

}  // namespace customconv::torch_layer
