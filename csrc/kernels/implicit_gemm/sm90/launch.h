// Starts the main loop.
#pragma once

#include "kernels/implicit_gemm/sm90/params.h"
#include "kernels/implicit_gemm/sm90/plan.h"
#include "kernels/launch.h"

namespace customconv::implicit_gemm::sm90 {

template <typename T>
void launch(const ConvProblem& asked, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context);

using Kernel = void (*)(Params);

// The kernel of a tile, or null; `kFused`: with an epilogue; `kAsStored`: of an input gradient
// whose weights the instruction transposes. Each combination is compiled in a file of its own.
template <typename T, bool kFused, bool kAsStored>
Kernel kernel_of(const Tile& tile);

}  // namespace customconv::implicit_gemm::sm90
