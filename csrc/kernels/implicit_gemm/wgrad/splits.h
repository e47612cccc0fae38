// Into how many parts the pixels of a weight gradient are split.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/implicit_gemm/wgrad/geometry.h"
#include "plan/problem.h"

namespace customconv::implicit_gemm::wgrad {

// Tensor cores cut bits off a sum with each product they add. No sum has more pixels than this;
// parts are added up in float32, rounded.
constexpr int64_t kMostSummed = 5 << 14;
constexpr int64_t kMostHalvesSummed = 1 << 14;  // sums of halves have steps of their own
constexpr int64_t kMostTurns = 3;

// Calls `weigh(splits, clustered)` with each number of parts that keeps the multiprocessors busy
// for a whole number of turns, with one part where sums are short enough, and with those of a
// cluster. `blocks`: that share a part; `summed`: pixels of a sum, at most.
template <typename Weigh>
void weigh_splits(int64_t tiles, int64_t tile_pixels, int64_t blocks, int64_t sm_count,
                  int64_t summed, const Weigh& weigh) {
  const int64_t least = std::min(ceil_divide(tiles * tile_pixels, summed), tiles);
  const int64_t turns = ceil_divide(least * blocks, sm_count);
  int64_t last = 0;
  for (int64_t turn = least > 1 ? turns : turns - 1; turn <= std::max(turns, kMostTurns); ++turn) {
    const int64_t most = std::clamp(turn * sm_count / blocks, least, tiles);
    // No more than what the busiest block needs.
    const int64_t splits = ceil_divide(tiles, ceil_divide(tiles, most));
    if (splits != last) weigh(splits, /*clustered=*/false);
    last = splits;
  }
  for (int64_t splits = 1; splits <= std::min<int64_t>(kMostClustered, tiles); splits *= 2) {
    if (splits >= least) weigh(splits, /*clustered=*/true);
  }
}

}  // namespace customconv::implicit_gemm::wgrad
