// From the sums of a block of 64 pixels to the output, in either layout.
#pragma once

#include "kernels/common/activate.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/rows.cuh"
#include "kernels/implicit_gemm/work.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm {

constexpr int kWarpPixels = 16;  // of a block: rows of the instruction that a warp holds

// Offset of a pixel of a tile's block, without the channel; -1 where there is none.
template <typename T>
__device__ inline int64_t boxed_offset(const Output<T>& out, const Corner& at, int block,
                                       int pixel) {
  int r, c, n;
  if (out.lines) {
    n = 0;
    r = block * kInstructionRows + pixel;
    c = out.pitch.split(r);
    if (c >= out.columns) return -1;
  } else {
    n = block;
    c = out.squares_w.split(n) * 8 + pixel % 8;
    r = out.squares_h.split(n) * 8 + pixel / 8;
  }
  n += at.n;
  const int p = at.p + r, q = at.q + c;
  if (r >= out.rows || p >= out.P || q >= out.Q || n >= out.N) return -1;
  return n * out.n + p * out.p + q * out.q;
}

// Of a pair of pixels the offset of the first, and how many of them there are.
struct Pair {
  int64_t offset;
  int count;
};

template <typename T>
__device__ inline Pair pair_at(const Output<T>& out, const Corner& at, const Spot& spot) {
  const int n = at.n + spot.n, p = at.p + spot.row, q = at.q + spot.pair * 2;
  if (spot.n >= out.images || spot.row >= out.rows) return {0, 0};
  if (n >= out.N || p >= out.P || q >= out.Q) return {0, 0};
  return {n * out.n + p * out.p + q * out.q, q + 1 < out.Q ? 2 : 1};
}

// The same of a row of a warp's sixteen; -1 where there is none. `first_pair` is of the warp's.
template <typename T>
__device__ inline int64_t pixel_offset(const Params<T>& p, const Corner& at, int first_pair,
                                       int row) {
  const Pair pair = pair_at(p.out, at, locate(p.source, at.pair + first_pair + row % 8));
  return row / 8 < pair.count ? pair.offset + row / 8 * p.out.q : -1;
}

template <typename T>
__device__ inline uint32_t pack_pair(float a, float b) {
  const T pair[2] = {narrow<T>(a), narrow<T>(b)};
  return *reinterpret_cast<const uint32_t*>(pair);
}

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
    ptx::sync_threads<128>(1 + warpgroup);
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
    ptx::sync_threads<128>(1 + warpgroup);
    if (leader) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        int32_t n = warpgroup * kBlocks + (first + i) / kAcross;
        int q = at.q, p = at.p;
        if (out.lines) {
          q += n * kInstructionRows;
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

// Planar: a warpgroup's block passes through shared memory in slabs, so that what is stored at a
// time is 128 bytes of a channel: planes may lie in pages of memory of their own, and going from
// one to the next takes the time of many stores. Where the output's rows are aligned, the copy
// engine stores slabs while the next tile is summed; else a warp stores a channel after the other.
template <typename T, int kChannels>
__device__ inline void store_planes(const Params<T>& p, const Corner& at,
                                    const float (&sum)[kChannels / 2], int block, char* slabs) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  constexpr int kPixels = kRowBytes / kSize;  // of a slab
  constexpr int kAcross = kInstructionRows / kPixels;
  constexpr int kRows = slab_channels(kChannels);
  constexpr int kAll = kAcross * kChannels / kRows;
  constexpr int kAtOnce = kAll < kMostPlanarSlabs ? kAll : kMostPlanarSlabs;
  const Output<T>& out = p.out;
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  const bool leader = thread == 0;
  const int pixel = warp * kWarpPixels + lane / 4 * 2;
#pragma unroll
  for (int first = 0; first < kAll; first += kAtOnce) {
    if (p.boxed_out && leader) ptx::await_store_reads();
    ptx::sync_threads<128>(1 + block);  // what was staged is stored
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int across = (first + i) % kAcross, down = (first + i) / kAcross;
      if (pixel / kPixels != across) continue;
      const uint32_t slab = ptx::shared_address(slabs) + i * kSlabBytes;
      const int column = pixel % kPixels * kSize;
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const float* s = sum + (down * kRows / 8 + j) * 4 + odd;
          const int row = lane % 4 * 2 + odd;  // of eight, whose units of 16 bytes are permuted
          const uint32_t to = slab + (j * 8 + row) * kRowBytes + (column ^ (row * 16));
          if constexpr (kSize == 2) {
            ptx::store_shared(to, pack_pair<T>(s[0], s[2]));
          } else {
            ptx::store_shared(to, s[0], s[2]);
          }
        }
      }
    }
    if (p.boxed_out) {
      ptx::fence_shared_writes();
      ptx::sync_threads<128>(1 + block);
      if (leader) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int across = (first + i) % kAcross, down = (first + i) / kAcross;
          const Spot spot =
              locate(p.source, at.pair + (block * kInstructionRows + across * kPixels) / 2);
          const Pair pair = pair_at(out, at, spot);
          if (pair.count == 0) continue;
          int q = at.q + spot.pair * 2, row = at.p + spot.row;
          if (p.run > 0) {  // rows follow each other
            q += row * out.Q;
            row = 0;
          }
          ptx::store_box(&p.y, slabs + i * kSlabBytes, q, row, at.k + down * kRows, at.n + spot.n);
        }
        ptx::commit_stores();
      }
      continue;
    }
    ptx::sync_threads<128>(1 + block);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int across = (first + i) % kAcross, down = (first + i) / kAcross;
      // A lane has four bytes: a pair of pixels, or one.
      const int own = block * kInstructionRows + across * kPixels + lane * 4 / kSize;
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

// Of a warpgroup's block, a thread has sums of two pixels, by pairs of channels, as wgmma leaves
// them: sum[j * 4 + half * 2 + i] is of pixel `half` and channel first_k + j * 8 + i, where first_k
// is the thread's first.

// Keeps the compiler from loading more ahead than there are registers for.
__device__ inline void finish_loads() { asm volatile("" ::: "memory"); }

// Calls `function` with a thread's sums of each channel, for both its pixels, and with its value.
template <typename T, int kSums, typename Function>
__device__ inline void with_channels(const T* values, int K, int first_k, float (&sum)[kSums],
                                     Function function) {
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int k = first_k + j * 8 + i;
      const float value = k < K ? widen(values[k]) : 0.0f;
      function(sum[j * 4 + i], value);
      function(sum[j * 4 + 2 + i], value);
    }
    if (j % 4 == 3) finish_loads();
  }
}

// Adds the residual at a thread's two pixels, which are at `offset`; -1 where there is none.
template <typename T, int kSums>
__device__ inline void add_residual(const Output<T>& out, int first_k, const int64_t (&offset)[2],
                                    float (&sum)[kSums]) {
  const T* residual = static_cast<const T*>(out.epilogue.residual);
  const auto add_pair = [](const T* from, float& a, float& b) {
    T pair[2];
    if constexpr (sizeof(T) == 2) {
      *reinterpret_cast<uint32_t*>(pair) = *reinterpret_cast<const uint32_t*>(from);
    } else {
      *reinterpret_cast<float2*>(pair) = *reinterpret_cast<const float2*>(from);
    }
    a += widen(pair[0]);
    b += widen(pair[1]);
  };
  if (out.residual_vectors && out.planar && offset[1] >= 0) {
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int k = first_k + j * 8 + i;
        if (k < out.K) {
          add_pair(residual + offset[0] + k * out.k, sum[j * 4 + i], sum[j * 4 + 2 + i]);
        }
      }
      if (j % 4 == 3) finish_loads();
    }
    return;
  }
  const bool pairs_of_channels = out.residual_vectors && !out.planar;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (offset[half] < 0) continue;
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      const int k = first_k + j * 8;
      const T* from = residual + offset[half] + k * out.k;
      float &a = sum[j * 4 + half * 2], &b = sum[j * 4 + half * 2 + 1];
      if (pairs_of_channels) {
        if (k < out.K) add_pair(from, a, b);
      } else {
        if (k < out.K) a += widen(from[0]);
        if (k + 1 < out.K) b += widen(from[out.k]);
      }
      if (j % 4 == 3) finish_loads();
    }
  }
}

// From a warpgroup's sums of a block to results.
template <typename T, bool kBoxes, int kSums>
__device__ inline void finish(const Params<T>& p, const Corner& at, int first_k, int block,
                              float (&sum)[kSums]) {
  const Output<T>& out = p.out;
  const Epilogue& epilogue = out.epilogue;
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  first_k += lane % 4 * 2;
  if (epilogue.scale != nullptr) {
    with_channels(static_cast<const T*>(epilogue.scale), out.K, first_k, sum,
                  [](float& s, float scale) { s *= scale; });
  }
  if (epilogue.bias != nullptr) {
    with_channels(static_cast<const T*>(epilogue.bias), out.K, first_k, sum,
                  [](float& s, float bias) { s += bias; });
  }
  if (!out.fused) return;
  int64_t offset[2] = {-1, -1};
  if (epilogue.residual != nullptr) {
    if constexpr (kBoxes) {
      const int pixel = warp * kWarpPixels + lane / 4;
      offset[0] = boxed_offset(out, at, block, pixel);
      offset[1] = boxed_offset(out, at, block, pixel + 8);
    } else {
      const int pair = (block * kInstructionRows + warp * kWarpPixels) / 2 + lane / 4;
      const Pair found = pair_at(out, at, locate(p.source, at.pair + pair));
      if (found.count > 0) offset[0] = found.offset;
      if (found.count > 1) offset[1] = found.offset + out.q;
    }
  }
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    if (epilogue.residual != nullptr && epilogue.residual_last == (turn == 1)) {
      add_residual(out, first_k, offset, sum);
    }
    if (turn == 0) activate(sum, epilogue.activation, epilogue.negative_slope);
  }
}

// Bytes of shared memory that a warp's channels-last results pass through.
template <typename T>
constexpr int staging_bytes(int channels) {
  return sizeof(T) == 2 ? kWarpPixels * (channels * 2 + 16) : 0;
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
    const int first_pair = (block * kInstructionRows + warp * kWarpPixels) / 2;
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

}  // namespace customconv::implicit_gemm
