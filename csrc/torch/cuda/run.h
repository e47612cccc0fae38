// From a planned problem to launched kernels.
#pragma once

#include <ATen/ATen.h>

#include "kernels/launch.h"

namespace customconv::torch_layer {

// Writes `result`, on the current device and stream; the workspace comes from PyTorch's allocator.
// The bias of an input gradient is added by PyTorch where the plan does not fuse it.
void run(const ConvProblem& problem, const ConvPlan& plan, Operands operands,
         const at::Tensor& result, const std::optional<at::Tensor>& bias = {});

// Runs a plan on tensors that lie as its problem says, and writes one of them: for tuning. The
// problem is in the precision that was settled on, and the plan is one of its own (`tunable`). A
// plan that fuses is run with a ReLU behind bias and residual where the problem has an epilogue.
void run_plan(const ConvProblem& problem, const ConvPlan& plan, const at::Tensor& x,
              const at::Tensor& w, const at::Tensor& y, const std::optional<at::Tensor>& bias,
              const std::optional<at::Tensor>& residual);

}  // namespace customconv::torch_layer
