// What a plan of the kernels of warps (mma.sync) decides.
#pragma once

#include "kernels/implicit_gemm/mma_sync/tile.h"
#include "plan/payload.h"

namespace customconv::implicit_gemm::mma_sync {

struct MmaSyncPlan {
  static constexpr PlanKind kKind = PlanKind::implicit_gemm_mma_sync;
  Fetch fetch = Fetch::kShared;
  int kernel = 0;  // of kKernels
  Shape shape = Shape::kSquares;
  bool apart_h = false, apart_w = false;  // taps along an axis have planes of their own
  int tile[3] = {};                       // rows, columns, images
  int stages[2] = {};                     // of the input and of the weights
};

}  // namespace customconv::implicit_gemm::mma_sync
