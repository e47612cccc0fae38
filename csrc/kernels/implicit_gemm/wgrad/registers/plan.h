// Plans of float32 weight gradients, which differ from those of 16 bits (geometry.h).
#pragma once

#include <vector>

#include "plan/plan.h"

namespace customconv::implicit_gemm::wgrad::registers {

// Whether x has few channels, and a plan.
bool has_few(const ConvProblem& problem, const DeviceProperties& device);
ConvPlan propose(const ConvProblem& problem, const DeviceProperties& device, const Wanted& wanted);
std::vector<ConvPlan> variants(const ConvProblem& problem, const DeviceProperties& device);
LaunchShape shape(const ConvProblem& problem, const ConvPlan& plan);

}  // namespace customconv::implicit_gemm::wgrad::registers
