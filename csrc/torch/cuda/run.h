// From a planned problem to launched kernels.
#pragma once

#include <ATen/ATen.h>

#include "kernels/launch.h"

namespace customconv::torch_layer {

// Writes `result`, on the current device and stream; the workspace comes from PyTorch's allocator.
// The bias of an input gradient is added by PyTorch where the plan does not fuse it.
void run(const ConvProblem& problem, const ConvPlan& plan, Operands operands,
         const at::Tensor& result, const std::optional<at::Tensor>& bias = {});

}  // namespace customconv::torch_layer
