// From the sums of a block of 64 pixels to the output, in either layout.
#pragma once

#include "kernels/implicit_gemm/mma_sync/finish.cuh"
#include "kernels/implicit_gemm/mma_sync/pixels.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm::mma_sync {

// Channels-last, a warp's sixteen pixels; `offset_of` finds where they go. 32-bit results go
// straight from registers: a quad writes 32 bytes of a pixel.
template <int kChannels, typename OffsetOf>
__device__ inline void store_channels(const Output<float>& out, int first_k,
                                      const float (&sum)[kChannels / 2], int lane,
                                      OffsetOf offset_of, char*) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t offset = offset_of(half * 8 + lane / 4);
    if (offset < 0) continue;
#pragma unroll
    for (int j = 0; j < kChannels / 8; ++j) {
      const int k = first_k + j * 8 + lane % 4 * 2;
      const float a = sum[j * 4 + half * 2], b = sum[j * 4 + half * 2 + 1];
      float* to = out.data + offset + k;
      if (out.vectors) {
        if (k < out.K) *reinterpret_cast<float2*>(to) = make_float2(a, b);
      } else {
        if (k < out.K) to[0] = a;
        if (k + 1 < out.K) to[1] = b;
      }
    }
  }
}

// 16-bit results pass through shared memory, so that stores are of 16 bytes.
template <int kChannels, typename T, typename OffsetOf>
__device__ inline void store_channels(const Output<T>& out, int first_k,
                                      const float (&sum)[kChannels / 2], int lane,
                                      OffsetOf offset_of, char* staging) {
  const int64_t own = offset_of(lane % kWarpPixels);
  const uint32_t base = ptx::shared_address(staging);
  constexpr int kPitch = kChannels * 2 + 16, kUnits = kChannels / 8;
#pragma unroll
  for (int j = 0; j < kChannels / 8; j += 2) {
    const float* s = sum + j * 4;
    ptx::store_matrices(base + (lane % 16) * kPitch + (j + lane / 16) * 16,
                        pack_pair<T>(s[0], s[1]), pack_pair<T>(s[2], s[3]),
                        pack_pair<T>(s[4], s[5]), pack_pair<T>(s[6], s[7]));
  }
  __syncwarp();
#pragma unroll 4
  for (int i = lane; i < kWarpPixels * kUnits; i += 32) {
    const int row = i / kUnits, unit = i % kUnits;
    const int64_t offset = __shfl_sync(~0u, own, row);
    const int k = first_k + unit * 8;
    const char* from = staging + row * kPitch + unit * 16;
    if (offset < 0 || k >= out.K) continue;
    T* to = out.data + offset + k;
    if (out.vectors) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int e = 0; e < 8 && k + e < out.K; ++e) to[e] = reinterpret_cast<const T*>(from)[e];
    }
  }
  __syncwarp();  // what is staged is read before the next block overwrites it
}

// Planar: a thread's pair of pixels of two channels in eight. A warp writes 16 pixels of a plane.
template <typename T, int kSums>
__device__ inline void store_pixels(const Output<T>& out, int first_k, const float (&sum)[kSums],
                                    const Pair& pair, int lane) {
  if (pair.count == 0) return;
  const int k = first_k + lane % 4 * 2;
  const auto store_all = [&](auto store) {
    T* to = out.data + pair.offset + k * out.k;
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j, to += 8 * out.k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (k + j * 8 + i < out.K) store(to + i * out.k, sum[j * 4 + i], sum[j * 4 + 2 + i]);
      }
    }
  };
  if (out.vectors && pair.count == 2) {
    store_all([](T* to, float a, float b) {
      if constexpr (sizeof(T) == 2) {
        *reinterpret_cast<uint32_t*>(to) = pack_pair<T>(a, b);
      } else {
        *reinterpret_cast<float2*>(to) = make_float2(a, b);
      }
    });
  } else {
    const bool both = pair.count == 2;
    store_all([&](T* to, float a, float b) {
      to[0] = narrow<T>(a);
      if (both) to[out.q] = narrow<T>(b);
    });
  }
}

// Planar: a warpgroup's block passes through shared memory in slabs, so that what is stored at a
// time is 128 bytes of a channel: planes may lie in pages of memory of their own, and going from
// one to the next takes the time of many stores.
template <typename T, int kChannels>
__device__ inline void store_planes(const Params<T>& p, const Corner& at,
                                    const float (&sum)[kChannels / 2], int block, char* slabs) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  constexpr int kPixels = kRowBytes / kSize, kRows = slab_channels(kChannels);  // of a slab
  constexpr int kAcross = kBlockPixels / kPixels;
  constexpr int kSlabs = kAcross * kChannels / kRows;
  constexpr int kAtOnce = kSlabs < kMostSlabs ? kSlabs : kMostSlabs;
  static_assert(kSlabs % kAtOnce == 0);
  const Output<T>& out = p.out;
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const int pixel = warp * kWarpPixels + lane / 4 * 2;
#pragma unroll
  for (int first = 0; first < kSlabs; first += kAtOnce) {
    ptx::named_barrier_sync<128>(1 + block);  // what was staged is stored
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int across = (first + i) % kAcross, down = (first + i) / kAcross;
      if (pixel / kPixels != across) continue;
      const uint32_t slab = ptx::shared_address(slabs) + i * kSlabBytes;
      const int column = pixel % kPixels * kSize;
      const float* own = sum + down * (kRows / 2);
      // Both pixels of each channel.
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const int row = lane % 4 * 2 + odd;  // of eight, whose units of 16 bytes are permuted
          const uint32_t to = slab + (j * 8 + row) * kRowBytes + (column ^ (row * 16));
          const float a = own[j * 4 + odd], b = own[j * 4 + odd + 2];
          if constexpr (kSize == 2) {
            ptx::store_shared(to, pack_pair<T>(a, b));
          } else {
            ptx::store_shared(to, a, b);
          }
        }
      }
    }
    ptx::named_barrier_sync<128>(1 + block);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int across = (first + i) % kAcross, down = (first + i) / kAcross;
      // A lane has four bytes: a pair of pixels, or one.
      const int own = block * kBlockPixels + across * kPixels + lane * 4 / kSize;
      const Pair pair = pair_at(out, at, locate(p.source, at.pair + own / 2));
      const int64_t offset = pair.offset + own % 2 * out.q;
      const int count = pair.count - own % 2;
      const uint32_t slab = ptx::shared_address(slabs) + i * kSlabBytes;
      const int first_k = at.k + down * kRows;
      const int rows = min(kRows, out.K - first_k);
      T* to = out.data + offset + (first_k + warp) * out.k;
      if (count <= 0) continue;
#pragma unroll 4
      for (int row = warp; row < rows; row += 4, to += 4 * out.k) {
        const uint32_t bits =
            ptx::load_shared<uint32_t>(slab + row * kRowBytes + (lane * 4 ^ row % 8 * 16));
        if (kSize == 4 || (out.vectors && count == 2)) {
          *reinterpret_cast<uint32_t*>(to) = bits;
        } else {
          const T* value = reinterpret_cast<const T*>(&bits);
          to[0] = value[0];
          if (count == 2) to[out.q] = value[kSize == 2];
        }
      }
    }
  }
}

// Stores a warp's sixteen pixels of a block, of kChannels channels from `first_k` on.
template <typename T, bool kBoxes, int kChannels>
__device__ inline void store_block(const Params<T>& p, const Corner& at, int first_k,
                                   const float (&sum)[kChannels / 2], int block, char* staging) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  if constexpr (kBoxes) {
    store_channels<kChannels>(
        p.out, first_k, sum, lane,
        [&](int row) { return boxed_offset(p.out, at, block, warp * kWarpPixels + row); }, staging);
  } else {
    const int first_pair = (block * kBlockPixels + warp * kWarpPixels) / 2;
    if (p.out.planar) {
      const Spot spot = locate(p.source, at.pair + first_pair + lane / 4);
      store_pixels(p.out, first_k, sum, pair_at(p.out, at, spot), lane);
    } else {
      store_channels<kChannels>(
          p.out, first_k, sum, lane, [&](int row) { return pixel_offset(p, at, first_pair, row); },
          staging);
    }
  }
}

// The same of all of a warpgroup's blocks.
template <typename T, bool kBoxes, int kChannels, int kBlocks>
__device__ inline void store_blocks(const Params<T>& p, const Corner& at,
                                    const float (&sum)[kBlocks][kChannels / 2], int warpgroup,
                                    char* staging) {
  char* own = staging + threadIdx.x % 128 / 32 * warp_staging(sizeof(T), kChannels);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    store_block<T, kBoxes, kChannels>(p, at, at.k, sum[b], warpgroup * kBlocks + b, own);
  }
}

}  // namespace customconv::implicit_gemm::mma_sync
