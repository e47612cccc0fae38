// The family's weight gradients, as its planner and its launcher see them.
#pragma once

#include <vector>

#include "kernels/launch.h"
#include "plan/plan.h"

namespace customconv::implicit_gemm::weight {

const char* can_implement(const ConvProblem& problem, const DeviceProperties& device);
ConvPlan propose(const ConvProblem& problem, const DeviceProperties& device);
std::vector<ConvPlan> variants(const ConvProblem& problem, const DeviceProperties& device);

// Of 16-bit elements.
template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context);

}  // namespace customconv::implicit_gemm::weight
