// Adds up what thread blocks have summed of different pixels, in a fixed order, and stores it.
#pragma once

#include "kernels/common/start.h"
#include "kernels/implicit_gemm/weight/sums.cuh"
#include "kernels/ptx/grid.cuh"

namespace customconv::implicit_gemm::weight {

constexpr int kPartThreads = 256;

template <typename T>
struct Parts {
  Params<T> sums;
  int count;          // of a part, four sums at a time
  int first, chunks;  // of columns: see Spot
  Divider<int32_t> by_columns, by_warps;
  bool exact;  // else what follows is needed
  const T *x, *y;
  ConvProblem problem;
};

// Zeros of dy, of pixels that do not exist, have met pixels of x that the tap does not meet: with a
// NaN or an infinity there they have made a NaN. Such a sum is computed anew, until it is known to
// be one.
template <typename T>
__device__ __noinline__ float sum_anew(const ConvProblem& p, const T* all_x, const T* all_y,
                                       int channel, int k, int r, int s) {
  float total = 0;
  for (int64_t n = 0; n < p.N; ++n) {
    for (int64_t row = 0; row < p.P; ++row) {
      const int64_t h = row * p.stride_h + r * p.dilation_h - p.pad_h;
      if (h < 0 || h >= p.H) continue;
      const T* x =
          all_x + n * p.x_strides[0] + int64_t{channel} * p.x_strides[1] + h * p.x_strides[2];
      const T* y = all_y + n * p.y_strides[0] + k * p.y_strides[1] + row * p.y_strides[2];
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

// Four sums, number `own` of the thread block's, of all their parts. So many threads share them,
// each with every so-manieth part; the first one has the total.
template <int kSharers>
__device__ float4 add_shares(const float4* partial, int count, int parts, int number, bool exists,
                             int sharer, int own) {
  constexpr int kSums = kPartThreads / kSharers, kFew = 8;
  __shared__ float4 shares[kSharers][kSums];
  float4 total{};
  if (exists) {
    // A sum of sums of a few, so that errors of rounding stay small.
    for (int part = sharer; part < parts; part += kFew * kSharers) {
      float4 few{};
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
        const int64_t from = part + i * kSharers;
        if (from < parts) add(few, partial[from * count + number]);
      }
      add(total, few);
    }
  }
  if constexpr (kSharers > 1) {
    shares[sharer][own] = total;
    __syncthreads();
    if (sharer > 0) return total;
#pragma unroll
    for (int i = 1; i < kSharers; ++i) add(total, shares[i][own]);
  }
  return total;
}

template <int kSharers, typename T>
__global__ void __launch_bounds__(kPartThreads) add_parts(const __grid_constant__ Parts<T> p) {
  constexpr int kSums = kPartThreads / kSharers;
  const int sharer = static_cast<int>(threadIdx.x) / kSums;
  const int own = static_cast<int>(threadIdx.x) % kSums;
  // Neighbours have a row's channels: four lanes of eight vectors.
  int32_t rest = static_cast<int32_t>(blockIdx.x) * kSums + own;
  const bool is_part = rest < p.count;
  const int lane = rest / 32 % 8 * 4 + rest % 4, vector = rest / 4 % 8;
  rest /= 256;
  const int columns = p.by_columns.split(rest), warp = p.by_warps.split(rest);
  const int number =
      (((rest * p.by_warps.divisor() + warp) * p.by_columns.divisor() + columns) * 8 + vector) *
          32 +
      lane;
  const Share share(p.sums, rest);
  const Spot at(p.sums, share, p.first, p.chunks, warp, lane, columns * 8 + vector);
  const bool exists = is_part && at.exists;
  ptx::await_dependency();
  const float4 total =
      add_shares<kSharers>(p.sums.partial, p.count, p.sums.splits, number, exists, sharer, own);
  if (!exists || sharer > 0) return;
  float sums[4] = {total.x, total.y, total.z, total.w};
  if (!p.exact) {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const int k = at.k + i / 2 * 8;
      if (sums[i] == sums[i] || k >= p.sums.group_K) continue;
      sums[i] = sum_anew(p.problem, p.x, p.y, share.group * p.sums.group_C + at.c + i % 2,
                         share.group * p.sums.group_K + k, at.r, at.s);
    }
  }
  store_pair(p.sums, share, at, at.k, sums[0], sums[1]);
  if (at.k + 8 < p.sums.group_K) store_pair(p.sums, share, at, at.k + 8, sums[2], sums[3]);
}

// Starts the kernel of `count` times four sums with as many sharers as so many parts are worth.
template <typename P>
void start_adding(int count, int parts, cudaStream_t stream, void (*one)(P), void (*eight)(P),
                  void (*many)(P), const P& p) {
  constexpr int kFewParts = 16, kSomeParts = 64;
  const int sharers = parts <= kFewParts ? 1 : parts <= kSomeParts ? 8 : 32;
  Start how{ceil_divide(count, kPartThreads / sharers), kPartThreads};
  how.stream = stream;
  how.early = true;
  start("implicit_gemm: the parts of the weight gradient", how,
        sharers == 1   ? one
        : sharers == 8 ? eight
                       : many,
        p);
}

}  // namespace customconv::implicit_gemm::weight
