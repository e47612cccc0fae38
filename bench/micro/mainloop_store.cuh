// From a warpgroup's sums to the output.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/common/scalar.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/shared.cuh"
#include "mainloop.cuh"

namespace customconv::micro {

// A warpgroup's staging memory: two slabs of 64 positions by 128 bytes of channels, or of planes.
constexpr int kStagingBytes = 18 * 1024;
template <typename T>
constexpr int kPlaneBytes = 64 * static_cast<int>(sizeof(T)) + 16;  // of a channel's 64 positions

// Writes 64 positions by the channels of a slab, from `sum` on, as NHWC with the swizzle.
template <typename T>
__device__ inline void write_slab(const float* sum, uint32_t slab, int warp, int lane) {
  if constexpr (sizeof(T) == 2) {
    const int row = warp * 16 + lane % 16;
    const uint32_t to = slab + row * kRowBytes;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float* v = sum + j * 4;
      ptx::store_matrices(to + ((j + lane / 16) ^ (row % 8)) * 16, pack_pair<T>(v[0], v[1]),
                          pack_pair<T>(v[2], v[3]), pack_pair<T>(v[4], v[5]),
                          pack_pair<T>(v[6], v[7]));
    }
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t unit = (j * 2 + lane % 4 / 2) ^ (row % 8);
        ptx::store_shared(slab + row * kRowBytes + unit * 16 + lane % 2 * 8, sum[j * 4 + half * 2],
                          sum[j * 4 + half * 2 + 1]);
      }
    }
  }
}
// The same as planes: for each channel 64 positions.
template <typename T>
__device__ inline void write_planes(const float* sum, uint32_t planes, int warp, int lane) {
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float* v = sum + j * 4;
      const int channel = j * 8 + lane / 16 * 8 + lane % 8;
      const uint32_t to = planes + channel * kPlaneBytes<T> + (warp * 16 + lane / 8 % 2 * 8) * 2;
      ptx::store_transposed_matrices(to, pack_pair<T>(v[0], v[1]), pack_pair<T>(v[2], v[3]),
                                     pack_pair<T>(v[4], v[5]), pack_pair<T>(v[6], v[7]));
    }
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int channel = j * 8 + lane % 4 * 2 + i, at = warp * 16 + half * 8 + lane / 4;
          ptx::store_shared(planes + channel * kPlaneBytes<T> + at * 4,
                            __float_as_uint(sum[j * 4 + half * 2 + i]));
        }
      }
    }
  }
}

// From a warpgroup's sums to the output. NHWC goes through slabs: by TMA if the grid is dense, else
// by threads, 16 bytes at a time.
template <typename T, int kBlocks, int kN, bool kDense>
__device__ inline void store_channels(const Params& p, const Tile& tile,
                                      float (&sum)[kBlocks][kN / 2], char* slabs, int own_row,
                                      int barrier, bool leads) {
  constexpr int kChannels = kRowChannels<T>, kUnit = 16 / static_cast<int>(sizeof(T));
  constexpr int kSlabs = kN / kChannels < 2 ? 1 : 2;
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const int position = tile.position + own_row + b * 64;
    const int pixel = kDense ? 0 : Place(p, position + warp * 16 + lane % 16).pixel(p);
#pragma unroll
    for (int first = 0; first < kN / kChannels; first += kSlabs) {
      if (kDense) {
        if (leads) ptx::await_store_reads();
        ptx::sync_threads<128>(barrier);
      } else {
        __syncwarp();
      }
#pragma unroll
      for (int i = 0; i < kSlabs; ++i) {
        write_slab<T>(sum[b] + (first + i) * kChannels / 2,
                      ptx::shared_address(slabs) + i * kSlabBytes, warp, lane);
      }
      if (kDense) {
        ptx::fence_shared_writes();
        ptx::sync_threads<128>(barrier);
        if (leads) {
#pragma unroll
          for (int i = 0; i < kSlabs; ++i) {
            ptx::store_box(&p.y, slabs + i * kSlabBytes, tile.k + (first + i) * kChannels, position,
                           0, 0);
          }
          ptx::commit_stores();
        }
      } else {
        __syncwarp();
#pragma unroll 4
        for (int i = lane; i < 16 * 8 * kSlabs; i += 32) {
          const int at = i / (8 * kSlabs), unit = i % (8 * kSlabs);
          const int to = __shfl_sync(~0u, pixel, at);
          const int k = tile.k + first * kChannels + unit * kUnit;
          if (to < 0 || k >= p.K) continue;
          const int from = warp * 16 + at;
          const char* slab = slabs + unit / 8 * kSlabBytes + from * kRowBytes;
          *reinterpret_cast<uint4*>(static_cast<T*>(p.out) + static_cast<int64_t>(to) * p.K + k) =
              *reinterpret_cast<const uint4*>(slab + ((unit % 8) ^ (from % 8)) * 16);
        }
      }
    }
  }
}

// Planes: a warp stores channels, 16 bytes at a time if images are whole 16 bytes and the grid is
// dense, else two positions of a lane.
template <typename T, int kBlocks, int kN, bool kDense>
__device__ inline void store_planes(const Params& p, const Tile& tile,
                                    float (&sum)[kBlocks][kN / 2], char* staging, int own_row,
                                    int barrier) {
  constexpr int kSize = static_cast<int>(sizeof(T)), kChannels = kRowChannels<T>;
  constexpr int kVector = 16 / kSize, kLanes = 64 / kVector;  // of a channel
  using Pair = std::conditional_t<kSize == 2, uint32_t, uint2>;
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
  const int plane = p.P * p.Q;
  const bool vectors = kDense && plane % kVector == 0;
  const uint32_t planes = ptx::shared_address(staging);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const int position = tile.position + own_row + b * 64;
    // Of the lane's positions: where they are in the planes of output channel 0, or -1.
    int64_t own[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = vectors ? lane % kLanes * kVector : lane * 2 + i;
      const Place place(p, position + at);
      const bool exists = place.n < p.N && place.row < p.P && place.column < p.Q;
      own[i] = exists ? static_cast<int64_t>(place.n) * p.K * plane + place.row * p.Q + place.column
                      : -1;
    }
#pragma unroll
    for (int first = 0; first < kN; first += kChannels) {
      ptx::sync_threads<128>(barrier);
      write_planes<T>(sum[b] + first / 2, planes, warp, lane);
      ptx::sync_threads<128>(barrier);
      T* const out = static_cast<T*>(p.out) + static_cast<int64_t>(tile.k + first) * plane;
      const int count = min(kChannels, p.K - tile.k - first);
      if (vectors) {
#pragma unroll 2
        for (int c = warp * (32 / kLanes) + lane / kLanes; c < count; c += 4 * (32 / kLanes)) {
          const uint4 v = ptx::load_shared<uint4>(planes + c * kPlaneBytes<T> + lane % kLanes * 16);
          if (own[0] >= 0) {
            *reinterpret_cast<uint4*>(out + own[0] + static_cast<int64_t>(c) * plane) = v;
          }
        }
      } else {
        const bool pair = own[0] >= 0 && own[1] == own[0] + 1;
#pragma unroll 4
        for (int c = warp; c < count; c += 4) {
          const Pair v = ptx::load_shared<Pair>(planes + c * kPlaneBytes<T> + lane * 2 * kSize);
          const T* halves = reinterpret_cast<const T*>(&v);
          T* to = out + static_cast<int64_t>(c) * plane;
          if (pair && reinterpret_cast<uint64_t>(to + own[0]) % sizeof(Pair) == 0) {
            *reinterpret_cast<Pair*>(to + own[0]) = v;
          } else {
            if (own[0] >= 0) to[own[0]] = halves[0];
            if (own[1] >= 0) to[own[1]] = halves[1];
          }
        }
      }
    }
  }
}

// Adds up the sums of a cluster's blocks, in order of rank: each block adds and stores a part of
// the columns. All threads of the cluster call it, those that hold no sums too; NHWC, dense grid.
template <typename T, int kWarpgroups, int kBlocks, int kN>
__device__ inline void store_splits(const Params& p, const Tile& tile,
                                    float (&sum)[kBlocks][kN / 2], char* exchange, int group,
                                    int rank, bool multiplies) {
  constexpr int kSums = kBlocks * kN / 2, kThreads = kWarpgroups * 128;
  const int thread = static_cast<int>(threadIdx.x) - 128;
  const uint32_t own = ptx::shared_address(exchange) + static_cast<uint32_t>(thread) * 4;
  if (multiplies) {
    ptx::sync_threads(1, kThreads);  // none of them reads stages any more
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      ptx::store_shared(own + i * kThreads * 4, __float_as_uint(sum[i / (kN / 2)][i % (kN / 2)]));
    }
  }
  ptx::sync_cluster();
  if (multiplies) {
    const int count = kSums / p.splits;
    const int lane = thread % 32, warp = thread % 128 / 32;
#pragma unroll 4
    for (int i = rank * count; i < (rank + 1) * count; i += 2) {
      float total[2] = {};
      for (int from = 0; from < p.splits; ++from) {
        const uint32_t at = ptx::cluster_address(own + i * kThreads * 4, from);
        total[0] += ptx::load_cluster_float(at);
        total[1] += ptx::load_cluster_float(at + kThreads * 4);
      }
      const int b = i / (kN / 2), column = i % (kN / 2) / 4 * 8, half = i / 2 % 2;
      const int row = (group * kBlocks + b) * 64 + warp * 16 + half * 8 + lane / 4;
      const int64_t pixel = tile.position + row;
      const int k = tile.k + column + lane % 4 * 2;
      if (pixel >= static_cast<int64_t>(p.N) * p.P * p.Q || k >= p.K) continue;
      T* to = static_cast<T*>(p.out) + pixel * p.K + k;
      if constexpr (sizeof(T) == 2) {
        *reinterpret_cast<uint32_t*>(to) = pack_pair<T>(total[0], total[1]);
      } else {
        *reinterpret_cast<float2*>(to) = make_float2(total[0], total[1]);
      }
    }
  }
  ptx::sync_cluster();  // the others have read this block's sums
}

}  // namespace customconv::micro
