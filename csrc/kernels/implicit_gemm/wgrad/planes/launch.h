// Weight gradients of channels-first tensors, as their launcher sees them.
#pragma once

#include "kernels/launch.h"
#include "plan/plan.h"

namespace customconv::implicit_gemm::wgrad::planes {

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context);

}  // namespace customconv::implicit_gemm::wgrad::planes
