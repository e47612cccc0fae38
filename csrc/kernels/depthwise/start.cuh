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

inline float* parts_of(const LaunchShape& shape, const LaunchContext& context) {
  return shape.workspace_bytes > 0 ? static_cast<float*>(context.workspace) : nullptr;
}

// Starts a plan's kernel; where it leaves parts of a weight, by tap and then by channel, also the
// one that adds them up and stores them by `place`. `early`: the kernel waits for the one in front.
template <typename T, typename Params>
void start_plan(const LaunchShape& shape, int64_t splits, const LaunchContext& context,
                void (*kernel)(Params), const Params& params, T* weight, int64_t count,
                const WeightPlace& place, bool early = false, int cluster = 1) {
  start("depthwise",
        {shape.blocks, shape.threads, shape.shared_bytes, context.stream, early, cluster}, kernel,
        params);
  if (shape.workspace_bytes == 0) return;
  add_up("depthwise: the parts of the weight gradient", parts_of(shape, context), count, splits,
         weight, place, /*early=*/true, context.stream);
}

}  // namespace customconv::depthwise
