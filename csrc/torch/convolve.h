// Convolutions and their gradients by kernels of ours: device guard, checks, plan, output, launch.
// They are in cuda/, and in cpu/ is what the library for a PyTorch without CUDA has instead.
#pragma once

#include "torch/ops.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

// Whether this library has the CUDA half.
extern const bool kHasCuda;

// The output, or why PyTorch should compute it. Throws where a forced algorithm cannot run. Calls
// by kernels are counted; a caller counts the others, for which it calls PyTorch.
OrFallback<at::Tensor> convolve(const at::Tensor& input, const at::Tensor& weight,
                                const std::optional<at::Tensor>& bias, const Geometry& geometry,
                                Algorithm wanted, bool tf32 = allows_tf32());

// `convolve` into a given tensor, of a part of images, in this format. Without batch invariance the
// images do not matter. With it, a part gets the bits that it has in them, or false says that no
// plan gives it those, and nothing is written; of volumes no plan is known to.
OrFallback<bool> convolve_part(const at::Tensor& input, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, const Geometry& geometry,
                               Algorithm wanted, const Whole& whole, at::MemoryFormat format,
                               const at::Tensor& output);

// The gradients that the mask asks for. A forced family computes those that it can.
OrFallback<Gradients> convolve_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                        const at::Tensor& weight, const Geometry& geometry,
                                        std::array<bool, 3> output_mask, Algorithm wanted,
                                        bool tf32 = allows_tf32());

// Runs a plan on tensors that lie as its problem says, and writes one of them: for tuning. The
// problem is in the precision that was settled on, and the plan is one of its own (`tunable`). A
// plan that fuses is run with a ReLU behind bias and residual where the problem has an epilogue.
void run_plan(const ConvProblem& problem, const std::string& plan, const at::Tensor& x,
              const at::Tensor& w, const at::Tensor& y, const std::optional<at::Tensor>& bias,
              const std::optional<at::Tensor>& residual);

}  // namespace customconv::torch_layer
