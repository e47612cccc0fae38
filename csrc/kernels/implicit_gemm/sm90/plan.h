// Which tiles compute a convolution fastest, and what a plan says of its tile.
#pragma once

#include "kernels/implicit_gemm/sm90/tile.h"
#include "plan/plan.h"

namespace customconv::implicit_gemm::sm90 {

// The cheapest plan, or one without a block; with `all`, every plan that was weighed goes there.
ConvPlan best_plan(const ConvProblem& asked, const DeviceProperties& device,
                   std::vector<ConvPlan>* all = nullptr, const Wanted& wanted = {});
// See Family: by the loader, the row of channels that a stage has, the packing and whether phases
// are joined. Taps follow each other in a stage, stages by channels, wherever a tile begins.
int64_t sum_order(const ConvProblem& asked, const ConvPlan& plan, bool has_epilogue);
LaunchShape shape(const ConvProblem& asked, const ConvPlan& plan);  // see Family
// Parts of the output's statistics that a plan's kernel leaves, one for each span of positions that
// a warpgroup stores (statistics.cuh); 0 where it leaves none.
int64_t statistics_parts(const ConvProblem& asked, const ConvPlan& plan);

}  // namespace customconv::implicit_gemm::sm90
