// Weights laid out as units (PackedWeight in tile.h).
#pragma once

#include <cstdint>

#include "kernels/common/check.h"
#include "kernels/common/divide.cuh"
#include "kernels/implicit_gemm/mma_sync/tile.h"
#include "kernels/implicit_gemm/pack.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm::mma_sync {

template <typename T>
__device__ inline T rounded(T v) {
  return v;
}
template <>
__device__ inline float rounded<float>(float v) {
  return __uint_as_float(ptx::round_tf32(__float_as_uint(v)));
}

// Units (tile of k, piece, r, s): two halves of 16 bytes, each of the tile's k. Where `flat`, the
// channels of all taps are one dimension, and there is one tap. Zeros where the tensor ends. A
// block of threads has a piece of some k: each thread reads all taps of a channel, which often
// follow each other, and stores 16 bytes of channels.
constexpr int kUnitBlock = 128;
constexpr int kMostTaps = 32;  // that a block keeps at a time

template <typename T>
__global__ void __launch_bounds__(kUnitBlock)
    pack_units(int taps, int pieces, Divider<int32_t> by_S, Divider<int32_t> by_C, bool flat,
               int tile_channels, WeightSource<T> from, uint4* __restrict__ packed) {
  constexpr int kHalf = 16 / static_cast<int>(sizeof(T)), kPiece = 2 * kHalf;
  constexpr int kKs = kUnitBlock / kPiece;
  __shared__ alignas(16) T part[kKs][kMostTaps][kPiece];
  ptx::launch_dependent_grids();
  const int piece = blockIdx.x % pieces, first_k = blockIdx.x / pieces * kKs;
  const int tile = first_k / tile_channels;
  const int own_k = threadIdx.x / kPiece, own_c = threadIdx.x % kPiece;
  const int k = first_k + own_k;
  int32_t c = piece * kPiece + own_c, tap_of_c = 0;
  if (flat) {
    tap_of_c = c;
    c = by_C.split(tap_of_c);
  }
  const bool exists = k < from.K && c < from.C && tap_of_c < from.taps;
  const T* w = from.channel(k) + c * from.c;
  for (int first = 0; first < taps; first += kMostTaps) {
    const int count = min(kMostTaps, taps - first);
    for (int i = 0; i < count; ++i) {
      int32_t r = tap_of_c + first + i;
      const int s = by_S.split(r);
      part[own_k][i][own_c] = exists ? rounded(w[r * from.r + s * from.s]) : narrow<T>(0.0f);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count * 2 * kKs; i += kUnitBlock) {
      const int row = i % kKs, half = i / kKs % 2, tap = i / (2 * kKs);
      const int64_t unit = (int64_t{tile} * pieces + piece) * taps + first + tap;
      packed[(unit * 2 + half) * tile_channels + first_k % tile_channels + row] =
          *reinterpret_cast<const uint4*>(&part[row][tap][half * kHalf]);
    }
    __syncthreads();
  }
}

template <typename T>
void pack_weight_units(const Forward& p, const Tile& tile, const PackedWeight& packed, const T* w,
                       T* to, cudaStream_t stream) {
  using D = Divider<int32_t>;
  const WeightSource<T> from = weight_source(p, w);
  const int64_t count = packed.rows * packed.row;
  const int64_t taps = tile.is_flat() ? 1 : from.taps;
  pack_units<T><<<static_cast<unsigned>(count / (kUnitBlock * taps)), kUnitBlock, 0, stream>>>(
      static_cast<int>(taps), tile.pieces, D(p.taps_w), D(p.group_C()), tile.is_flat(),
      tile.kind().channels, from, reinterpret_cast<uint4*>(to));
  check_launch("implicit_gemm: the weight");
}

}  // namespace customconv::implicit_gemm::mma_sync
