// Operands in registers: the threads that multiply fetch pixels from rows in shared memory.
//
// Of the sixteen rows that a warp holds of the matrix instruction's first operand, a thread has two,
// lane / 4 and lane / 4 + 8. They stand for two neighbouring pixels, so that one access brings
// both, and the results of both are stored by one.
#pragma once

#include "kernels/implicit_gemm/rows.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm {

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
  static __device__ Pair load_one(uint32_t address) {
    return ptx::load_shared<uint16_t>(address);
  }
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
        // Of no channel: the pixel may be anything, even NaN.
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

// Adds kCount products of a block, whose weights are at `weights`. No branch may come between them:
// the compiler would make several groups of it.
template <typename T, int kChannels, Fetch kFetch, int kCount>
__device__ inline void add_products(float (&sum)[kChannels / 2],
                                    const uint32_t (&operand)[kCount][4], uint32_t weights,
                                    int accumulate) {
  ptx::begin_products();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint64_t w =
        kFetch == Fetch::kPieces
            ? ptx::describe_rows(weights + i * kPieceBytes, 8 * kRowBytes)
            : ptx::describe_blocks(weights + i * kChannels * kPieceBytes, kChannels * 16);
    ptx::Product<T, kChannels>::add(sum, operand[i], w, i > 0 || accumulate);
  }
  ptx::commit_products();
}

// The sums of a warpgroup's block for one item of work. `x` and `w` go on from one item to the next.
template <typename T, int kChannels, Fetch kFetch>
__device__ inline void multiply_rows(const Params<T>& p, const Shared& shared, const Work& work,
                                     int block, Place& x, Place& w, float (&sum)[kChannels / 2]) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  constexpr int kPiece = kPieceBytes / kSize;
  constexpr int kGroup = group_products(kFetch);
  constexpr int kWeightBytes = kGroup * kChannels * kPieceBytes;
  const RowSource<T>& source = p.source;
  const bool leader = threadIdx.x % 128 == 0;
  const int lane = threadIdx.x % 32;

  // Of the thread's first pixel, in bytes from the beginning of a stage.
  const int pair = block * (kInstructionRows / 2) + threadIdx.x % 128 / 32 * 8 + lane / 4;
  int position = pair * 2;
  if constexpr (kFetch != Fetch::kPieces) {
    Spot spot = locate(source, work.at.pair + pair);
    if (p.run == 0) spot.row = min(spot.row, p.rows - 1);
    const int odd = kFetch == Fetch::kOddTaps;
    position = (plane_row(source, spot) - plane_row(source, locate(source, work.at.pair))) *
                   p.pitch +
               source.row.slack - odd + spot.pair * 2 * p.stride_w;
  }
  uint32_t pixel = ptx::shared_address(shared.input) + position * kSize;
  if constexpr (kFetch != Fetch::kFlat) {
    pixel += Elements<T>::first_channel(lane) * source.row.channel_bytes;
  }
  const Distances distances = {source.row.channel_bytes, p.stride_w * kSize,
                               p.w_axis.step * kSize};
  const int row_bytes = p.h.step * p.pitch * kSize;
  const int taps_h = p.R / p.h.planes, taps_w = p.S / p.w_axis.planes;
  int accumulate = 0;

  // Products whose pixels are at `at`, of the stage of weights from `first` on.
  const auto multiply_some = [&](auto number, uint32_t at, const int32_t* flat, int first) {
    constexpr int kCount = decltype(number)::value;
    uint32_t operand[kCount][4];
    fetch<T, kFetch, kCount>(operand, at, distances, flat);
    if (first == 0) ptx::wait(&shared.w_full[w.stage], w.parity);
    const uint32_t stage = ptx::shared_address(shared.weights) + w.stage * kWeightBytes;
    add_products<T, kChannels, kFetch, kCount>(sum, operand, stage + first, accumulate);
    accumulate = 1;
    ptx::await_products<0>();
  };
  const auto multiply = [&](int count, uint32_t at, const int32_t* flat = nullptr, int first = 0) {
    if (kGroup == 3 && count == 3) {
      multiply_some(std::integral_constant<int, 3>(), at, flat, first);
    } else if (count >= 2) {
      multiply_some(std::integral_constant<int, 2>(), at, flat, first);
    } else {
      multiply_some(std::integral_constant<int, 1>(), at, flat, first);
    }
  };
  const auto release_weights = [&] {
    if (leader) ptx::arrive(&shared.w_empty[w.stage]);
    w.advance(p.w_stages);
  };

  Step step(p, work.first);
  for (int i = work.first; i < work.last; ++i, step.advance(p)) {
    ptx::wait(&shared.x_full[x.stage], x.parity);
    const uint32_t at = pixel + x.stage * p.stage_bytes;
    if constexpr (kFetch == Fetch::kPieces) {
      const int pieces = step.pieces(p);
      for (int piece = 0; piece < pieces; piece += 2) {
        multiply(pieces - piece, at + piece * kPiece * distances.channel, nullptr,
                 piece * kPieceBytes);
      }
      release_weights();
    } else if constexpr (kFetch == Fetch::kFlat) {
      for (int piece = 0; piece < p.pieces; piece += kGroup) {
        multiply(p.pieces - piece, at, shared.flat + piece * kPiece);
        release_weights();
      }
    } else {
      const int group = taps_of_group(kFetch, taps_w);
      uint32_t row = at;
      for (int r = 0; r < taps_h; ++r, row += row_bytes) {
        uint32_t tap = row;
        for (int s = 0; s < taps_w; s += group, tap += group * distances.tap) {
          multiply(min(group, taps_w - s), tap);
          release_weights();
        }
      }
    }
    ptx::arrive_warp(&shared.x_empty[x.stage]);
    x.advance(p.x_stages);
  }
}

}  // namespace customconv::implicit_gemm
