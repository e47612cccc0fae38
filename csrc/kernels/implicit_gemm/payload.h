// What a plan of the kernels of boxes and rows decides.
#pragma once

#include "kernels/implicit_gemm/tile.h"
#include "plan/payload.h"

namespace customconv::implicit_gemm {

struct BoxesRowsPlan {
  static constexpr PlanKind kKind = PlanKind::implicit_gemm_boxes_rows;
  Fetch fetch = Fetch::kShared;
  int kernel = 0;  // of kKernels
  Shape shape = Shape::kSquares;
  bool apart_h = false, apart_w = false;  // taps along an axis have planes of their own
  // Warps multiply, threads copy: for compute capability 8.0 and later, not only Hopper.
  bool by_warps = false;
  bool clustered = false;  // see Tile
  int tile[3] = {};        // rows, columns, images
  int stages[2] = {};      // of the input and of the weights
};

}  // namespace customconv::implicit_gemm
