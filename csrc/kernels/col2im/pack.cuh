// Weights laid out as blocks read them.
#pragma once

#include "kernels/col2im/geometry.h"
#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::col2im {

constexpr int kPackThreads = 256;

template <typename T>
struct Weights {
  const T* w;
  int64_t k, c, r, s;  // strides
  int K, C, R, S, stride, dilation;
  int phases, channels, phase_columns;  // of a block
  int shifts[kMostShifts];
  // The dimensions of what is packed, innermost first.
  Divider<int32_t> by_chunk_channels, by_columns, by_shifts, by_k_chunks, by_channel_chunks;
  int count;
};

template <typename T>
__device__ inline T round_weight(T v) {
  return v;
}
template <>
__device__ inline float round_weight<float>(float v) {
  return __uint_as_float(ptx::round_tf32(__float_as_uint(v)));
}

// (chunk of phases, chunk of channels, chunk of k, shift, column, k): zeros where there is no tap.
template <typename T>
__global__ void __launch_bounds__(kPackThreads)
    pack_weights(const __grid_constant__ Weights<T> from, T* __restrict__ packed) {
  ptx::launch_dependent_grids();
  const int at = static_cast<int>(blockIdx.x) * kPackThreads + static_cast<int>(threadIdx.x);
  if (at >= from.count) return;
  int32_t chunk = at;
  int k = from.by_chunk_channels.split(chunk);
  const int column = from.by_columns.split(chunk);
  const int shift = from.shifts[from.by_shifts.split(chunk)];
  k += from.by_k_chunks.split(chunk) * from.by_chunk_channels.divisor();
  const int first_c = from.by_channel_chunks.split(chunk) * from.channels;
  const int own_phase = column / from.phase_columns, rest = column % from.phase_columns;
  const int own_c = rest / from.S, c = first_c + own_c;
  const int phase = chunk * from.phases + own_phase;
  const int r = tap_of(phase, shift, from.stride, from.dilation, from.R);
  const bool exists = own_phase < from.phases && phase < from.stride && r >= 0 &&
                      own_c < from.channels && c < from.C && k < from.K;
  packed[at] =
      exists ? round_weight(
                   from.w[k * from.k + c * from.c + r * from.r + int64_t{rest % from.S} * from.s])
             : narrow<T>(0.0f);
}

}  // namespace customconv::col2im
