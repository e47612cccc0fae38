// Adds up what thread blocks have summed of different pixels, in a fixed order, and stores it.
#pragma once

#include "kernels/common/start.h"
#include "kernels/implicit_gemm/weight/output.cuh"
#include "kernels/ptx/grid.cuh"
#include "plan/problem.h"

namespace customconv::implicit_gemm::weight {

constexpr int kPartThreads = 256;

template <typename T>
struct Parts {
  Output<T> sums;
  int count;          // of a part, four sums at a time
  int first, chunks;  // of columns: see Spot
  Divider<int32_t> by_columns, by_warps;
  // Blocks of columns are taps of a chunk by blocks of channels, warpgroups rows of the filter by
  // others.
  Divider<int32_t> by_taps, by_channel_blocks, by_filter_rows, by_warpgroups;
  bool taps_first;  // what neighbours store: the taps of an input channel, else input channels
  bool exact;       // else what follows is needed
  bool flat;        // input channels are channels and taps, in the order of the weight in memory
  const T *x, *y;
  ConvProblem problem;
};

// Zeros of dy, of pixels that do not exist, have met pixels of x that the tap does not meet: with a
// NaN or an infinity there they have made a NaN. Such a sum is computed anew, until it is known to
// be one.
template <typename P>
__device__ __noinline__ float sum_anew(const P& parts, int group, int c, int k, int r, int s) {
  const ConvProblem& p = parts.problem;
  const auto C = static_cast<int>(p.C / p.groups);
  if (parts.flat) {
    const auto R = static_cast<int>(p.R), S = static_cast<int>(p.S);
    const bool by_channels = p.w_strides[1] == R * S;
    s = by_channels ? c % S : c / C % S;
    r = by_channels ? c / S % R : c / C / S;
    c = by_channels ? c / S / R : c % C;
  }
  const int channel = group * C + c;
  float total = 0;
  for (int64_t n = 0; n < p.N; ++n) {
    for (int64_t row = 0; row < p.P; ++row) {
      const int64_t h = row * p.stride_h + r * p.dilation_h - p.pad_h;
      if (h < 0 || h >= p.H) continue;
      const auto* x =
          parts.x + n * p.x_strides[0] + int64_t{channel} * p.x_strides[1] + h * p.x_strides[2];
      const auto* y = parts.y + n * p.y_strides[0] + k * p.y_strides[1] + row * p.y_strides[2];
      for (int64_t column = 0; column < p.Q; ++column) {
        const int64_t w = column * p.stride_w + s * p.dilation_w - p.pad_w;
        if (w < 0 || w >= p.W) continue;
        total = fmaf(widen(x[w * p.x_strides[3]]), widen(y[column * p.y_strides[3]]), total);
      }
      if (total != total) return total;
    }
  }
  return total;
}

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
  columns += p.by_channel_blocks.split(rest);
  warp += p.by_warpgroups.split(rest) * 4 + quarter;
  const int block =
      (rest * p.sums.by_filter_sets.divisor() + set) * p.sums.by_chunks.divisor() + chunk;
  const int number =
      (((block * p.by_warps.divisor() + warp) * p.by_columns.divisor() + columns) * 8 + vector) *
          32 +
      lane;
  const Share share(p.sums, block);
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
  if (!p.exact) {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const int k = at.k_of(p.sums, i), c = at.c_of(p.sums, i);
      if (sums[i] == sums[i] || k >= p.sums.group_K || c >= p.sums.group_C) continue;
      sums[i] = sum_anew(p, share.group, c, share.group * p.sums.group_K + k, at.r, at.s);
    }
  }
  store(p.sums, share, at, sums);
}

// `count`: sums of a part, four at a time.
template <typename T>
void add_up(const ConvProblem& problem, Parts<T>& p, const void* x, const void* y,
            cudaStream_t stream) {
  p.x = static_cast<const T*>(x);
  p.y = static_cast<const T*>(y);
  p.problem = problem;
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
