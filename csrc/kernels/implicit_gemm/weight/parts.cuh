// Adds up what thread blocks have summed of different pixels, in a fixed order, and stores it.
#pragma once

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/weight/geometry.h"
#include "kernels/ptx/grid.cuh"

namespace customconv::implicit_gemm::weight {

constexpr int kPartThreads = 256;
constexpr int kPartVector = 4;  // input channels of a thread

template <typename T>
struct Parts {
  const float* partial;
  int count, parts;  // sums, and so many of each
  T* weight;
  int64_t weight_k, weight_c, weight_r, weight_s;
  bool vectors;  // a thread's results can be stored at once
  Divider<int32_t> by_C, by_S, by_R;
  bool exact;  // else what follows is needed
  const T *x, *y;
  ConvProblem problem;
};

struct Tap {
  int k, c, r, s;
};

// Zeros of dy, of pixels that do not exist, have met pixels of x that the tap does not meet: with a
// NaN or an infinity there they have made a NaN. Such a sum is computed anew, until it is known to
// be one.
template <typename T>
__device__ __noinline__ float sum_anew(const Parts<T>& parts, Tap at) {
  const ConvProblem& p = parts.problem;
  const int64_t channel = at.k / (p.K / p.groups) * (p.C / p.groups) + at.c;
  float total = 0;
  for (int64_t n = 0; n < p.N; ++n) {
    for (int64_t row = 0; row < p.P; ++row) {
      const int64_t h = row * p.stride_h + at.r * p.dilation_h - p.pad_h;
      if (h < 0 || h >= p.H) continue;
      const T* x = parts.x + n * p.x_strides[0] + channel * p.x_strides[1] + h * p.x_strides[2];
      const T* y = parts.y + n * p.y_strides[0] + at.k * p.y_strides[1] + row * p.y_strides[2];
      for (int64_t column = 0; column < p.Q; ++column) {
        const int64_t w = column * p.stride_w + at.s * p.dilation_w - p.pad_w;
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

// So many threads share the sums of four channels, each with every so-manieth part.
template <int kSharers, typename T>
__global__ void __launch_bounds__(kPartThreads) add_parts(const __grid_constant__ Parts<T> p) {
  constexpr int kSums = kPartThreads / kSharers, kFew = 8;
  __shared__ float4 shares[kSharers][kSums];
  ptx::await_dependency();
  const int sharer = static_cast<int>(threadIdx.x) / kSums;
  const int own = static_cast<int>(threadIdx.x) % kSums;
  const int64_t first = (int64_t{blockIdx.x} * kSums + own) * kPartVector;
  float4 total{};
  if (first < p.count) {
    // A sum of sums of a few, so that errors of rounding stay small.
    for (int part = sharer; part < p.parts; part += kFew * kSharers) {
      float4 few{};
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
        const int64_t number = part + i * kSharers;
        if (number >= p.parts) continue;
        add(few, *reinterpret_cast<const float4*>(p.partial + number * p.count + first));
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
  if (first >= p.count) return;
  Tap at;
  at.k = static_cast<int32_t>(first);
  at.c = p.by_C.split(at.k);
  at.s = p.by_S.split(at.k);
  at.r = p.by_R.split(at.k);
  float sums[kPartVector] = {total.x, total.y, total.z, total.w};
  if (!p.exact) {
#pragma unroll 1
    for (int i = 0; i < kPartVector; ++i) {
      if (sums[i] != sums[i]) sums[i] = sum_anew(p, {at.k, at.c + i, at.r, at.s});
    }
  }
  T* const to =
      p.weight + at.k * p.weight_k + at.c * p.weight_c + at.r * p.weight_r + at.s * p.weight_s;
  if (p.vectors) {
    *reinterpret_cast<uint2*>(to) =
        make_uint2(pack_pair<T>(sums[0], sums[1]), pack_pair<T>(sums[2], sums[3]));
  } else {
#pragma unroll
    for (int i = 0; i < kPartVector; ++i) to[i * p.weight_c] = narrow<T>(sums[i]);
  }
}

}  // namespace customconv::implicit_gemm::weight
