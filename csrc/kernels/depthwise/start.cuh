// What the launchers of threads, boxes and planes share.
#pragma once

#include "kernels/common/parts.cuh"
#include "kernels/common/start.h"
#include "kernels/common/weight_place.cuh"
#include "kernels/launch.h"

namespace customconv::depthwise {

// What a pass walks from and to: an input gradient from y to x.
template <typename T>
struct Tensors {
  Tensors(Pass pass, const Operands& operands)
      : in(static_cast<T*>(pass == Pass::kDgrad ? operands.y : operands.x)),
        weight(static_cast<T*>(operands.w)),
        out(static_cast<T*>(pass == Pass::kDgrad ? operands.x : operands.y)) {}

  T *in, *weight, *out;
};

// Whether a weight gradient's blocks that share channels are a cluster; else they leave parts.
inline bool is_clustered(const ConvPlan& plan) {
  return plan.splits > 1 && plan.workspace_bytes == 0;
}
inline float* parts_of(const ConvPlan& plan, const LaunchContext& context) {
  return plan.workspace_bytes > 0 ? static_cast<float*>(context.workspace) : nullptr;
}

// Starts a plan's kernel; where it leaves parts of a weight, by tap and then by channel, also the
// one that adds them up and stores them by `place`. `early`: the kernel waits for the one in front.
template <typename T, typename Params>
void start_plan(const ConvPlan& plan, const LaunchContext& context, void (*kernel)(Params),
                const Params& params, T* weight, int64_t count, const WeightPlace& place,
                bool early = false) {
  Start how{plan.grid[0], plan.block, plan.shared_bytes, context.stream, early};
  if (is_clustered(plan)) how.cluster = static_cast<int>(plan.splits);
  start("depthwise", how, kernel, params);
  if (plan.workspace_bytes == 0) return;
  add_up("depthwise: the parts of the weight gradient", parts_of(plan, context), count, plan.splits,
         weight, place, /*early=*/true, context.stream);
}

}  // namespace customconv::depthwise
