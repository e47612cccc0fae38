// What becomes of the sums of boxes: the epilogue, and the ways to the image.
#pragma once

#include <cstdint>

#include "kernels/grouped/block.cuh"
#include "kernels/grouped/output.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::grouped {

template <typename T, int kPixels, int kChannels>
__device__ inline void finish_sums(const Epilogue& e, const Rest& rest, const Spot* spots,
                                   const LaneChannels& channels, int64_t out_c,
                                   float (&sum)[kPixels][kChannels][4]) {
  const auto add_residual = [&] {
#pragma unroll
    for (int i = 0; i < kPixels * 2; ++i) {
      const Spot spot = spots[i * 8];
      if (!rest.has(spot)) continue;
      const T* from =
          static_cast<const T*>(e.residual) + rest.offset + spot.offset + channels.first * out_c;
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          if (k < channels.count(j)) {
            sum[i / 2][j][i % 2 * 2 + k] += widen(from[(j * kBoxChannelTile + k) * out_c]);
          }
        }
      }
    }
  };
#pragma unroll
  for (int j = 0; j < kChannels; ++j) {
    const Affine<2, T> affine(e, channels.first + j * kBoxChannelTile, channels.count(j));
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        sum[i][j][k] = fmaf(sum[i][j][k], affine.scale[k % 2], affine.bias[k % 2]);
      }
    }
  }
  if (e.residual != nullptr && !e.residual_last) add_residual();
  activate<kPixels * kChannels * 4>(&sum[0][0][0], e.activation, e.negative_slope);
  if (e.residual != nullptr && e.residual_last) add_residual();
}

// Puts sums where TMA finds them: rows of a pixel's channels, swizzled as those of
// boxes are, where they can be.
template <typename T, int kPixels, int kChannels>
__device__ inline void stage_sums(const BoxParams<T>& p, char* staging, int pixel,
                                  const LaneChannels& channels,
                                  const float (&sum)[kPixels][kChannels][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t to = ptx::shared_address(staging) + (pixel + lane / 4) * p.work.out_row_bytes;
  const uint32_t swizzled = swizzled_bits(p.work.out_row_bytes);
#pragma unroll
  for (int j = 0; j < kChannels; ++j) {
    if (channels.count(j) <= 0) break;
    const int bytes = (channels.in_block + j * kBoxChannelTile) * static_cast<int>(sizeof(T));
    const int box = p.by_row_bytes.quotient(bytes);
    const uint32_t place = to + box * p.work.out_box_bytes + bytes - box * p.work.out_row_bytes;
#pragma unroll
    for (int i = 0; i < kPixels * 2; ++i) {
      if (pixel + i * 8 + lane / 4 >= p.tile.pixels) break;
      const float* pair = &sum[i / 2][j][i % 2 * 2];
      const uint32_t address = swizzle(place + i * 8 * p.work.out_row_bytes, swizzled);
      if constexpr (sizeof(T) == 4) {
        ptx::store_shared(address, pair[0], pair[1]);
      } else {
        ptx::store_shared(address, pack_pair<T>(pair[0], pair[1]));
      }
    }
  }
}

// The same in planes of pixels.
template <typename T, int kPixels, int kChannels>
__device__ inline void stage_planes(const BoxParams<T>& p, char* staging, int pixel,
                                    const LaneChannels& channels,
                                    const float (&sum)[kPixels][kChannels][4]) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t to = ptx::shared_address(staging) + pixel * kSize;
  if constexpr (kSize == 2) {
    if (p.work.K % kBoxChannelTile == 0) {
      // Matrices: the pixels of two instructions, eight by eight, by the same channels.
      const int own = lane % 4 * 2;
      const uint32_t place =
          to + (channels.in_block - own + lane % 8) * p.work.out_pitch + lane / 8 * 16;
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        if (channels.in_set - own + j * kBoxChannelTile >= p.work.K) break;
#pragma unroll
        for (int i = 0; i < kPixels; i += 2) {
          const float (&a)[4] = sum[i][j];
          const float (&b)[4] = sum[i + 1][j];
          ptx::store_transposed_matrices(place + j * kBoxChannelTile * p.work.out_pitch + i * 32,
                                         pack_pair<T>(a[0], a[1]), pack_pair<T>(a[2], a[3]),
                                         pack_pair<T>(b[0], b[1]), pack_pair<T>(b[2], b[3]));
        }
      }
      return;
    }
  }
  char* own = staging + (pixel + lane / 4) * kSize + channels.in_block * p.work.out_pitch;
#pragma unroll
  for (int j = 0; j < kChannels; ++j) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (k >= channels.count(j)) continue;
      char* line = own + (j * kBoxChannelTile + k) * p.work.out_pitch;
#pragma unroll
      for (int i = 0; i < kPixels * 2; ++i) {
        *reinterpret_cast<T*>(line + i * 8 * kSize) = narrow<T>(sum[i / 2][j][i % 2 * 2 + k]);
      }
    }
  }
}

// Stores staged planes. `first`, `count`: of all channels those of the block.
template <typename Vector, typename T>
__device__ inline void store_planes(const BoxParams<T>& p, const Rest& rest, const Spot* spots,
                                    int first, int count, const char* staging, int threads) {
  const int vectors = p.by_vectors.divisor();
  for (int i = threadIdx.x; i < count * vectors; i += threads) {
    int32_t channel = i;
    const int at = p.by_vectors.split(channel) * static_cast<int>(sizeof(Vector));
    const Spot spot = spots[at / static_cast<int>(sizeof(T))];
    if (!rest.has(spot)) continue;
    T* to = p.out + rest.offset + spot.offset + (first + channel) * p.out_c;
    *reinterpret_cast<Vector*>(to) =
        *reinterpret_cast<const Vector*>(staging + channel * p.work.out_pitch + at);
  }
}
template <typename T>
__device__ inline void store_planes(const BoxParams<T>& p, const Rest& rest, const Spot* spots,
                                    int first, int count, const char* staging, int threads) {
  switch (p.store_bytes) {
    case 16:
      store_planes<uint4>(p, rest, spots, first, count, staging, threads);
      break;
    case 8:
      store_planes<uint2>(p, rest, spots, first, count, staging, threads);
      break;
    case 4:
      store_planes<uint32_t>(p, rest, spots, first, count, staging, threads);
      break;
    default:
      store_planes<uint16_t>(p, rest, spots, first, count, staging, threads);
  }
}

// Stores sums one by one.
template <typename T, int kPixels, int kChannels>
__device__ inline void store_sums(const BoxParams<T>& p, const Rest& rest, const Spot* spots,
                                  const LaneChannels& channels,
                                  const float (&sum)[kPixels][kChannels][4]) {
#pragma unroll
  for (int i = 0; i < kPixels * 2; ++i) {
    const Spot spot = spots[i * 8];
    if (!rest.has(spot)) continue;
    T* to = p.out + rest.offset + spot.offset + channels.first * p.out_c;
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if (k >= channels.count(j)) continue;
        to[(j * kBoxChannelTile + k) * p.out_c] = narrow<T>(sum[i / 2][j][i % 2 * 2 + k]);
      }
    }
  }
}

}  // namespace customconv::grouped
