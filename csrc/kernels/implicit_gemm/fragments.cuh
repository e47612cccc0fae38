// Operands in registers: the threads that multiply fetch pixels from rows in shared memory.
//
// A warp holds sixteen rows of the matrix instruction's first operand, and a thread two of them,
// lane / 4 and lane / 4 + 8. They stand for two neighbouring pixels, so that one access loads both,
// and one stores the results of both.
#pragma once

#include "kernels/implicit_gemm/rows.cuh"
#include "kernels/implicit_gemm/slabs.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm {

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
  } else if constexpr (kFetch == Fetch::kPieces || kFetch == Fetch::kBoxedPieces) {
    Pair pair[kCount][kChannels];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        if constexpr (kFetch == Fetch::kPieces) {
          pair[i][c] = ptx::load_shared<Pair>(at + (i * kPiece + E::channel(c)) * d.channel);
        } else {
          const int row = i * kPiece + (kPiece == 16 ? E::channel(c) : c);
          pair[i][c] = ptx::load_shared<Pair>((c % 2 == 0 ? at : at ^ 16) + row * kRowBytes);
        }
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

// From a product's weights to those of the next.
template <int kChannels, Fetch kFetch>
inline constexpr int kUnitBytes = has_matrix(kFetch) ? kPieceBytes : kChannels * kPieceBytes;

// The products of a warpgroup (wgmma).
template <typename T, int kChannels, Fetch kFetch, bool kTransposed>
class MatrixProducts {
 public:
  static constexpr int kUnit = kTransposed ? matrix_step<T>(true) : kUnitBytes<kChannels, kFetch>;

  __device__ explicit MatrixProducts(uint32_t weights)
      : weights_(has_matrix(kFetch) ? describe_matrix<T>(kTransposed, weights)
                                    : ptx::describe_blocks(weights, kChannels * 16)) {}

  // Adds kCount products of a block; the weights of the first are at `first`. No branch may come
  // between them: the compiler would make several groups of it.
  template <int kCount>
  __device__ void add(float (&sum)[kChannels / 2], const uint32_t (&operand)[kCount][4],
                      int first) const {
    ptx::begin_products();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      ptx::Product<T, kChannels, kTransposed>::add(sum, operand[i],
                                                   ptx::advance(weights_, first + i * kUnit), 1);
    }
    ptx::commit_products();
    ptx::await_products<0>();
  }
  // All weights of a stage are read.
  static __device__ void release(ptx::Barrier* empty) {
    if (threadIdx.x % 128 == 0) ptx::arrive(empty);
  }

 private:
  uint64_t weights_;
};

template <typename T, int kChannels, Fetch kFetch>
using WarpgroupProducts = MatrixProducts<T, kChannels, kFetch, false>;
// With weights that are transposed.
template <typename T, int kChannels, Fetch kFetch>
using TransposedProducts = MatrixProducts<T, kChannels, kFetch, true>;

// The sums of a warpgroup's block for one item of work. `x` and `w` go on from one item to the
// next.
template <typename T, int kChannels, Fetch kFetch,
          template <typename, int, Fetch> class Products = WarpgroupProducts>
__device__ inline void multiply_rows(const Params<T>& p, const Shared& shared, const Work& work,
                                     int block, Place& x, Place& w, float (&sum)[kChannels / 2]) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  constexpr int kPiece = kPieceBytes / kSize;
  constexpr int kGroup = group_products(kFetch);
  constexpr int kWeightBytes = kGroup * kChannels * kPieceBytes;
  const RowSource<T>& source = p.source;
  const int lane = threadIdx.x % 32;

  // Where the thread's first pixel is, in bytes from the beginning of a stage.
  const int pair = block * (kInstructionRows / 2) + threadIdx.x % 128 / 32 * 8 + lane / 4;
  int position = pair * 2;
  if constexpr (is_copied(kFetch) && kFetch != Fetch::kPieces) {
    const Spot spot = locate(source, min(work.at.pair + pair, source.last_pair));
    const int odd = kFetch == Fetch::kOddTaps;
    const int row = plane_row(source, spot) - plane_row(source, locate(source, work.at.pair));
    position = row * p.pitch + source.row.slack - odd + spot.pair * 2 * p.stride_w;
  }
  uint32_t pixel = ptx::shared_address(shared.input);
  int channel_bytes = source.row.channel_bytes;
  if constexpr (kFetch == Fetch::kBoxedPieces) {
    // Rows of eight channels' units of 16 bytes are permuted. A thread's channels begin with the
    // row of twice its place among four.
    constexpr int kUnit = 16 / kSize;
    const int row = lane % 4 * 2, column = position % kSlabPixels<T>;
    pixel += SlabPlaces<T>(source, work.at.pair).slab_of(position) * source.row.slab_bytes +
             row * kRowBytes + (column / kUnit ^ row) * 16 + column % kUnit * kSize;
    channel_bytes = kRowBytes;
  } else {
    pixel += position * kSize;
    if constexpr (kFetch != Fetch::kFlat) {
      pixel += Elements<T>::first_channel(lane) * channel_bytes;
    }
  }
  const Distances distances = {channel_bytes, p.stride_w * kSize, p.w_axis.step * kSize};
  const int row_bytes = p.h.step * p.pitch * kSize;
  const int taps_h = p.R / p.h.planes, taps_w = p.S / p.w_axis.planes;
  const Products<T, kChannels, kFetch> products(ptx::shared_address(shared.weights));

  // The products of operands, by the stage of weights from `first` bytes on.
  const auto add = [&](const auto& operand, int first) {
    if constexpr (!has_matrix(kFetch)) ptx::wait(&shared.w_full[w.stage], w.parity);
    products.add(sum, operand, w.stage * kWeightBytes + first);
  };
  // So many, whose pixels are at `at`.
  const auto multiply = [&](auto number, uint32_t at, const int32_t* flat = nullptr,
                            int first = 0) {
    constexpr int kCount = decltype(number)::value;
    uint32_t operand[kCount][4];
    fetch<T, kFetch, kCount>(operand, at, distances, flat);
    add(operand, first);
  };
  const auto release_weights = [&] {
    products.release(&shared.w_empty[w.stage]);
    w.advance(p.w_stages);
  };
  constexpr std::integral_constant<int, 1> kOne;
  constexpr std::integral_constant<int, 2> kTwo;
  constexpr std::integral_constant<int, 3> kThree;

  // The steps of the item, `multiply_step` does one.
  const auto walk = [&](auto multiply_step) {
    Step step(p, work.first);
#pragma unroll 1
    for (int i = work.first; i < work.last; ++i, step.advance(p)) {
      ptx::wait(&shared.x_full[x.stage], x.parity);
      multiply_step(step, pixel + x.stage * p.stage_bytes);
      ptx::arrive(&shared.x_empty[x.stage]);  // each thread has read what it needs
      x.advance(p.x_stages);
    }
  };

#pragma unroll
  for (float& s : sum) s = 0.0f;
  if constexpr (has_matrix(kFetch)) {
    walk([&](const Step& step, uint32_t at) {
      ptx::wait(&shared.w_full[w.stage], w.parity);
      int left = step.pieces(p), first = 0;
#pragma unroll 1
      for (; left >= 2; left -= 2, first += 2 * Products<T, kChannels, kFetch>::kUnit) {
        multiply(kTwo, at, nullptr, first);
        at += 2 * kPiece * distances.channel;
      }
      if (left > 0) multiply(kOne, at, nullptr, first);
      release_weights();
    });
  } else if constexpr (kFetch == Fetch::kFlat) {
    walk([&](const Step&, uint32_t at) {
      const int32_t* flat = shared.flat;
#pragma unroll 1
      for (int left = p.pieces; left > 0; left -= 2, flat += 2 * kPiece) {
        if (left >= 2) {
          multiply(kTwo, at, flat);
        } else {
          multiply(kOne, at, flat);
        }
        release_weights();
      }
    });
  } else {
    // Rows of taps, in groups of so many.
    const auto walk_rows = [&](auto group) {
      constexpr int kTaps = decltype(group)::value;
      walk([&](const Step&, uint32_t at) {
#pragma unroll 1
        for (int r = 0; r < taps_h; ++r, at += row_bytes) {
          uint32_t tap = at;
#pragma unroll 1
          for (int left = taps_w; left > 0; left -= kTaps, tap += kTaps * distances.tap) {
            if (kTaps < 3 && left < kTaps) {
              multiply(kOne, tap);
            } else {
              multiply(group, tap);
            }
            release_weights();
          }
        }
      });
    };
    const int group = taps_of_group(kFetch, taps_w);
    if (kGroup == 3 && group == 3) {
      walk_rows(kThree);
    } else if (group == 2) {
      walk_rows(kTwo);
    } else {
      walk_rows(kOne);
    }
  }
}

}  // namespace customconv::implicit_gemm
