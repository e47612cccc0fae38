// The family's launcher, and the kernels around its main ones.
#pragma once

#include "kernels/implicit_gemm/mma_sync/launch.h"
#include "kernels/implicit_gemm/pack_weights.cuh"
#include "kernels/implicit_gemm/sm90/launch.h"
#include "kernels/implicit_gemm/weave.cuh"
#include "kernels/implicit_gemm/wgrad/launch.h"
#include "kernels/launch.h"

namespace customconv::implicit_gemm {

template <typename T>
void launch(const ConvProblem& asked, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  if (plan.payload.kind() == PlanKind::implicit_gemm_main_loop) {
    sm90::launch<T>(asked, plan, operands, context);
  } else if (asked.pass == Pass::kWgrad) {
    wgrad::launch<T>(asked, plan, operands, context);
  } else {
    mma_sync::launch<T>(asked, plan, operands, context);
  }
}

}  // namespace customconv::implicit_gemm
