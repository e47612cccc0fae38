// Input gradients whose columns are of two phases by turns: a thread block computes one phase of
// its pixels after the other, keeps the results of the first, and stores both side by side.
#pragma once

#include <type_traits>

#include "kernels/implicit_gemm/finish.cuh"
#include "kernels/implicit_gemm/pixels.cuh"
#include "kernels/implicit_gemm/work.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm {

// Two neighbouring columns.
template <typename T>
using TwoColumns = std::conditional_t<sizeof(T) == 2, uint32_t, float2>;

// Of a thread's two pixels and two channels, the columns of both phases.
template <typename T>
struct Quad {
  TwoColumns<T> columns[2][2];  // of pixels, of channels
};

// In shared memory, of a block's channel all columns, in lines of 128 bytes whose units of 16 bytes
// are permuted.
template <int kSize>
__device__ inline int paired_place(int channel, int column) {
  const int bytes = column * kSize;
  return channel * (kPairedColumns * kSize) + bytes / kRowBytes * kRowBytes +
         (bytes % kRowBytes ^ channel % 8 * 16);
}

// Results of the first phase, as they are kept: a float, or two of 16 bits. Not a float's bits: the
// compiler would turn sums into bits while products are under way.
template <typename T>
using Word = std::conditional_t<sizeof(T) == 2, uint32_t, float>;

// The first phase's results beside the second's.
template <typename T>
__device__ inline Quad<T> side_by_side(const Word<T>* words, const float* sum) {
  Quad<T> quad;
#pragma unroll
  for (int pixel = 0; pixel < 2; ++pixel) {
    auto& columns = quad.columns[pixel];
    const float* s = sum + pixel * 2;
    if constexpr (sizeof(T) == 2) {
      const uint32_t a = words[pixel], b = pack_pair<T>(s[0], s[1]);
      columns[0] = (a & 0xffff) | b << 16;
      columns[1] = a >> 16 | (b & 0xffff0000);
    } else {
      columns[0] = make_float2(words[pixel * 2], s[0]);
      columns[1] = make_float2(words[pixel * 2 + 1], s[1]);
    }
  }
  return quad;
}

// The first phase's results in registers, where there are enough.
template <typename T, int kBlocks, int kSums>
class Kept {
 public:
  __device__ Kept(const Params<T>&, int) {}

  __device__ void store(const float (&sum)[kBlocks][kSums]) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const float* s = sum[i * kOfWord / kSums] + i * kOfWord % kSums;
      if constexpr (sizeof(T) == 2) {
        words_[i] = pack_pair<T>(s[0], s[1]);
      } else {
        words_[i] = s[0];
      }
    }
  }
  // Of a block's sums from `first` on kCount: calls `take` with each eight channels, by their
  // number, and the thread's of them.
  template <int kCount, typename Take>
  __device__ void with_second(const float (&sum)[kBlocks][kSums], int block, int first,
                              Take take) const {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float* second = sum[block] + first + i;
      take(i / 4, side_by_side<T>(words_ + (block * kSums + first + i) / kOfWord, second));
    }
  }

 private:
  static constexpr int kOfWord = 4 / static_cast<int>(sizeof(T));  // results
  static constexpr int kWords = kBlocks * kSums / kOfWord;
  Word<T> words_[kWords];
};

// Else in memory, where each thread reads what itself wrote. They are of as many thread blocks as
// run at a time, and stay in the second-level cache.
template <typename T, int kBlocks, int kSums>
class Parked {
 public:
  __device__ Parked(const Params<T>& p, int warpgroup) : p_(p), warpgroup_(warpgroup) {}

  __device__ void store(const float (&sum)[kBlocks][kSums]) const {
    Vector* to = own();
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float* s = sum[i * kOfVector / kSums] + i * kOfVector % kSums;
      if constexpr (sizeof(T) == 2) {
        to[i * 128] = make_uint4(pack_pair<T>(s[0], s[1]), pack_pair<T>(s[2], s[3]),
                                 pack_pair<T>(s[4], s[5]), pack_pair<T>(s[6], s[7]));
      } else {
        to[i * 128] = make_float4(s[0], s[1], s[2], s[3]);
      }
    }
  }
  template <int kCount, typename Take>
  __device__ void with_second(const float (&sum)[kBlocks][kSums], int block, int first,
                              Take take) const {
    constexpr int kAtOnce = kCount / kOfVector < kMost ? kCount / kOfVector : kMost;
    const Vector* from = own() + (block * kSums + first) / kOfVector * 128;
#pragma unroll
    for (int v = 0; v < kCount / kOfVector; v += kAtOnce) {
      Vector vectors[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) vectors[i] = from[(v + i) * 128];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const Word<T> words[4] = {vectors[i].x, vectors[i].y, vectors[i].z, vectors[i].w};
#pragma unroll
        for (int j = 0; j < kOfVector; j += 4) {
          const int at = (v + i) * kOfVector + j;
          take(at / 4, side_by_side<T>(words + j / 2, sum[block] + first + at));
        }
      }
    }
  }

 private:
  using Vector = std::conditional_t<sizeof(T) == 2, uint4, float4>;
  static constexpr int kOfVector = 16 / static_cast<int>(sizeof(T));  // results
  static constexpr int kVectors = kBlocks * kSums / kOfVector;
  // Vectors that are fetched at a time: where four warpgroups multiply, registers are few.
  static constexpr int kMost = kBlocks > 1 ? 4 : 2;

  __device__ Vector* own() const {
    const int warpgroups = blockDim.x / 128 - 1;
    return static_cast<Vector*>(p_.parked) +
           (int64_t{blockIdx.x} * warpgroups + warpgroup_) * (kVectors * 128) + threadIdx.x % 128;
  }

  const Params<T>& p_;
  int warpgroup_;
};

template <typename T, int kKernel, Fetch kFetch, int kBlocks, int kSums>
using FirstPhase = std::conditional_t<keeps_first_phase(kKernels[kKernel], kFetch, sizeof(T)),
                                      Kept<T, kBlocks, kSums>, Parked<T, kBlocks, kSums>>;

// Where columns are in the output, and how many of a row follow.
struct Columns {
  int64_t offset;
  int count;
};

// Stores some channels of a block's columns, which lie in shared memory, kUnit of them at a time: a
// warp stores one channel after the other. `find` tells where a block's column goes.
template <int kUnit, typename T, typename Find>
__device__ inline void store_columns(T* to, int64_t channel_step, int channels, const char* slab,
                                     Find find) {
  constexpr int kSize = static_cast<int>(sizeof(T)), kRounds = kPairedColumns / (32 * kUnit);
  using Unit = std::conditional_t<
      kUnit * kSize == 16, uint4,
      std::conditional_t<kUnit * kSize == 8, uint2,
                         std::conditional_t<kUnit * kSize == 4, uint32_t, uint16_t>>>;
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const uint32_t from = ptx::shared_address(slab);
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    const int column = (round * 32 + lane) * kUnit;
    const Columns own = find(column);
    if (own.count < kUnit) continue;
    T* at = to + own.offset + warp * channel_step;
#pragma unroll 4
    for (int channel = warp; channel < channels; channel += 4, at += 4 * channel_step) {
      *reinterpret_cast<Unit*>(at) =
          ptx::load_shared<Unit>(from + paired_place<kSize>(channel, column));
    }
  }
}

// Stores a block: `own` are the thread's first columns of its two pixels. Called by a warpgroup.
template <typename T, int kBlocks, int kSums, typename First, typename Find>
__device__ inline void store_paired(const Params<T>& p, const Corner& at,
                                    const float (&sum)[kBlocks][kSums], const First& first_phase,
                                    int block, int warpgroup, const int (&own)[2], char* slab,
                                    Find find) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  constexpr int kChannels = paired_channels(kSums * 2, kSize);  // that pass at a time
  const Output<T>& out = p.out;
  const int width = out.phase[at.phase - 1].Q + out.phase[at.phase].Q;
  const int own_channel = threadIdx.x % 4 * 2;
  const uint32_t to = ptx::shared_address(slab);
#pragma unroll
  for (int first = 0; first < kSums * 2; first += kChannels) {
    ptx::sync_threads<128>(1 + warpgroup);  // what was there is stored
    first_phase.template with_second<kChannels / 2>(
        sum, block, first / 2, [&](int group, const Quad<T>& quad) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int pixel = i / 2, channel = group * 8 + own_channel + i % 2;
            const auto& columns = quad.columns[pixel][i % 2];
            const uint32_t place = to + paired_place<kSize>(channel, own[pixel]);
            if constexpr (kSize == 2) {
              ptx::store_shared(place, columns);
            } else {
              ptx::store_shared(place, columns.x, columns.y);
            }
          }
        });
    ptx::sync_threads<128>(1 + warpgroup);
    const int k = at.k + first, channels = min(kChannels, out.K - k);
    T* const data = out.data + k * out.k;
    if (out.vectors && width % 4 == 0) {
      store_columns<4>(data, out.k, channels, slab, find);
    } else if (out.vectors) {
      store_columns<2>(data, out.k, channels, slab, find);
    } else {
      store_columns<1>(data, out.k, channels, slab, find);
    }
  }
}

// Of rows or images, where a thread has pairs of pixels.
template <typename T, int kSums, typename First>
__device__ inline void store_pairs(const Params<T>& p, const Corner& at,
                                   const float (&sum)[1][kSums], const First& first_phase,
                                   int block, char* slab) {
  const Output<T>& out = p.out;
  Corner first = at;
  --first.phase;
  const int width = out.phase[first.phase].Q + out.phase[at.phase].Q;
  const int column = (threadIdx.x % 128 / 32 * kWarpPixels / 2 + threadIdx.x % 32 / 4) * 4;
  const auto find = [&](int column) -> Columns {
    const Spot spot = locate(p.source, at.pair + (block * kPairedColumns + column) / 4);
    const Pair pair = pair_at(out, first, spot);
    if (pair.count == 0) return {0, 0};
    return {pair.offset + column % 4, width - (at.q + spot.pair * 2) * 2 - column % 4};
  };
  store_paired(p, at, sum, first_phase, 0, block, {column, column + 2}, slab, find);
}

// Of images whose channels were put side by side: blocks are squares of 8 x 8 pixels, and a thread
// has pixels of two rows.
template <typename T, int kBlocks, int kSums, typename First>
__device__ inline void store_squares(const Params<T>& p, const Corner& at,
                                     const float (&sum)[kBlocks][kSums], const First& first_phase,
                                     int warpgroup, char* slab) {
  const Output<T>& out = p.out;
  const Phase& first = out.phase[at.phase - 1];
  const int width = first.Q + out.phase[at.phase].Q;
  const int column = threadIdx.x % 128 / 32 * 32 + threadIdx.x % 32 / 4 * 2;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    int32_t n = warpgroup * kBlocks + b;
    const int first_column = out.squares_w.split(n) * 16;
    const int first_row = out.squares_h.split(n) * 8;
    const auto find = [&](int column) -> Columns {
      const int row = first_row + column / 16, w = first_column + column % 16;
      if (row >= first.P || at.n + n >= out.N) return {0, 0};
      return {first.offset + (at.n + n) * out.n + row * out.p + w, width - w};
    };
    store_paired(p, at, sum, first_phase, b, warpgroup, {column, column + 16}, slab, find);
  }
}

}  // namespace customconv::implicit_gemm
