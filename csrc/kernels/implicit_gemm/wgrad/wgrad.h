// The family's weight gradients, as its planner sees them.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace customconv::implicit_gemm::wgrad {

const char* can_implement(const ConvProblem& problem, const DeviceProperties& device);
ConvPlan propose(const ConvProblem& problem, const DeviceProperties& device, const Wanted& wanted);
std::vector<ConvPlan> variants(const ConvProblem& problem, const DeviceProperties& device);
LaunchShape shape(const ConvProblem& problem, const ConvPlan& plan);  // see Family

// The same for channels-first tensors.
namespace planes {
const char* can_implement(const ConvProblem& problem, const DeviceProperties& device);
ConvPlan propose(const ConvProblem& problem, const DeviceProperties& device, const Wanted& wanted);
std::vector<ConvPlan> variants(const ConvProblem& problem, const DeviceProperties& device);
LaunchShape shape(const ConvProblem& problem, const ConvPlan& plan);
}  // namespace planes

}  // namespace customconv::implicit_gemm::wgrad
