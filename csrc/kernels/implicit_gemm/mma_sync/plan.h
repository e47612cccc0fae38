// Which tiles compute a convolution fastest where warps multiply.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace customconv::implicit_gemm::mma_sync {

// The cheapest plan, or one without a block; with `all`, every plan that was weighed goes there.
ConvPlan best_plan(const ConvProblem& asked, const DeviceProperties& device,
                   std::vector<ConvPlan>* all = nullptr, const Wanted& wanted = {});
// See Family: by what pixels are fetched with and how taps are apart. Tiles count only with an
// epilogue, in which compilers may join a product and a sum.
int64_t sum_order(const ConvPlan& plan, bool has_epilogue);
LaunchShape shape(const ConvProblem& asked, const ConvPlan& plan);  // see Family

}  // namespace customconv::implicit_gemm::mma_sync
