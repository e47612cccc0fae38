// Into how many parts the pixels of a weight gradient are split.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/implicit_gemm/wgrad/geometry.h"
#include "plan/problem.h"

namespace customconv::implicit_gemm::wgrad {

// Tensor cores cut bits off a sum with each product they add. No sum has more pixels than this;
// parts are added up in float32, rounded.
constexpr int64_t kMostSummed = 5 << 14;
constexpr int64_t kMostTurns = 3;

// Calls `weigh(splits, clustered)` with each number of parts that keeps the multiprocessors busy
// for a whole number of turns, with one part where sums are short enough, and with those of a
// cluster. `blocks`: that share a part.
template <typename Weigh>
void weigh_splits(int64_t tiles, int64_t tile_pixels, int64_t blocks, int64_t sm_count,
                  const Weigh& weigh) {
  const int64_t least = std::min(ceil_divide(tiles * tile_pixels, kMostSummed), tiles);
  const int64_t turns = ceil_divide(least * blocks, sm_count);
  for (int64_t turn = least > 1 ? turns : 0; turn <= std::max(turns, kMostTurns); ++turn) {
    const int64_t most = std::clamp(turn * sm_count / blocks, least, tiles);
    // No more than what the busiest block needs.
    weigh(ceil_divide(tiles, ceil_divide(tiles, most)), /*clustered=*/false);
  }
  for (int64_t splits = 1; splits <= std::min<int64_t>(kMostClustered, tiles); splits *= 2) {
    if (splits >= least) weigh(splits, /*clustered=*/true);
  }
}

// The same where `weigh` returns choices, without `ms` what cannot be: adds the cheapest of parts,
// and the cheapest of clusters.
template <typename Weigh, typename Choice>
void choose_splits(int64_t tiles, int64_t tile_pixels, int64_t blocks, int64_t sm_count,
                   const Weigh& weigh, std::vector<Choice>& choices) {
  Choice best[2]{};
  weigh_splits(tiles, tile_pixels, blocks, sm_count, [&](int64_t splits, bool clustered) {
    const Choice choice = weigh(splits, clustered);
    Choice& known = best[clustered];
    if (choice.ms > 0 && (known.ms == 0 || choice.ms < known.ms)) known = choice;
  });
  for (const Choice& choice : best) {
    if (choice.ms > 0) choices.push_back(choice);
  }
}

// What it costs that threads fill a box of so many pixels, rows of `row_channels`, in clocks. The
// last rows' channels, `channels` in all, may be fewer.
constexpr double kFillClocks = 1350;  // of four units of each thread
inline double fill_clocks(int64_t pixels, int64_t channels, int boxes, int row_channels, int unit,
                          int threads) {
  double rounds = 0;
  for (int i = 0; i < boxes && channels > 0; ++i, channels -= row_channels) {
    int64_t units = 1;
    while (units * unit < std::min<int64_t>(channels, row_channels)) units *= 2;
    rounds += static_cast<double>(ceil_divide(pixels * units, int64_t{4} * threads));
  }
  return rounds * kFillClocks;
}

// What it costs that clusters add up so many sums of each of their blocks, in clocks, and the
// multiprocessors that they reach.
constexpr double kClusterBytesPerClock = 16.6;  // of the others' shared memory
constexpr double kClusterMs = 0.000172;         // for each block of a cluster
constexpr double kClusterShare = 0.834;  // of the multiprocessors, that those above two reach
inline double exchange_clocks(double sums, int64_t cluster) {
  constexpr double kSharedBytesPerClock = 128;
  const double others = static_cast<double>(cluster - 1) / static_cast<double>(cluster);
  return sums * 4 * (1 / kSharedBytesPerClock + others / kClusterBytesPerClock);
}
inline int64_t reached_by_clusters(int64_t sm_count, int64_t cluster) {
  const auto count = static_cast<double>(sm_count) * (cluster > 2 ? kClusterShare : 1);
  return std::max(static_cast<int64_t>(count) / cluster * cluster, cluster);
}

}  // namespace customconv::implicit_gemm::wgrad
