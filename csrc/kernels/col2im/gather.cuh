// What comes after the products: the sums over rows of taps go through shared memory, and every
// output adds up what its row of taps left in its reach.
#pragma once

#include "kernels/col2im/params.cuh"

namespace customconv::col2im {

// What a block has: the first places of its tile, phases of rows and channels.
struct Share {
  int n, row, column, phase, channel;
};

// Sums lie by column, pixels behind each other.
template <typename T, int kColumnBlocks, int kWarpBlocks>
__device__ inline void spread_sums(const Params<T>& p, int first_block,
                                   const float (&sum)[kWarpBlocks][kColumnBlocks][4], float* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < kWarpBlocks; ++m) {
    const int pixel = (first_block + m) * kBlockPixels;
    if (pixel >= p.rows * p.width) break;
#pragma unroll
    for (int block = 0; block < kColumnBlocks; ++block) {
      float* to = sums + (block * kBlockColumns + lane % 4 * 2) * p.sum_pitch + pixel + lane / 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i % 2 * p.sum_pitch + i / 2 * 8] = sum[m][block][i];
    }
  }
}

template <typename T>
__device__ inline void gather(const Params<T>& p, const Share& share, const float* sums) {
  int32_t first_outer = static_cast<int>(threadIdx.x);
  const int first = p.by_store_threads.split(first_outer);
  const int groups = static_cast<int>(blockDim.x) / p.store_threads;
  if (first_outer >= groups) return;
  const int outer_channels = p.by_outer_channels.divisor();
  for (int i = first; i < p.columns * p.w.stride * p.inner_channels; i += p.store_threads) {
    int32_t place = i;
    const int inner_c = p.by_inner_channels.split(place);
    const int x = share.column * p.w.stride + place - p.w.pad;
    const int phase = p.by_stride_w.split(place);
    // The phase's first tap: the others follow at even distances.
    int tap = 0;
    while (tap < p.row_step && tap * p.w.dilation % p.w.stride != phase) ++tap;
    const int taps = tap < p.row_step && tap < p.w.taps ? (p.w.taps - 1 - tap) / p.row_step + 1 : 0;
    if (x < 0 || x >= p.w.out) continue;
    const int at = tap * p.sum_pitch + p.lead + place - tap * p.w.dilation / p.w.stride;
    const int step = p.row_step * p.sum_pitch - p.shift_step;
    T* image = p.dx + share.n * p.x_n + x * p.x_w;
    for (int j = first_outer; j < p.rows * p.phases * outer_channels; j += groups) {
      int32_t row = j;
      const int c = p.by_outer_channels.split(row) * p.inner_channels + inner_c;
      const int phase_h = p.by_phases.split(row);
      const int y = (share.row + row) * p.h.stride + share.phase + phase_h - p.h.pad;
      if (share.phase + phase_h >= p.h.stride || y < 0 || y >= p.h.out || c >= p.channels ||
          share.channel + c >= p.C) {
        continue;
      }
      const float* from =
          sums + (phase_h * p.phase_columns + c * p.w.taps) * p.sum_pitch + row * p.width + at;
      float total = 0;
      for (int t = 0; t < taps; ++t) total += from[t * step];
      image[(share.channel + c) * p.x_c + y * p.x_h] = narrow<T>(total);
    }
  }
}

}  // namespace customconv::col2im
