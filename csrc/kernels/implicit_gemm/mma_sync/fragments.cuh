// Operands in registers: the threads that multiply fetch pixels from rows in shared memory.
//
// A warp holds sixteen rows of the matrix instruction's first operand, and a thread two of them,
// lane / 4 and lane / 4 + 8. They stand for two neighbouring pixels, so that one access loads both,
// and one stores the results of both.
#pragma once

#include "kernels/implicit_gemm/mma_sync/rows.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm::mma_sync {

// Where channels and taps are one dimension: from a pixel to that of each tap and channel, -1 where
// there is none.
template <typename T>
__device__ inline void list_flat(const Params<T>& p, int32_t* flat) {
  const RowSource<T>& s = p.source;
  for (int i = threadIdx.x; i < p.pieces * kPieceBytes / static_cast<int>(sizeof(T));
       i += blockDim.x) {
    const int c = i % s.flat_C, tap = i / s.flat_C;
    const int position = tap / s.flat_S * p.dilation_h * p.pitch + tap % s.flat_S * p.dilation_w;
    flat[i] = tap < s.flat_taps ? c * s.flat_bytes + position * static_cast<int>(sizeof(T)) : -1;
  }
}

// How far apart a thread's elements are, in bytes.
struct Distances {
  int channel;
  int pixel;  // from one output pixel of a pair to the other
  int tap;
};

// An operand holds 32 bytes of channels: sixteen of 16 bits, of which a thread has 2t, 2t + 1,
// 2t + 8 and 2t + 9 (t is lane % 4), or eight of 32 bits, t and t + 4. `Elements` loads them as
// pairs of pixels or pixel by pixel.
template <typename T, bool k32Bits = sizeof(T) == 4>
struct Elements {
  using Pair = uint32_t;
  static constexpr int kChannels = 4;
  static __device__ int channel(int i) { return i % 2 + i / 2 * 8; }
  static __device__ int first_channel(int lane) { return lane % 4 * 2; }
  static __device__ uint32_t half(Pair first, Pair second, int pixel) {
    return __byte_perm(first, second, pixel == 0 ? 0x5410 : 0x7632);
  }
  // `first` and `second` give pairs of each channel; the operand's two pixels are of these pairs.
  static __device__ void join(uint32_t (&operand)[4], const Pair (&first)[kChannels], int a,
                              const Pair (&second)[kChannels], int b) {
    operand[0] = half(first[0], first[1], a);
    operand[1] = half(second[0], second[1], b);
    operand[2] = half(first[2], first[3], a);
    operand[3] = half(second[2], second[3], b);
  }
  static __device__ Pair load_one(uint32_t address) { return ptx::load_shared<uint16_t>(address); }
};
template <typename T>
struct Elements<T, true> {
  using Pair = uint2;
  static constexpr int kChannels = 2;
  static __device__ int channel(int i) { return i * 4; }
  static __device__ int first_channel(int lane) { return lane % 4; }
  static __device__ void join(uint32_t (&operand)[4], const Pair (&first)[kChannels], int a,
                              const Pair (&second)[kChannels], int b) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      operand[i * 2] = ptx::round_tf32(a == 0 ? first[i].x : first[i].y);
      operand[i * 2 + 1] = ptx::round_tf32(b == 0 ? second[i].x : second[i].y);
    }
  }
  static __device__ Pair load_one(uint32_t address) {
    return make_uint2(ptx::load_shared<uint32_t>(address), 0);
  }
};

// Operands of kCount products. `at`: where a thread's first pixel is for the first of them, in its
// first channel; `flat`: where the elements of the first product are.
template <typename T, Fetch kFetch, int kCount>
__device__ inline void fetch(uint32_t (&operand)[kCount][4], uint32_t at, const Distances& d,
                             const int32_t* flat) {
  using E = Elements<T>;
  using Pair = typename E::Pair;
  constexpr int kChannels = E::kChannels;
  constexpr int kPiece = kPieceBytes / static_cast<int>(sizeof(T));
  if constexpr (kFetch == Fetch::kTaps || kFetch == Fetch::kOddTaps) {
    constexpr int kOdd = kFetch == Fetch::kOddTaps;
    constexpr int kPairs = (kCount + kOdd) / 2 + 1;
    Pair pair[kPairs][kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const uint32_t from = at + E::channel(c) * d.channel;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        pair[i][c] = ptx::load_shared<Pair>(from + i * static_cast<int>(sizeof(Pair)));
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int first = i + kOdd, second = first + 1;
      E::join(operand[i], pair[first / 2], first % 2, pair[second / 2], second % 2);
    }
  } else if constexpr (kFetch == Fetch::kPieces) {
    Pair pair[kCount][kChannels];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        pair[i][c] = ptx::load_shared<Pair>(at + (i * kPiece + E::channel(c)) * d.channel);
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) E::join(operand[i], pair[i], 0, pair[i], 1);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      Pair first[kChannels], second[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        int offset = i * d.tap + E::channel(c) * d.channel;
        if constexpr (kFetch == Fetch::kFlat) {
          offset = flat[i * kPiece + E::channel(c) + E::first_channel(threadIdx.x % 32)];
        }
        // Without a channel, the pixel may be anything, even NaN.
        const bool exists = kFetch != Fetch::kFlat || offset >= 0;
        const uint32_t from = at + (exists ? offset : 0);
        first[c] = E::load_one(from);
        second[c] = E::load_one(from + d.pixel);
        if (!exists) first[c] = second[c] = Pair{};
      }
      E::join(operand[i], first, 0, second, 0);
    }
  }
}

}  // namespace customconv::implicit_gemm::mma_sync
