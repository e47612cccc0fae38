// From the sums of a block of 64 pixels to the output, in either layout.
#pragma once

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/plane.cuh"
#include "kernels/implicit_gemm/tile.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm {

constexpr int kWarpPixels = 16;    // of a block: rows of the instruction that a warp holds
constexpr int kWarpChannels = 16;  // the same, planar
constexpr int kSliceBytes = 128;   // of pixels that pass through shared memory at a time

template <typename T>
struct Output {
  T* data;
  const T* bias;
  int64_t n, k, p, q;  // strides
  int N, K, P, Q;
  bool vectors;  // channels-last: channels may be stored 16 bytes at a time, float32 8
  bool words;    // planar: pixels may be stored 4 bytes at a time in every plane, if in the first
  bool lines;
  int rows, columns;           // of a tile, output pixels
  Divider<int32_t> pitch;      // lines: positions of a row
  Divider<int32_t> line_rows;  // and rows of an image
  Divider<int32_t> squares_w, squares_h;
};

// Offset of a pixel of a tile's block, without the channel; -1 where there is none.
template <typename T, int kBlock>
__device__ inline int64_t pixel_offset(const Output<T>& out, const Corner& at, int block,
                                       int pixel) {
  int r, c, n;
  if (out.lines) {
    n = at.line + block * kBlock + pixel;
    c = out.pitch.split(n);
    r = out.line_rows.split(n);
    if (c >= out.columns) return -1;
  } else {
    n = block;
    c = out.squares_w.split(n) * 8 + pixel % 8;
    r = out.squares_h.split(n) * (kBlock / 8) + pixel / 8;
  }
  n += at.n;
  const int p = at.p + r, q = at.q + c;
  if (r >= out.rows || p >= out.P || q >= out.Q || n >= out.N) return -1;
  return n * out.n + p * out.p + q * out.q;
}

template <typename T>
__device__ inline uint32_t pack_pair(float a, float b) {
  const T pair[2] = {narrow<T>(a), narrow<T>(b)};
  return *reinterpret_cast<const uint32_t*>(pair);
}

// Whether a tile's channels are whole slabs of channels-last output.
template <typename T>
constexpr bool stores_boxes(const Kernel& kind) {
  return !kind.planar && kind.channels * static_cast<int>(sizeof(T)) % kRowBytes == 0;
}

// Bytes of shared memory that a warp's results pass through.
template <typename T>
constexpr int staging_bytes(const Kernel& kind) {
  if (kind.planar) return kWarpChannels * (kSliceBytes + 16);
  return sizeof(T) == 2 ? kWarpPixels * (kind.channels * 2 + 16) : 0;
}

// Channels-last. 32-bit results go straight from registers: a quad writes 32 bytes of a pixel.
template <int kChannels>
__device__ inline void store_channels(const Output<float>& out, const Corner& at,
                                      const float (&sum)[kChannels / 2], int block, int warp,
                                      int lane, char*) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t offset =
        pixel_offset<float, 64>(out, at, block, warp * kWarpPixels + half * 8 + lane / 4);
    if (offset < 0) continue;
#pragma unroll
    for (int j = 0; j < kChannels / 8; ++j) {
      const int k = at.k + j * 8 + lane % 4 * 2;
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
template <int kChannels, typename T>
__device__ inline void store_channels(const Output<T>& out, const Corner& at,
                                      const float (&sum)[kChannels / 2], int block, int warp,
                                      int lane, char* staging) {
  const int64_t own = pixel_offset<T, 64>(out, at, block, warp * kWarpPixels + lane % kWarpPixels);
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
    const int k = at.k + unit * 8;
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

// Planar. Where the pixels of a warpgroup's blocks go in each channel's plane, and -1 where there
// are none: found by the warpgroup, kept in shared memory.
template <typename T, int kBlock>
__device__ inline void find_offsets(const Output<T>& out, const Corner& at, int first_block,
                                    int blocks, int64_t* offsets) {
  for (int i = threadIdx.x % 128; i < blocks * kBlock; i += 128) {
    offsets[i] = pixel_offset<T, kBlock>(out, at, first_block + i / kBlock, i % kBlock);
  }
}

// A slice of a warp's channels, 128 bytes of pixels each, passes through shared memory, so that
// lanes store neighbouring pixels.
template <typename T>
__device__ inline void stage_slice(const float* sum, char* staging, int lane) {
  constexpr int kPitch = kSliceBytes + 16;
  constexpr int kGroups = kSliceBytes / static_cast<int>(sizeof(T)) / 8;
  const uint32_t base = ptx::shared_address(staging);
#pragma unroll
  for (int i = 0; i < kGroups; i += 2) {
    const float* s = sum + i * 4;
    if constexpr (sizeof(T) == 2) {
      ptx::store_matrices(base + (lane % 16) * kPitch + (i + lane / 16) * 16,
                          pack_pair<T>(s[0], s[1]), pack_pair<T>(s[2], s[3]),
                          pack_pair<T>(s[4], s[5]), pack_pair<T>(s[6], s[7]));
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t to = base + (half * 8 + lane / 4) * kPitch + i * 32 + lane % 4 * 8;
        ptx::store_shared(to, s[half * 2], s[half * 2 + 1]);
        ptx::store_shared(to + 32, s[4 + half * 2], s[4 + half * 2 + 1]);
      }
    }
  }
}

// Stores a staged slice of `channels` channels. A lane has four bytes of neighbouring pixels, which
// are stored at once where they are neighbours in the output too.
template <typename T>
__device__ inline void store_slice(const Output<T>& out, int k, int channels, const char* staging,
                                   const int64_t* offsets, int lane) {
  constexpr int kPitch = kSliceBytes + 16;
  constexpr int kPixels = 4 / static_cast<int>(sizeof(T));
  const int64_t first = offsets[lane * kPixels], last = offsets[lane * kPixels + kPixels - 1];
  T* to = out.data + k * out.k;
  const char* from = staging + lane * 4;
  const bool together = first >= 0 && last == first + kPixels - 1 && out.words &&
                        reinterpret_cast<uintptr_t>(to + first) % 4 == 0;
  if (together) {
    to += first;
    uint32_t word[kWarpChannels];
#pragma unroll
    for (int c = 0; c < kWarpChannels; ++c) {
      word[c] = *reinterpret_cast<const uint32_t*>(from + c * kPitch);
    }
#pragma unroll
    for (int c = 0; c < kWarpChannels; ++c, to += out.k) {
      if (c < channels) *reinterpret_cast<uint32_t*>(to) = word[c];
    }
  } else if (first >= 0 || last >= 0) {
#pragma unroll 4
    for (int c = 0; c < kWarpChannels; ++c, to += out.k) {
      const T* pixel = reinterpret_cast<const T*>(from + c * kPitch);
      if (c >= channels) break;
      if (first >= 0) to[first] = pixel[0];
      if (kPixels > 1 && last >= 0) to[last] = pixel[kPixels - 1];
    }
  }
}

// A warp's sixteen channels of a block of pixels.
template <typename T, int kSums>
__device__ inline void store_planes(const Output<T>& out, int k, const float (&sum)[kSums],
                                    const int64_t* offsets, int lane, char* staging) {
  constexpr int kSlice = kSliceBytes / static_cast<int>(sizeof(T));  // pixels
  static_assert(kSums * 2 % kSlice == 0);
#pragma unroll
  for (int slice = 0; slice < kSums * 2 / kSlice; ++slice) {
    stage_slice<T>(sum + slice * (kSlice / 2), staging, lane);
    __syncwarp();
    store_slice(out, k, min(kWarpChannels, out.K - k), staging, offsets + slice * kSlice, lane);
    __syncwarp();  // what is staged is read before the next slice overwrites it
  }
}

// A warpgroup's blocks, 128 bytes of channels at a time, as boxes that the copy engine stores while
// the next tile is summed. Slabs are written as the swizzle has them.
template <typename T, int kColumns, int kBlocks>
__device__ inline void store_boxes(const Output<T>& out, const CUtensorMap* map, const Corner& at,
                                   const float (&sum)[kBlocks][kColumns / 2], int warpgroup,
                                   char* slabs) {
  constexpr int kChannels = kRowBytes / static_cast<int>(sizeof(T));  // of a slab
  constexpr int kAcross = kColumns / kChannels;
  constexpr int kAll = kBlocks * kAcross;
  constexpr int kAtOnce = kAll < kMostSlabs ? kAll : kMostSlabs;
  static_assert(kColumns % kChannels == 0 && kAll % kAtOnce == 0);
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  const bool leader = thread == 0;
#pragma unroll
  for (int first = 0; first < kAll; first += kAtOnce) {
    if (leader) ptx::await_store_reads();
    ptx::sync_warpgroup(warpgroup);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float* s = sum[(first + i) / kAcross] + (first + i) % kAcross * (kChannels / 2);
      const uint32_t slab = ptx::shared_address(slabs) + i * kSlabBytes;
      if constexpr (sizeof(T) == 2) {
        const int row = warp * 16 + lane % 16;
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          const int unit = (j + lane / 16) ^ (row % 8);
          ptx::store_matrices(
              slab + row * kRowBytes + unit * 16, pack_pair<T>(s[j * 4], s[j * 4 + 1]),
              pack_pair<T>(s[j * 4 + 2], s[j * 4 + 3]), pack_pair<T>(s[j * 4 + 4], s[j * 4 + 5]),
              pack_pair<T>(s[j * 4 + 6], s[j * 4 + 7]));
        }
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = warp * 16 + half * 8 + lane / 4;
            const int unit = (j * 2 + lane % 4 / 2) ^ (row % 8);
            ptx::store_shared(slab + row * kRowBytes + unit * 16 + lane % 2 * 8,
                              s[j * 4 + half * 2], s[j * 4 + half * 2 + 1]);
          }
        }
      }
    }
    ptx::fence_shared_writes();
    ptx::sync_warpgroup(warpgroup);
    if (leader) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        int32_t n = warpgroup * kBlocks + (first + i) / kAcross;
        int q = at.q, p = at.p;
        if (out.lines) {
          q += n * 64;
          n = 0;
        } else {
          q += out.squares_w.split(n) * 8;
          p += out.squares_h.split(n) * 8;
        }
        ptx::store_box(map, slabs + i * kSlabBytes, at.k + (first + i) % kAcross * kChannels, q, p,
                       at.n + n);
      }
      ptx::commit_stores();
    }
  }
}

// Adds its channel's bias to each of a warpgroup's sums of a block, which lie as wgmma leaves them.
// `k` is the first channel: of the block's columns or, planar, of the warpgroup's rows.
template <bool kPlanar, typename T, int kSums>
__device__ inline void add_bias(const Output<T>& out, int k, float (&sum)[kSums]) {
  if (out.bias == nullptr) return;
  const int lane = threadIdx.x % 32;
  const auto bias_of = [&](int channel) {
    return channel < out.K ? widen(out.bias[channel]) : 0.0f;
  };
  if constexpr (kPlanar) {
    const int row = k + threadIdx.x % 128 / 32 * kWarpChannels + lane / 4;
    const float bias[2] = {bias_of(row), bias_of(row + 8)};
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum[i] += bias[i / 2 % 2];
  } else {
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float bias = bias_of(k + j * 8 + lane % 4 * 2 + i);
        sum[j * 4 + i] += bias;
        sum[j * 4 + 2 + i] += bias;
      }
    }
  }
}

// From a warpgroup's sums to the output. `map` stands for the output where the copy engine stores
// it, else it is null; `offsets` are of the warpgroup's pixels, planar.
template <typename T, int kKernel>
__device__ inline void finish(
    const Output<T>& out, const CUtensorMap* map, const Corner& at,
    float (&sum)[kKernels[kKernel].blocks()][kKernels[kKernel].columns() / 2], int warpgroup,
    const int64_t* offsets, char* staging) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kBlocks = kKind.blocks();
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const int block = warpgroup / kKind.channel_groups() * kBlocks;
  char* own = staging + warp * staging_bytes<T>(kKind);
  if constexpr (kKind.planar) {
    const int k = at.k + warpgroup % kKind.channel_groups() * kInstructionRows;
    ptx::sync_warpgroup(warpgroup);  // offsets are found
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      add_bias<true>(out, k, sum[b]);
      store_planes(out, k + warp * kWarpChannels, sum[b], offsets + b * kKind.block, lane, own);
    }
    ptx::sync_warpgroup(warpgroup);  // and no longer wanted
  } else {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) add_bias<false>(out, at.k, sum[b]);
    if constexpr (stores_boxes<T>(kKind)) {
      if (map != nullptr) {
        store_boxes<T, kKind.channels, kBlocks>(out, map, at, sum, warpgroup, staging);
        return;
      }
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      store_channels<kKind.channels>(out, at, sum[b], block + b, warp, lane, own);
    }
  }
}

}  // namespace customconv::implicit_gemm
