// What a tile's results leave for the statistics of their channels (kernels/statistics), while they
// are in registers.
#pragma once

#include <cstdint>

#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/sm90/finish.cuh"

namespace customconv::implicit_gemm::sm90 {

// Adds up what the four threads have that share rows of the instruction.
__device__ inline float add_in_quad(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}

// Which positions of a span are pixels, for the thread's own: of words of 32 positions, bit
// j * 8 + i is that of the thread's position i of each eight.
template <int kPositions>
struct Pixels {
  uint32_t words[kPositions / 32];
  int count = 0;

  __device__ Pixels(const Params& p, const Work& work, int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kPositions / 32; ++i) {
      const Place place(p, first + i * 32 + lane);
      words[i] = __ballot_sync(~0u, place.offset(p, p.phase[work.phase]) >= 0);
      count += __popc(words[i]);
      words[i] >>= lane % 4 * 2;
    }
  }
  __device__ bool has(int j, int i) const { return (words[j / 4] >> (j % 4 * 8 + i) & 1) != 0; }
};

// The mean of a block's two channels and the sum of squared distances from it, of a span whose
// results are rounded. `kWhole`: all positions are pixels. Sums run in several chains, so that they
// do not wait for each other.
template <bool kWhole, int kSums>
__device__ inline void sum_span(const Pixels<2 * kSums>& pixels, const float (&sum)[kSums],
                                float (&means)[2], float (&squares)[2]) {
  const auto add_up = [&](auto value, float (&to)[2]) {
    float chains[2][2] = {};
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float added = value(sum[j * 4 + half * 2 + i], half, chains[half][i]);
          if (kWhole || pixels.has(j, i)) chains[half][i] = added;
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) to[half] = add_in_quad(chains[half][0] + chains[half][1]);
  };
  add_up([](float v, int, float chain) { return chain + v; }, means);
  const float share = 1 / static_cast<float>(kWhole ? 2 * kSums : max(pixels.count, 1));
  means[0] *= share;
  means[1] *= share;
  add_up(
      [&](float v, int half, float chain) {
        const float distance = v - means[half];
        return fmaf(distance, distance, chain);
      },
      squares);
}

// Rounds the results, and stores the mean of each channel and the sum of squared distances from it.
// Each span of positions is a part of its own. `k`: the first channel of the warpgroup's blocks.
template <typename T, int kSpans, int kBlocks, int kSums>
__device__ inline void store_statistics(const Params& p, const Work& work, int k,
                                        float (&sum)[kBlocks][kSums]) {
  constexpr int kPositions = 2 * kSums;  // of a span
  const StatisticsParts& to = p.epilogue.statistics;
  if (to.moments == nullptr) return;
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < kBlocks * kSums; i += 2) {
      const float2 pair = widen_pair<T>(pack_pair<T>(sum[0][i], sum[0][i + 1]));
      sum[0][i] = pair.x;
      sum[0][i + 1] = pair.y;
    }
  }
#pragma unroll
  for (int span = 0; span < kSpans; ++span) {
    const int first = work.position + span * kPositions;
    const int part = first / kPositions;
    const Pixels<kPositions> pixels(p, work, first);
    if (k + own_channel() == 0 && threadIdx.x % 4 == 0) {
      to.counts[part] = static_cast<float>(pixels.count);
    }
#pragma unroll
    for (int b = span; b < kBlocks; b += kSpans) {
      float means[2], squares[2];
      if (pixels.count == kPositions) {
        sum_span<true>(pixels, sum[b], means, squares);
      } else {
        sum_span<false>(pixels, sum[b], means, squares);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int channel = k + b / kSpans * kBlockChannels + own_channel() + half * 8;
        if (threadIdx.x % 4 > 0 || channel >= work.last_k) continue;
        const int64_t at = int64_t{part} * p.K + channel;
        reinterpret_cast<float2*>(to.moments)[at] = make_float2(means[half], squares[half]);
      }
    }
  }
}

}  // namespace customconv::implicit_gemm::sm90
