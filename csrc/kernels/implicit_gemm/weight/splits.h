// Into how many parts the pixels of a weight gradient are split.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plan/problem.h"

namespace customconv::implicit_gemm::weight {

// Tensor cores cut bits off a sum with each product they add. No sum has more pixels than this;
// parts are added up in float32, rounded.
constexpr int64_t kMostSummed = 1 << 16;
constexpr int64_t kMostTurns = 3;

inline int64_t least_splits(int64_t tiles, int64_t tile_pixels) {
  return std::min(ceil_divide(tiles * tile_pixels, kMostSummed), tiles);
}

// Calls `weigh(splits)` with each number of parts that keeps the multiprocessors busy for a whole
// number of turns, and with one part where sums are short enough. `blocks`: that share a part.
template <typename Weigh>
void weigh_splits(int64_t tiles, int64_t tile_pixels, int64_t blocks, int64_t sm_count,
                  const Weigh& weigh) {
  const int64_t least = least_splits(tiles, tile_pixels);
  const int64_t turns = ceil_divide(least * blocks, sm_count);
  for (int64_t turn = least > 1 ? turns : 0; turn <= std::max(turns, kMostTurns); ++turn) {
    const int64_t most = std::clamp(turn * sm_count / blocks, least, tiles);
    // No more than what the busiest block needs.
    weigh(ceil_divide(tiles, ceil_divide(tiles, most)));
  }
}

}  // namespace customconv::implicit_gemm::weight
