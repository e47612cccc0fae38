// Adds up what thread blocks have summed of different pixels, in a fixed order, and stores it.
#pragma once

#include "kernels/common/start.h"
#include "kernels/implicit_gemm/wgrad/anew.cuh"
#include "kernels/implicit_gemm/wgrad/output.cuh"
#include "kernels/ptx/grid.cuh"

namespace customconv::implicit_gemm::wgrad {

constexpr int kPartThreads = 256;

template <typename T>
struct Parts {
  Output<T> sums;
  int count;      // of a part, four sums at a time
  int most_taps;  // see Spot
  Divider<int32_t> by_columns, by_warps;
  // Blocks of columns are taps of a chunk by blocks of channels, warpgroups rows of the filter by
  // others.
  Divider<int32_t> by_taps, by_filter_rows, by_warpgroups;
  bool taps_first;  // what neighbours store: the taps of an input channel, else input channels
};

__device__ inline void add(float4& to, const float4& v) {
  to.x += v.x;
  to.y += v.y;
  to.z += v.z;
  to.w += v.w;
}

// Four sums of so many parts, `count` apart. So many threads share them, each with every so-manieth
// part; the first has the total.
template <int kSharers>
__device__ inline float4 add_shares(const float4* partial, int64_t count, int parts) {
  constexpr int kSums = kPartThreads / kSharers, kFew = 8;
  const int sharer = static_cast<int>(threadIdx.x) / kSums;
  const int own = static_cast<int>(threadIdx.x) % kSums;
  float4 total{};
  // A sum of sums of a few, so that errors of rounding stay small.
  for (int part = sharer; part < parts; part += kFew * kSharers) {
    float4 few{};
#pragma unroll
    for (int i = 0; i < kFew; ++i) {
      const int64_t from = part + i * kSharers;
      if (from < parts) add(few, partial[from * count]);
    }
    add(total, few);
  }
  if constexpr (kSharers > 1) {
    __shared__ float4 shares[kSharers][kSums];
    shares[sharer][own] = total;
    __syncthreads();
    if (sharer > 0) return total;
#pragma unroll
    for (int i = 1; i < kSharers; ++i) add(total, shares[i][own]);
  }
  return total;
}

// So many threads share four sums.
template <int kSharers, typename T>
__global__ void __launch_bounds__(kPartThreads) add_parts(const __grid_constant__ Parts<T> p) {
  constexpr int kSums = kPartThreads / kSharers;
  const int sharer = static_cast<int>(threadIdx.x) / kSums;
  const int own = static_cast<int>(threadIdx.x) % kSums;
  int32_t rest = static_cast<int32_t>(blockIdx.x) * kSums + own;
  const bool is_part = rest < p.count;
  int chunk = 0, set = 0, columns = 0, warp = 0;
  const auto take_taps = [&] {
    chunk = p.sums.by_chunks.split(rest);
    set = p.sums.by_filter_sets.split(rest);
    columns = p.by_taps.split(rest) * p.sums.channel_blocks;
    warp = p.by_filter_rows.split(rest) * 4;
  };
  // Neighbours store neighbours.
  if (p.taps_first) take_taps();
  const int place = rest % 1024;
  rest /= 1024;
  int lane, vector;
  if (p.sums.rows_are_c) {
    lane = place % 8 * 4 + place / 8 % 4;
    vector = place / 128;
  } else {
    lane = place / 32 % 8 * 4 + place % 4;
    vector = place / 4 % 8;
  }
  const int quarter = p.sums.rows_are_c ? place / 32 % 4 : place / 256;
  if (!p.taps_first) take_taps();
  columns += p.sums.by_channel_blocks.split(rest);
  warp += p.by_warpgroups.split(rest) * 4 + quarter;
  const int block =
      (rest * p.sums.by_filter_sets.divisor() + set) * p.sums.by_chunks.divisor() + chunk;
  const int number =
      (((block * p.by_warps.divisor() + warp) * p.by_columns.divisor() + columns) * 8 + vector) *
          32 +
      lane;
  const Share share(p.sums, block);
  const Spot at(p.sums, share, p.most_taps, warp, lane, columns * 8 + vector);
  const bool exists = is_part && at.exists;
  ptx::wait_on_dependent_grids();
  const float4 total =
      add_shares<kSharers>(p.sums.partial + number, p.count, exists ? p.sums.splits : 0);
  if (!exists || sharer > 0) return;
  float sums[4] = {total.x, total.y, total.z, total.w};
  renew(p.sums, share, at, sums);
  store(p.sums, share, at, sums);
}

template <typename T>
void add_up(const Parts<T>& p, cudaStream_t stream) {
  constexpr int kFewParts = 16, kSomeParts = 64;  // of one sharer, and of eight
  const auto start_with = [&](int sharers, void (*kernel)(Parts<T>)) {
    Start how{ceil_divide(p.count, kPartThreads / sharers), kPartThreads};
    how.stream = stream;
    how.early = true;
    start("implicit_gemm: the parts of the weight gradient", how, kernel, p);
  };
  if (p.sums.splits <= kFewParts) {
    start_with(1, add_parts<1, T>);
  } else if (p.sums.splits <= kSomeParts) {
    start_with(8, add_parts<8, T>);
  } else {
    start_with(32, add_parts<32, T>);
  }
}

}  // namespace customconv::implicit_gemm::wgrad
