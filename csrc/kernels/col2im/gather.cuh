// What comes after the products: the sums over rows of taps go through shared memory, and every
// output adds up what its row of taps left in its reach.
#pragma once

#include <type_traits>

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
__device__ inline void store_batch(T* to, const float (&total)[kBatch]) {
  using Batch = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
  alignas(16) T batch[kBatch];
#pragma unroll
  for (int j = 0; j < kBatch; ++j) batch[j] = narrow<T>(total[j]);
  *reinterpret_cast<Batch*>(to) = *reinterpret_cast<const Batch*>(batch);
}

// A thread has an output pixel's channels of all phases of rows, where the channels are neighbours
// in memory some of them.
template <typename T>
__device__ inline void gather(const Params<T>& p, const Share& share, const float* sums) {
  const int outputs = p.by_outputs.divisor();  // of a row
  const int channels = min(p.channels, p.C - share.channel);
  const int turns_c = p.by_turns_c.divisor();
  const int phases = min(p.phases, p.h.stride - share.phase);
  for (int i = static_cast<int>(threadIdx.x); i < p.rows * outputs; i += blockDim.x) {
    int32_t row = i;
    int32_t place = p.by_outputs.split(row);
    const int first_c = p.by_sharers.split(place) * turns_c;
    const int x = share.column * p.w.stride + place - p.w.pad;
    int32_t phase = p.by_stride_w.split(place);
    if (x < 0 || x >= p.w.out) continue;
    // The phase's first tap, and how many follow at even distances.
    const bool has_taps = p.by_common.split(phase) == 0;
    int32_t turns = phase * p.inverse;
    const int tap = p.by_tap_step.split(turns);
    const int taps =
        has_taps && tap < p.w.taps ? p.by_tap_step.quotient(p.w.taps - 1 - tap) + 1 : 0;
    const int shift = p.by_stride_w.quotient(tap * p.w.dilation);
    const int step = p.by_tap_step.divisor() * p.sum_pitch - p.shift_step;
    const float* from =
        sums + (first_c * p.w.taps + tap) * p.sum_pitch + row * p.width + p.lead + place - shift;
    T* to = p.dx + share.n * p.x_n + (share.channel + first_c) * p.x_c + x * p.x_w;
    // Some outputs at a time, so that reads overlap.
    for (int line = 0; line < phases * turns_c; line += kBatch) {
      float total[kBatch] = {};
      int c[kBatch], y[kBatch];
      bool exists[kBatch];
      const float* column[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        int32_t own_phase = line + j;
        c[j] = p.by_turns_c.split(own_phase);
        y[j] = (share.row + row) * p.h.stride + share.phase + own_phase - p.h.pad;
        exists[j] = own_phase < phases && first_c + c[j] < channels && y[j] >= 0 && y[j] < p.h.out;
        column[j] = from + (own_phase * p.phase_columns + c[j] * p.w.taps) * p.sum_pitch;
      }
      for (int t = 0; t < taps; ++t) {
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          if (exists[j]) total[j] += column[j][t * step];
        }
      }
      if (p.stores_batches) {
        if (exists[0]) store_batch(to + y[0] * p.x_h, total);
        continue;
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (exists[j]) to[c[j] * p.x_c + y[j] * p.x_h] = narrow<T>(total[j]);
      }
    }
  }
}

}  // namespace customconv::col2im
