// Adds up what thread blocks have summed of different pixels, in a fixed order, and stores it.
#pragma once

#include "kernels/common/start.h"
#include "kernels/implicit_gemm/weight/anew.cuh"
#include "kernels/implicit_gemm/weight/output.cuh"
#include "kernels/ptx/grid.cuh"

namespace customconv::implicit_gemm::weight {

constexpr int kPartThreads = 256;

template <typename T>
struct Parts {
  Output<T> sums;
  int count;          // of a part, four sums at a time
  int first, chunks;  // of columns: see Spot
  Divider<int32_t> by_columns, by_warps;
  // Where rows are input channels: taps of a chunk, warpgroups that are rows of the filter, blocks
  // of output channels and warpgroups that are not.
  Divider<int32_t> by_taps, by_filter_rows, by_channel_blocks, by_warpgroups;
  Source<T> from;
};

__device__ inline void add(float4& to, const float4& v) {
  to.x += v.x;
  to.y += v.y;
  to.z += v.z;
  to.w += v.w;
}

// So many threads share four sums, each with every so-manieth part.
template <int kSharers, typename T>
__global__ void __launch_bounds__(kPartThreads) add_parts(const __grid_constant__ Parts<T> p) {
  constexpr int kSums = kPartThreads / kSharers, kFew = 8;
  __shared__ float4 shares[kSharers][kSums];
  const int sharer = static_cast<int>(threadIdx.x) / kSums;
  const int own = static_cast<int>(threadIdx.x) % kSums;
  int32_t rest = static_cast<int32_t>(blockIdx.x) * kSums + own;
  const bool is_part = rest < p.count;
  int lane, vector, columns, warp;
  // Neighbours store neighbours.
  if (p.sums.rows_are_c) {
    // The taps of an input channel, then the next channels.
    columns = p.by_taps.split(rest) * p.sums.channel_blocks;
    warp = p.by_filter_rows.split(rest) * 4;
    lane = rest % 8 * 4 + rest / 8 % 4;
    warp += rest / 32 % 4;
    vector = rest / 128 % 8;
    rest /= 1024;
    columns += p.by_channel_blocks.split(rest);
    warp += p.by_warpgroups.split(rest) * 4;
  } else {
    // A row's channels: four lanes of eight vectors.
    lane = rest / 32 % 8 * 4 + rest % 4;
    vector = rest / 4 % 8;
    rest /= 256;
    columns = p.by_columns.split(rest);
    warp = p.by_warps.split(rest);
  }
  const int number =
      (((rest * p.by_warps.divisor() + warp) * p.by_columns.divisor() + columns) * 8 + vector) *
          32 +
      lane;
  const Share share(p.sums, rest);
  const Spot at(p.sums, share, p.first, p.chunks, warp, lane, columns * 8 + vector);
  const bool exists = is_part && at.exists;
  ptx::await_dependency();
  float4 total{};
  if (exists) {
    // A sum of sums of a few, so that errors of rounding stay small.
    for (int part = sharer; part < p.sums.splits; part += kFew * kSharers) {
      float4 few{};
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
        const int64_t from = part + i * kSharers;
        if (from < p.sums.splits) add(few, p.sums.partial[from * p.count + number]);
      }
      add(total, few);
    }
  }
  if constexpr (kSharers > 1) {
    shares[sharer][own] = total;
    __syncthreads();
    if (sharer > 0) return;
#pragma unroll
    for (int i = 1; i < kSharers; ++i) add(total, shares[i][own]);
  }
  if (!exists) return;
  float sums[4] = {total.x, total.y, total.z, total.w};
  if (!p.from.exact) renew(p.sums, p.from, share, at, sums);
  store(p.sums, share, at, sums);
}

// `count`: sums of a part, four at a time.
template <typename T>
void add_up(const ConvProblem& problem, Parts<T>& p, const void* x, const void* y,
            cudaStream_t stream) {
  p.from.x = static_cast<const T*>(x);
  p.from.y = static_cast<const T*>(y);
  p.from.problem = problem;
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

}  // namespace customconv::implicit_gemm::weight
