// From the sums of a block of 64 pixels to the output, in either layout.
#pragma once

#include "kernels/implicit_gemm/finish.cuh"
#include "kernels/implicit_gemm/pixels.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm {

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

// Slabs are what the copy engine moves: of channels-last output 64 pixels by 128 bytes of channels,
// of planes 64 channels by 128 bytes of pixels. A warpgroup has memory for some of its own: a round
// of them. Before a round is written into it, it holds the residual of the same pixels.

// Channels-last: calls `move` with each slab of a round, and where it is in the output.
template <typename T, int kColumns, int kBlocks>
struct ChannelSlabs {
  static constexpr int kChannels = kRowBytes / static_cast<int>(sizeof(T));  // of a slab
  static constexpr int kAcross = kColumns / kChannels;
  static constexpr int kAll = kBlocks * kAcross;
  static constexpr int kAtOnce = kAll < kMostSlabs ? kAll : kMostSlabs;
  static constexpr int kBytes = kSlabBytes;
  static_assert(kAll % kAtOnce == 0);

  template <typename Move>
  static __device__ void each(const Params<T>& p, const Corner& at, int warpgroup, int first,
                              Move move) {
    const Output<T>& out = p.out;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      int32_t n = warpgroup * kBlocks + (first + i) / kAcross;
      int q = at.q, row = at.p;
      if (out.lines) {
        q += n * kInstructionRows;
        n = 0;
      } else {
        q += out.squares_w.split(n) * 8;
        row += out.squares_h.split(n) * 8;
      }
      move(i, at.k + (first + i) % kAcross * kChannels, q, row, at.n + n);
    }
  }
};

// The same of planes; slabs without any pixel are left out.
template <typename T, int kColumns>
struct PlaneSlabs {
  static constexpr int kPixels = kRowBytes / static_cast<int>(sizeof(T));  // of a slab
  static constexpr int kAcross = kInstructionRows / kPixels;
  static constexpr int kRows = slab_channels(kColumns);
  static constexpr int kAll = kAcross * kColumns / kRows;
  static constexpr int kAtOnce = kAll < kMostPlanarSlabs ? kAll : kMostPlanarSlabs;
  static constexpr int kBytes = kRows * kRowBytes;
  static_assert(kAll % kAtOnce == 0);

  template <typename Move>
  static __device__ void each(const Params<T>& p, const Corner& at, int block, int first,
                              Move move) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int across = (first + i) % kAcross, down = (first + i) / kAcross;
      const Spot spot =
          locate(p.source, at.pair + (block * kInstructionRows + across * kPixels) / 2);
      if (pair_at(p.out, at, spot).count == 0) continue;
      int q = at.q + spot.pair * 2, row = at.p + spot.row;
      if (p.run > 0) {  // rows follow each other
        q += row * p.out.Q;
        row = 0;
      }
      move(i, q, row, at.k + down * kRows, at.n + spot.n);
    }
  }
};

// One thread of a warpgroup, always the same, all of whose threads are here.
__device__ inline bool leads_warpgroup() {
  return __shfl_sync(~0u, threadIdx.x / 32, 0) % 4 == 0 && ptx::elect_one();
}

// A warpgroup's residual on its way into its slabs; its first thread fetches. The first round of a
// tile comes while its products are summed.
class Residual {
 public:
  __device__ Residual(const Shared& shared, int warpgroup, char* slabs)
      : full_(&shared.residual_full[warpgroup]), slabs_(slabs) {}

  // Once the slabs' stores have read them.
  template <typename Slabs, typename T>
  __device__ void fetch(const Params<T>& p, const Corner& at, int warpgroup, int first) {
    if (!leads_warpgroup()) return;
    ptx::await_dependency();  // it may begin before pixels are loaded
    ptx::await_store_reads();
    int count = 0;
    Slabs::each(p, at, warpgroup, first, [&](int, int, int, int, int) { ++count; });
    ptx::arrive_expecting(full_, count * Slabs::kBytes);
    Slabs::each(p, at, warpgroup, first, [&](int i, int c0, int c1, int c2, int c3) {
      ptx::copy_box(slabs_ + i * kSlabBytes, &p.residual, full_, c0, c1, c2, c3);
    });
  }
  // Makes a round's slabs ready to be written: their stores have read them, or the residual is in.
  template <typename Slabs, bool kResidual, typename T>
  __device__ void await(const Params<T>& p, const Corner& at, int warpgroup, int first) {
    if constexpr (kResidual) {
      if (first > 0) fetch<Slabs>(p, at, warpgroup, first);
      ptx::wait(full_, parity_);
      parity_ ^= 1;
    } else {
      if (leads_warpgroup()) ptx::await_store_reads();
      ptx::sync_threads<128>(1 + warpgroup);
    }
  }

 private:
  ptx::Barrier* full_;
  char* slabs_;
  uint32_t parity_ = 0;
};

// Activates a slab's sums, if the activation waited for the residual.
template <int kCount, typename T>
__device__ inline void activate_after_residual(const Output<T>& out, float* sums) {
  if (out.epilogue.residual_last) return;
  activate<kCount>(sums, out.epilogue.activation, out.epilogue.negative_slope);
}

// A round of slabs, once all threads have written it.
template <typename Slabs, typename T>
__device__ inline void store_slabs(const Params<T>& p, const Corner& at, int warpgroup, int first,
                                   char* slabs) {
  ptx::fence_shared_writes();
  ptx::sync_threads<128>(1 + warpgroup);
  if (!leads_warpgroup()) return;
  Slabs::each(p, at, warpgroup, first, [&](int i, int c0, int c1, int c2, int c3) {
    ptx::store_box(&p.y, slabs + i * kSlabBytes, c0, c1, c2, c3);
  });
  ptx::commit_stores();
}

// Channels-last, where the copy engine stores slabs while the next tile is summed. They are written
// as the swizzle has them.
template <typename T, int kColumns, int kBlocks, bool kResidual>
__device__ inline void store_boxes(const Params<T>& p, const Corner& at,
                                   float (&sum)[kBlocks][kColumns / 2], int warpgroup,
                                   Residual& residual, char* slabs) {
  using Slabs = ChannelSlabs<T, kColumns, kBlocks>;
  constexpr int kSums = Slabs::kChannels / 2;  // of a slab
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int first = 0; first < Slabs::kAll; first += Slabs::kAtOnce) {
    residual.await<Slabs, kResidual>(p, at, warpgroup, first);
#pragma unroll
    for (int i = 0; i < Slabs::kAtOnce; ++i) {
      float* own = sum[(first + i) / Slabs::kAcross] + (first + i) % Slabs::kAcross * kSums;
      const uint32_t slab = ptx::shared_address(slabs) + i * kSlabBytes;
      if constexpr (sizeof(T) == 2) {
        const int row = warp * 16 + lane % 16;
        const auto place = [&](int j) {
          return slab + row * kRowBytes + ((j + lane / 16) ^ (row % 8)) * 16;
        };
        if constexpr (kResidual) {
#pragma unroll
          for (int j = 0; j < 8; j += 2) {
            uint32_t bits[4];
            ptx::load_matrices(place(j), bits);
#pragma unroll
            for (int m = 0; m < 4; ++m) {
              const float2 pair = widen_pair<T>(bits[m]);
              own[j * 4 + m * 2] += pair.x;
              own[j * 4 + m * 2 + 1] += pair.y;
            }
          }
          activate_after_residual<kSums>(p.out, own);
        }
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          const float* s = own + j * 4;
          ptx::store_matrices(place(j), pack_pair<T>(s[0], s[1]), pack_pair<T>(s[2], s[3]),
                              pack_pair<T>(s[4], s[5]), pack_pair<T>(s[6], s[7]));
        }
      } else {
        const auto place = [&](int j, int half) {
          const int row = warp * 16 + half * 8 + lane / 4;
          return slab + row * kRowBytes + ((j * 2 + lane % 4 / 2) ^ (row % 8)) * 16 + lane % 2 * 8;
        };
        const auto each_pair = [&](auto action) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) action(place(j, half), own + j * 4 + half * 2);
          }
        };
        if constexpr (kResidual) {
          each_pair([](uint32_t from, float* pair) {
            const float2 residual = load_pair_shared<T>(from);
            pair[0] += residual.x;
            pair[1] += residual.y;
          });
          activate_after_residual<kSums>(p.out, own);
        }
        each_pair([](uint32_t to, const float* pair) { ptx::store_shared(to, pair[0], pair[1]); });
      }
    }
    store_slabs<Slabs>(p, at, warpgroup, first, slabs);
  }
}

// Planar: a warpgroup's block passes through shared memory in slabs, so that what is stored at a
// time is 128 bytes of a channel: planes may lie in pages of memory of their own, and going from
// one to the next takes the time of many stores. Where the output's rows are aligned, the copy
// engine stores slabs while the next tile is summed; else a warp stores a channel after the other.
template <typename T, int kChannels, bool kResidual>
__device__ inline void store_planes(const Params<T>& p, const Corner& at,
                                    float (&sum)[kChannels / 2], int block, Residual& residual,
                                    char* slabs) {
  using Slabs = PlaneSlabs<T, kChannels>;
  constexpr int kSize = static_cast<int>(sizeof(T));
  constexpr int kPixels = Slabs::kPixels, kAcross = Slabs::kAcross, kRows = Slabs::kRows;
  constexpr int kSums = kRows / 2;  // of a slab
  const Output<T>& out = p.out;
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const int pixel = warp * kWarpPixels + lane / 4 * 2;
  const bool boxed = ptx::kHasCopyEngine && p.boxed_out;
#pragma unroll
  for (int first = 0; first < Slabs::kAll; first += Slabs::kAtOnce) {
    if (boxed) {
      residual.await<Slabs, kResidual>(p, at, block, first);
    } else {
      ptx::sync_threads<128>(1 + block);  // what was staged is stored
    }
#pragma unroll
    for (int i = 0; i < Slabs::kAtOnce; ++i) {
      const int across = (first + i) % kAcross, down = (first + i) / kAcross;
      if (pixel / kPixels != across) continue;
      const uint32_t slab = ptx::shared_address(slabs) + i * kSlabBytes;
      const int column = pixel % kPixels * kSize;
      float* own = sum + down * kSums;
      // Both pixels of each channel.
      const auto each_pair = [&](auto action) {
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const int row = lane % 4 * 2 + odd;  // of eight, whose units of 16 bytes are permuted
            action(slab + (j * 8 + row) * kRowBytes + (column ^ (row * 16)), own[j * 4 + odd],
                   own[j * 4 + odd + 2]);
          }
        }
      };
      if constexpr (kResidual) {
        each_pair([](uint32_t from, float& a, float& b) {
          const float2 pair = load_pair_shared<T>(from);
          a += pair.x;
          b += pair.y;
        });
        activate_after_residual<kSums>(out, own);
      }
      each_pair([](uint32_t to, float a, float b) {
        if constexpr (kSize == 2) {
          ptx::store_shared(to, pack_pair<T>(a, b));
        } else {
          ptx::store_shared(to, a, b);
        }
      });
    }
    if (boxed) {
      store_slabs<Slabs>(p, at, block, first, slabs);
      continue;
    }
    ptx::sync_threads<128>(1 + block);
#pragma unroll
    for (int i = 0; i < Slabs::kAtOnce; ++i) {
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

}  // namespace customconv::implicit_gemm
