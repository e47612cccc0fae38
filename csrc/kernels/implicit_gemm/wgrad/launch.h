// The family's weight gradients, as its launcher sees them.
#pragma once

#include "kernels/launch.h"
#include "plan/plan.h"

namespace customconv::implicit_gemm::wgrad {

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context);
template <>
void launch<float>(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
                   const LaunchContext& context);

}  // namespace customconv::implicit_gemm::wgrad
