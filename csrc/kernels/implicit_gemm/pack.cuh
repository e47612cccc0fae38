// Filters laid out as the copy engine wants them.
#pragma once

#include <cstdint>

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm {

constexpr int kPackBlock = 256;

template <typename T>
struct WeightSource {
  const T* w;
  int64_t k, c, r, s;  // strides
  int K, C, R;
};

// A matrix (K, R, S, row): zeros behind the last channel.
template <typename T>
__global__ void __launch_bounds__(kPackBlock)
    pack_matrix(int count, Divider<int32_t> row, Divider<int32_t> by_S, Divider<int32_t> by_R,
                WeightSource<T> from, T* __restrict__ packed) {
  for (int at = blockIdx.x * kPackBlock + threadIdx.x; at < count; at += gridDim.x * kPackBlock) {
    int32_t k = at;
    const int c = row.split(k);
    const int s = by_S.split(k);
    const int r = by_R.split(k);
    packed[at] = c < from.C ? from.w[k * from.k + c * from.c + r * from.r + s * from.s]
                            : narrow<T>(0.0f);
  }
}

template <typename T>
__device__ inline T rounded(T v) {
  return v;
}
template <>
__device__ inline float rounded<float>(float v) {
  return __uint_as_float(ptx::round_tf32(__float_as_uint(v)));
}

// Units (tile of k, piece, r, s): two halves of 16 bytes, each of the tile's k. Where `flat`, the
// channels of all taps are one dimension. Zeros where the tensor ends; a thread stores 16 bytes.
template <typename T>
__global__ void __launch_bounds__(kPackBlock)
    pack_units(int count, Divider<int32_t> halves, Divider<int32_t> by_S, Divider<int32_t> by_R,
               Divider<int32_t> pieces, Divider<int32_t> by_C, bool flat, int tile_channels,
               WeightSource<T> from, uint4* __restrict__ packed) {
  constexpr int kUnit = 16 / static_cast<int>(sizeof(T));
  for (int at = blockIdx.x * kPackBlock + threadIdx.x; at < count; at += gridDim.x * kPackBlock) {
    int32_t tile = at;
    const int in_unit = halves.split(tile);
    const int half = in_unit / tile_channels;
    int s = 0, r = 0;
    if (!flat) {
      s = by_S.split(tile);
      r = by_R.split(tile);
    }
    const int first = (pieces.split(tile) * 2 + half) * kUnit;
    const int k = tile * tile_channels + in_unit % tile_channels;
    alignas(16) T value[kUnit];
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      int32_t c = first + i;
      bool exists = k < from.K;
      if (flat) {
        r = c;
        c = by_C.split(r);
        s = by_S.split(r);
        exists = exists && r < from.R;
      } else {
        exists = exists && c < from.C;
      }
      value[i] = narrow<T>(0.0f);
      if (exists) value[i] = rounded(from.w[k * from.k + c * from.c + r * from.r + s * from.s]);
    }
    packed[at] = *reinterpret_cast<const uint4*>(value);
  }
}

}  // namespace customconv::implicit_gemm
