// Boxes that threads bring: of planes of pixels, and of anything else that TMA cannot
// go through. What they leave in shared memory is what TMA would.
#pragma once

#include <type_traits>

#include "kernels/grouped/box.cuh"
#include "kernels/grouped/input.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::grouped {

// The pixels of a tile's box: one or two neighbours at a time, a vector. Two begin at an even
// column, so that one of them may be none of the box's.
struct PlaneBox {
  int vector;
  int step, class_step, row_step;  // pixels: of columns of a class, of classes, of rows
  int pitch, class_rows;  // rows of the box: from one of the image's to the next, of a class
  int count;              // vectors
  Divider<int32_t> across, down;  // vectors of a row of the image, and these
  Divider<int32_t> by_pitch, by_step;
};

// Where a vector comes from, -1 if it does not exist, and the rows where its pixels go, in bytes;
// -1 for none.
struct alignas(16) Brought {
  int64_t offset;
  int row[2];
};

template <typename T>
__device__ inline void find_vectors(const Crew& crew, const PlaneBox& box, const Image<T>& image,
                                    int H, int W, int N, int n, int h, int w, Brought* list) {
  for (int i = crew.thread; i < box.count; i += crew.threads) {
    int32_t rest = i;
    int32_t own = box.across.split(rest);
    const int own_h = box.down.split(rest), own_n = n + rest, image_h = h + own_h * box.row_step;
    const int line = (rest * box.down.divisor() + own_h) * box.pitch;
    Brought brought;
    int column;
    if (box.vector == 1) {
      const int place = box.by_pitch.split(own);
      column = w + own * box.class_step + place * box.step;
      brought.row[0] = (own * box.class_rows + line + place) * kBoxRowBytes;
      brought.row[1] = -1;
    } else {
      column = (w & ~1) + own * 2;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        int32_t place = column + e - w;
        const bool is_box = place >= 0;
        const int klass = box.by_step.split(place);
        const int row = klass * box.class_rows + line + place;
        brought.row[e] = is_box && place < box.pitch ? row * kBoxRowBytes : -1;
      }
    }
    const bool exists = own_n < N && static_cast<unsigned>(image_h) < static_cast<unsigned>(H) &&
                        static_cast<unsigned>(column) < static_cast<unsigned>(W);
    brought.offset = exists ? own_n * image.n + image_h * image.h + int64_t{column} * image.w : -1;
    list[i] = brought;
  }
}

// Threads that bring boxes leave registers to those that multiply: of 80 each where there are 128
// and two blocks share a multiprocessor, of 64 where there are 256, and of 168 and 128 otherwise.
template <int kCount, int kBlocks>
struct BoxRegisters {
  static constexpr bool kFew = kCount == 128;

  static __device__ void give() {
    if constexpr (kBlocks == 2) {
      ptx::warpgroup_reg_dealloc<kFew ? 48 : 40>();
    } else if constexpr (!kFew) {
      ptx::warpgroup_reg_dealloc<80>();
    }
  }
  static __device__ void take() {
    if constexpr (kBlocks == 2) {
      ptx::warpgroup_reg_alloc<kFew ? 96 : 88>();
    } else if constexpr (!kFew) {
      ptx::warpgroup_reg_alloc<176>();
    }
  }
};

// How threads bring channels of an image: neighbouring ones neighbouring vectors, a piece of their
// channels each.
template <typename T>
class PlaneCopies {
 public:
  __device__ PlaneCopies(const Crew& crew, const Image<T>& image, const PlaneBox& box,
                         int first_channel, int pieces, int box_bytes)
      : crew_(crew),
        image_(image),
        box_(box),
        first_channel_(first_channel),
        pieces_(pieces),
        box_bytes_(box_bytes) {}

  __device__ void bring(const Brought* list, char* stage) const {
    if constexpr (sizeof(T) == 2) {
      if (box_.vector == 2) {
        bring_all<2>(list, stage);
        return;
      }
    }
    bring_all<1>(list, stage);
  }

 private:
  static constexpr int kElements = kPieceBytes / static_cast<int>(sizeof(T));

  template <int kVector>
  __device__ void bring_all(const Brought* list, char* stage) const {
    constexpr int kAtOnce = 16 / kElements;  // vectors of a thread that are on their way together
    const int lane = crew_.thread % 32, warps = crew_.threads / 32;
    const uint32_t to = ptx::shared_address(stage);
    const int all = image_.channels * image_.sets;
    int piece = crew_.thread / 32, first = lane;
    for (;;) {
      while (piece >= pieces_) {
        piece -= pieces_;
        first += 32 * kAtOnce;
      }
      if (first - lane >= box_.count) break;
      const int channel = first_channel_ + piece * kElements;
      const T* from = image_.data + min(channel, all - 1) * image_.c;
      const uint32_t place = to + piece_place(piece, box_bytes_);
      if (channel + kElements <= all) {
        bring_pieces<kVector, kAtOnce, true>(from, kElements, list, first, place);
      } else {
        bring_pieces<kVector, kAtOnce, false>(from, all - channel, list, first, place);
      }
      piece += warps;
    }
  }

  // `kWhole`: all its channels exist, not only `left`. Pixels that do not exist are read where one
  // does.
  template <int kVector, int kAtOnce, bool kWhole>
  __device__ void bring_pieces(const T* from, int left, const Brought* list, int first,
                               uint32_t place) const {
    using Value = std::conditional_t<sizeof(T) * kVector == 2, uint16_t, uint32_t>;
    Value values[kAtOnce][kElements];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t offset = list[min(first + i * 32, box_.count - 1)].offset;
      const T* at = from + max(offset, int64_t{0});
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        values[i][e] = Value{};
        if (kWhole || e < left) {
          values[i][e] = *reinterpret_cast<const Value*>(at + e * image_.c);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * 32 >= box_.count) break;
      const Brought brought = list[first + i * 32];
      const bool exists = brought.offset >= 0;
      if constexpr (kVector == 2) {
        // Rows of neighbouring lanes are two apart: half of these store the second pixel first, so
        // that eight lanes meet all banks.
        const bool turned = (first & 4) != 0;
        const uint32_t bytes = turned ? kSecond : kFirst;
        const int row = brought.row[0], next = brought.row[1];
        store(place, turned ? next : row, exists, side(values[i], bytes));
        store(place, turned ? row : next, exists, side(values[i], bytes ^ kFirst ^ kSecond));
      } else {
        store(place, brought.row[0], exists, piece(values[i]));
      }
    }
  }

  // One pixel of each of eight channels' pairs: `bytes` chooses the first or the second.
  static constexpr uint32_t kFirst = 0x5410, kSecond = 0x7632;
  static __device__ uint4 side(const uint32_t (&v)[kElements], uint32_t bytes) {
    const auto pair = [&](int i) { return __byte_perm(v[i], v[i + 1], bytes); };
    return {pair(0), pair(2), pair(4), pair(6)};
  }

  // A pixel's channels.
  static __device__ uint4 piece(const uint16_t (&v)[kElements]) {
    const auto pair = [&](int i) { return v[i] | static_cast<uint32_t>(v[i + 1]) << 16; };
    return {pair(0), pair(2), pair(4), pair(6)};
  }
  static __device__ uint4 piece(const uint32_t (&v)[kElements]) {
    return {ptx::round_tf32(v[0]), ptx::round_tf32(v[1]), ptx::round_tf32(v[2]),
            ptx::round_tf32(v[3])};
  }

  static __device__ void store(uint32_t place, int row, bool exists, uint4 piece) {
    if (!exists) piece = uint4{};
    if (row >= 0) ptx::store_shared(swizzle(place + row), piece);
  }

  const Crew crew_;
  const Image<T>& image_;
  const PlaneBox& box_;
  const int first_channel_, pieces_, box_bytes_;
};

}  // namespace customconv::grouped
