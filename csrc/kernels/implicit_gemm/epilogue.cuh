// From the sums of a block of 64 pixels to the output, in either layout.
#pragma once

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/tile.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm {

template <typename T>
struct Output {
  T* data;
  const T* bias;
  int64_t n, k, p, q;  // strides
  int N, K, P, Q;
  bool channels_last;
  bool vectors;  // 16 bytes may be stored at once
  bool lines;
  int rows, columns;  // of a tile, output pixels
  Divider<int32_t> pitch;
  Divider<int32_t> squares_w, squares_h;
};

// A tile's first pixel and output channel.
struct Corner {
  int n, p, q, k;
};

// Offset of pixel `row` of a tile's block, without the channel; -1 where there is none.
template <typename T>
__device__ inline int64_t pixel_offset(const Output<T>& out, const Corner& at, int block, int row) {
  int r, c, n = at.n;
  if (out.lines) {
    r = block * kBlockPixels + row;
    c = out.pitch.split(r);
    if (c >= out.columns) return -1;
  } else {
    int32_t square = block;
    c = out.squares_w.split(square) * 8 + row % 8;
    r = out.squares_h.split(square) * 8 + row / 8;
    n += square;
  }
  const int p = at.p + r, q = at.q + c;
  if (r >= out.rows || p >= out.P || q >= out.Q || n >= out.N) return -1;
  return n * out.n + p * out.p + q * out.q;
}

// Bytes of shared memory that a warp's sixteen pixels pass through.
template <typename T>
constexpr int staging_bytes(int columns) {
  return sizeof(T) == 2
             ? (columns * 48 > 16 * (columns * 2 + 16) ? columns * 48 : 16 * (columns * 2 + 16))
             : 0;
}

template <typename T>
__device__ inline uint32_t pack_pair(float a, float b) {
  const T pair[2] = {narrow<T>(a), narrow<T>(b)};
  return *reinterpret_cast<const uint32_t*>(pair);
}

template <bool kTransposed>
__device__ inline void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  if constexpr (kTransposed) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
  }
}

// 32-bit results go straight from registers: a quad writes 32 bytes of a pixel, eight lanes those
// of a channel.
template <int kColumns>
__device__ inline void store_direct(const Output<float>& out, const Corner& at,
                                    const float (&sum)[kColumns / 2], int block, int warp,
                                    int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t offset = pixel_offset(out, at, block, warp * 16 + half * 8 + lane / 4);
    if (offset < 0) continue;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int k = at.k + j * 8 + lane % 4 * 2;
      const float a = sum[j * 4 + half * 2], b = sum[j * 4 + half * 2 + 1];
      float* to = out.data + offset + k * out.k;
      if (out.channels_last && out.vectors) {
        if (k < out.K) *reinterpret_cast<float2*>(to) = make_float2(a, b);
      } else {
        if (k < out.K) to[0] = a;
        if (k + 1 < out.K) to[out.k] = b;
      }
    }
  }
}

// 16-bit results pass through shared memory, so that stores are of 16 bytes.
template <typename T, int kColumns>
__device__ inline void store_staged(const Output<T>& out, const Corner& at,
                                    const float (&sum)[kColumns / 2], int block, int warp, int lane,
                                    char* staging) {
  const int64_t own = pixel_offset(out, at, block, warp * 16 + lane % 16);
  const uint32_t base = ptx::shared_address(staging);
  if (out.channels_last) {
    constexpr int kPitch = kColumns * 2 + 16, kUnits = kColumns / 8;
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      const float* s = sum + j * 4;
      store_matrices<false>(base + (lane % 16) * kPitch + (j + lane / 16) * 16,
                            pack_pair<T>(s[0], s[1]), pack_pair<T>(s[2], s[3]),
                            pack_pair<T>(s[4], s[5]), pack_pair<T>(s[6], s[7]));
    }
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < 16 * kUnits; i += 32) {
      const int row = i / kUnits, unit = i % kUnits;
      const int64_t offset = __shfl_sync(~0u, own, row);
      const int k = at.k + unit * 8;
      const char* from = staging + row * kPitch + unit * 16;
      if (offset < 0 || k >= out.K) continue;
      T* to = out.data + offset + k * out.k;
      if (out.vectors) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      } else {
        for (int e = 0; e < 8 && k + e < out.K; ++e) {
          to[e * out.k] = reinterpret_cast<const T*>(from)[e];
        }
      }
    }
  } else {
    constexpr int kPitch = 48;
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      const float* s = sum + j * 4;
      // Matrices: channels j*8.. of pixels 0-7 and 8-15, then channels (j+1)*8..
      store_matrices<true>(base + ((j + lane / 16) * 8 + lane % 8) * kPitch + (lane / 8 % 2) * 16,
                           pack_pair<T>(s[0], s[1]), pack_pair<T>(s[2], s[3]),
                           pack_pair<T>(s[4], s[5]), pack_pair<T>(s[6], s[7]));
    }
    __syncwarp();
    if (out.vectors) {
#pragma unroll 4
      for (int i = lane; i < kColumns * 2; i += 32) {
        const int column = i / 2, half = i % 2;
        const int64_t offset = __shfl_sync(~0u, own, half * 8);
        const int k = at.k + column;
        if (offset < 0 || k >= out.K) continue;
        *reinterpret_cast<uint4*>(out.data + offset + k * out.k) =
            *reinterpret_cast<const uint4*>(staging + column * kPitch + half * 16);
      }
    } else if (own >= 0) {
#pragma unroll 4
      for (int column = lane / 16; column < kColumns; column += 2) {
        const int k = at.k + column;
        if (k >= out.K) break;
        out.data[own + k * out.k] =
            *reinterpret_cast<const T*>(staging + column * kPitch + (lane % 16) * 2);
      }
    }
  }
  __syncwarp();  // what is staged is read before the next block overwrites it
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
          store_matrices<false>(
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
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(slab + row * kRowBytes +
                                                                  unit * 16 + lane % 2 * 8),
                         "f"(s[j * 4 + half * 2]), "f"(s[j * 4 + half * 2 + 1])
                         : "memory");
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
          q += n * kBlockPixels;
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
template <typename T, int kColumns>
__device__ inline void add_bias(const Output<T>& out, const Corner& at,
                                float (&sum)[kColumns / 2]) {
  if (out.bias == nullptr) return;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int k = at.k + j * 8 + threadIdx.x % 4 * 2 + i;
      const float bias = k < out.K ? widen(out.bias[k]) : 0.0f;
      sum[j * 4 + i] += bias;
      sum[j * 4 + 2 + i] += bias;
    }
  }
}

// Stores a block without the copy engine: any layout, any strides.
template <typename T, int kColumns>
__device__ inline void store_block(const Output<T>& out, const Corner& at,
                                   const float (&sum)[kColumns / 2], int block, char* staging) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  if constexpr (sizeof(T) == 4) {
    store_direct<kColumns>(out, at, sum, block, warp, lane);
  } else {
    store_staged<T, kColumns>(out, at, sum, block, warp, lane,
                              staging + warp * staging_bytes<T>(kColumns));
  }
}

}  // namespace customconv::implicit_gemm
