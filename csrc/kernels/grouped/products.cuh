// Products of boxes of pixels, where they lie, and weights.
#pragma once

#include <cstdint>

#include "kernels/grouped/block.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::grouped {

// What a lane multiplies of all groups of a set, and of one alone.
struct AllGroups {
  template <int kWords>
  __device__ void apply(int, uint32_t (&)[kWords]) const {}
};
template <typename T>
struct OneGroup {
  int group, C;  // of the set, and its channels
  int pieces;

  template <int kWords>
  __device__ void apply(int step, uint32_t (&words)[kWords]) const {
    constexpr int kElements = 4 / static_cast<int>(sizeof(T)), kBits = 32 / kElements;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int word = (step * 2 + i / 2) % pieces * 4 + static_cast<int>(threadIdx.x) % 4;
      uint32_t mask = 0;
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if ((word * kElements + e) / C == group) mask |= (~0u >> (32 - kBits)) << e * kBits;
      }
      words[i] &= mask;
    }
  }
};

// A step's weights of a warp, of each instruction both pieces. `weights`: where a lane's row is of
// the first step.
template <int kChannels>
__device__ inline void load_filter(uint32_t weights, int step, uint32_t (&filter)[kChannels][2]) {
  const uint32_t at = weights + step * kChannels * kStepWeights;
  if constexpr (kChannels == 1) {
    ptx::load_matrices(at, filter[0]);
  } else {
#pragma unroll
    for (int j = 0; j < kChannels; j += 2) {
      uint32_t both[4];
      ptx::load_matrices(at + j * kStepWeights, both);
#pragma unroll
      for (int i = 0; i < 4; ++i) filter[j + i / 2][i % 2] = both[i];
    }
  }
}

// Adds so many pieces of taps' channels, two a step. `pixel`: the addresses of the rows of a lane's
// pixels.
template <typename T, int kPixels, int kChannels, typename Groups>
__device__ inline void add_boxes(const uint32_t (&pixel)[kPixels], const int* table,
                                 uint32_t weights, int pieces, const Groups& groups,
                                 float (&sum)[kPixels][kChannels][4]) {
#pragma unroll 2
  for (int step = 0; step < pieces / 2; ++step) {
    const int at = table[step * 2];
    uint32_t filter[kChannels][2], operand[kPixels][4];
    load_filter(weights, step, filter);
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      ptx::load_matrices(swizzle(pixel[i] + at), operand[i]);
      groups.apply(step, operand[i]);
    }
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        ptx::multiply_add<T>(sum[i][j], operand[i], filter[j][0], filter[j][1]);
      }
    }
  }
  if (pieces % 2 == 0) return;
  const int at = table[pieces - 1];
  uint32_t filter[kChannels][2];
  load_filter(weights, pieces / 2, filter);
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    uint32_t operand[2];
    ptx::load_matrices(swizzle(pixel[i] + at), operand);
    groups.apply(pieces / 2, operand);
#pragma unroll
    for (int j = 0; j < kChannels; ++j) ptx::multiply_add<T>(sum[i][j], operand, filter[j][0]);
  }
}

template <int kPixels, int kChannels>
__device__ inline bool any_is_not_finite(const float (&sum)[kPixels][kChannels][4]) {
  float zero = 0;
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) zero = fmaf(sum[i][j][e], 0.0f, zero);
    }
  }
  return __any_sync(~0u, zero != 0);
}

// Sums again, group by group of a set.
template <typename T, int kPixels, int kChannels>
__device__ inline void add_groups(const BoxParams<T>& p, const uint32_t (&pixel)[kPixels],
                                  const int* table, uint32_t weights, int pieces,
                                  const LaneChannels& channels,
                                  float (&sum)[kPixels][kChannels][4]) {
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    const uint32_t one[1] = {pixel[i]};
#pragma unroll 1
    for (int group = 0; group < p.work.pack; ++group) {
      float own[1][kChannels][4] = {};
      add_boxes<T>(one, table, weights, pieces, OneGroup<T>{group, p.group_C, p.work.pieces}, own);
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int k = channels.in_set + j * kBoxChannelTile + e % 2;
          if (p.by_K.quotient(k) == group) sum[i][j][e] = own[0][j][e];
        }
      }
    }
  }
}

}  // namespace customconv::grouped
