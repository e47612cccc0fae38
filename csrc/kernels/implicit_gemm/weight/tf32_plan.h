// Plans of float32 weight gradients, which differ from those of 16 bits (tf32_geometry.h).
#pragma once

#include <vector>

#include "plan/plan.h"

namespace customconv::implicit_gemm::weight::tf32 {

ConvPlan propose(const ConvProblem& problem, const DeviceProperties& device);
std::vector<ConvPlan> variants(const ConvProblem& problem, const DeviceProperties& device);

}  // namespace customconv::implicit_gemm::weight::tf32
