// Convolutions and their gradients by kernels of ours: device guard, checks, plan, output, launch.
#pragma once

#include "torch/cuda/statistics.h"
#include "torch/ops.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

// The output, or why PyTorch should compute it. Throws where a forced algorithm cannot run. Calls
// by kernels are counted; a caller counts the others, for which it calls PyTorch.
OrFallback<at::Tensor> convolve(const at::Tensor& input, const at::Tensor& weight,
                                const std::optional<at::Tensor>& bias, const Geometry& geometry,
                                Algorithm wanted, bool tf32 = allows_tf32());

// An output, and what its kernel left for the statistics of its channels.
struct WithStatistics {
  at::Tensor output;
  StatisticsMemory statistics;  // empty where the kernel leaves nothing
};

// The same with what the kernel leaves for statistics, of a batch of images.
OrFallback<WithStatistics> convolve_with_statistics(const at::Tensor& input,
                                                    const at::Tensor& weight,
                                                    const std::optional<at::Tensor>& bias,
                                                    const Geometry& geometry);

// The same with scale, residual and activation by the same kernel; without a value where no kernel
// does all of it.
std::optional<at::Tensor> convolve_fused(const at::Tensor& input, const at::Tensor& weight,
                                         const std::optional<at::Tensor>& bias,
                                         const Geometry& geometry, const FusedOptions& options,
                                         Algorithm wanted);

// The gradients that the mask asks for. A forced family computes those that it can.
OrFallback<Gradients> convolve_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                        const at::Tensor& weight, const Geometry& geometry,
                                        std::array<bool, 3> output_mask, Algorithm wanted,
                                        bool tf32 = allows_tf32());

}  // namespace customconv::torch_layer
