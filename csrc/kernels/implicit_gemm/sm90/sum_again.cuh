// Sums of halves (../halves.cuh) that are not finite. An infinite value has a low half of zero,
// whose product with another infinite value is not a number, and products near the largest number
// overflow with either sign. Such sums are formed again in float32, one after the other.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/halves.cuh"
#include "kernels/implicit_gemm/sm90/finish.cuh"

namespace customconv::implicit_gemm::sm90 {

// The sum of an output: of the values whose halves the stages had. Taps outside the image meet
// zeros, and in input gradients nothing. Not inlined: it is seldom called.
static __device__ __noinline__ float sum_again(const Params& p, const Work& work, int position,
                                               int k) {
  const Halves& of = p.halves;
  const Phase& phase = p.phase[work.phase];
  const Place place(p, position);
  int32_t o = 0;
  int row = place.row;
  if (p.depth.is_deep) {
    o = row;
    row = p.depth.by_rows.split(o);
  }
  float sum = 0;
  for (int r = 0; r < phase.R; ++r) {
    const int t = p.depth.is_deep ? r / p.depth.filter_rows : 0;
    const int d = o * p.depth.stride - p.depth.pad + t * p.depth.dilation;
    const int h =
        row * p.stride_h - p.pad_h + phase.row + (r - t * p.depth.filter_rows) * p.dilation_h;
    for (int s = 0; s < phase.S; ++s) {
      const int w = (place.first_column + place.column) * p.stride_w - p.pad_w + phase.column +
                    s * p.dilation_w;
      const bool inside = d >= 0 && d < of.D && h >= 0 && h < of.H && w >= 0 && w < of.W;
      if (!inside && of.gradient) continue;
      const int tap = phase.first_tap + r * phase.tap_h + s * phase.tap_w;
      const float* const x = of.pixels + place.n * of.n + d * of.d + h * of.h + w * of.w;
      const float* const weight = of.weights + (int64_t{k} * of.taps + tap) * of.weight_row;
      const int run = 1 << of.bits;
      for (int i = 0; i < p.group_C / 2; ++i) {
        const int high = (i >> of.bits << of.bits) + i;  // where a row has its high half
        float own = 0;
        if (inside && of.c == 0) own = x[work.c + high] + x[work.c + high + run];
        if (inside && of.c > 0 && work.c / 2 + i < of.C) own = x[(work.c / 2 + i) * of.c];
        sum = fmaf(own, weight[high] + weight[high + run], sum);
      }
    }
  }
  return sum;
}

// A warpgroup's sums; see finish.cuh for which is where.
template <int kSpans, int kBlocks, int kSums>
__device__ inline void sum_again(const Params& p, const Work& work, int k,
                                 float (&sum)[kBlocks][kSums]) {
  float probe = 0;  // not a number if a sum is not finite
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) probe += sum[b][i] * 0;
  }
  if (is_finite(probe)) return;
  constexpr int kN = kSums * 2, kBits = 32;
  static_assert(kSums % kBits == 0);
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int first = 0; first < kSums; first += kBits) {
      float (&own)[kSums] = sum[b];
      uint32_t wrong = 0;
#pragma unroll
      for (int i = 0; i < kBits; ++i) {
        if (!is_finite(own[first + i])) wrong |= 1u << i;
      }
      for (; wrong != 0; wrong &= wrong - 1) {
        const int at = __ffs(static_cast<int>(wrong)) - 1, i = first + at;
        const int channel = k + b / kSpans * kBlockChannels + own_channel() + i / 2 % 2 * 8;
        const int position = work.position + b % kSpans * kN + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (channel >= work.last_k || Place(p, position).n >= p.N) continue;
        const float right = sum_again(p, work, position, channel);
#pragma unroll
        for (int n = 0; n < kBits; ++n) {
          if (n == at) own[first + n] = right;
        }
      }
    }
  }
}

}  // namespace customconv::implicit_gemm::sm90
