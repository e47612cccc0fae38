// From a planned problem to launched kernels.
#pragma once

#include <ATen/ATen.h>

#include "kernels/launch.h"

namespace customconv::torch_layer {

// On the current device and stream; the workspace comes from PyTorch's allocator.
void run(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
         at::ScalarType dtype);

}  // namespace customconv::torch_layer
