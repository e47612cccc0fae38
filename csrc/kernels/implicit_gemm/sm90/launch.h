// Starts the main loop.
#pragma once

#include "kernels/launch.h"

namespace customconv::implicit_gemm::sm90 {

template <typename T>
void launch(const ConvProblem& asked, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context);

}  // namespace customconv::implicit_gemm::sm90
