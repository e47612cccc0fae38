// Starts the kernels of warps (mma.sync).
#pragma once

#include "kernels/launch.h"

namespace customconv::implicit_gemm::mma_sync {

template <typename T>
void launch(const ConvProblem& asked, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context);

}  // namespace customconv::implicit_gemm::mma_sync
