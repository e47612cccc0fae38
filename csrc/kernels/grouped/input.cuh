// How an image gets into shared memory: units of neighbouring channels, a plane of pixels each.
#pragma once

#include <cstdint>

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/grouped/geometry.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::grouped {

// An image of which blocks read groups of channels.
template <typename T>
struct Image {
  const T* data;
  int64_t n, c, h, w;  // strides
  int channels;        // of a set of groups
  int sets;
  bool vectors;  // units are whole, aligned and follow each other in memory
};

// The same for one dimension of a tile.
struct AxisParams {
  int in, out, positions, step, first, phases;
  int kept, class_step;  // see Axis
  int most;              // positions of a tile
  Taps taps[kMostPhases];
  Divider<int32_t> by_count[kMostPhases];  // of these
  Divider<int32_t> by_kept, by_step, by_class_step;
};

struct TileParams {
  AxisParams h, w;
  int N, images, pixels;
  int tiles;
  int slots;
  int classes, class_slots;  // of boxes, see Tile
  Divider<int32_t> rows, columns, pitch, kept_rows;
  Divider<int32_t> tiles_q, tiles_p;
};

// Threads of a block that do something together.
struct Crew {
  int thread, threads;
  int barrier;  // 0 is that of __syncthreads

  __device__ void sync() const { ptx::named_barrier_sync(barrier, threads); }
};
__device__ inline Crew whole_block() {
  return {static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x), 0};
}
// Those that multiply come first in a block, those that bring the next tile meanwhile last.
__device__ inline Crew consumers(int count) { return {static_cast<int>(threadIdx.x), count, 1}; }
__device__ inline Crew producers(int first) {
  return {static_cast<int>(threadIdx.x) - first, static_cast<int>(blockDim.x) - first, 2};
}

// Where a tile begins: an image, and positions.
struct Place {
  int n, h, w;
};
__device__ inline Place place_of(const TileParams& p, int32_t tile) {
  Place place;
  place.w = p.tiles_q.split(tile) * p.w.most;
  place.h = p.tiles_p.split(tile) * p.h.most;
  place.n = tile * p.images;
  return place;
}

// What a tile reads or computes, relative to where it begins: an image and a pixel, and how far
// that is in memory.
struct alignas(16) Spot {
  int64_t offset;
  int h;
  int n_and_w;  // twelve and twenty bits

  __device__ int n() const { return n_and_w >> 20; }
  __device__ int w() const { return n_and_w & 0xFFFFF; }
};

// The slots of a tile.
template <typename T>
__device__ inline void list_slots(const Crew& crew, const TileParams& p, const Image<T>& image,
                                  Spot* spots) {
  const auto pixel = [](const AxisParams& axis, int slot) {
    int32_t klass = slot;
    const int own = axis.by_kept.split(klass);
    return own * axis.step + klass * axis.class_step;
  };
  for (int i = crew.thread; i < p.slots; i += crew.threads) {
    int32_t n = i;
    const int w = pixel(p.w, p.pitch.split(n)), h = pixel(p.h, p.kept_rows.split(n));
    spots[i] = {n * image.n + h * image.h + w * image.w, h, n << 20 | w};
  }
}

// The positions of a tile, whose pixels are `h`, `w` apart in memory, and images `n`; behind the
// last one there are none up to `count`.
__device__ inline void list_positions(const Crew& crew, const TileParams& p, int64_t n, int64_t h,
                                      int64_t w, int count, Spot* spots) {
#pragma unroll 1
  for (int i = crew.thread; i < count; i += crew.threads) {
    int32_t image = i;
    const int column = p.columns.split(image), row = p.rows.split(image);
    spots[i] = {image * n + row * h + column * w, i < p.pixels ? row : INT32_MAX,
                image << 20 | column};
  }
}

// Whether the last position has a pixel of that phase; all others have.
__device__ inline bool position_exists(const AxisParams& axis, int phase) {
  return (axis.positions - 1) * axis.phases + phase < axis.out;
}

// The slot of a position's first pixel.
__device__ inline int slot_of(const TileParams& p, const Spot& spot) {
  return (spot.n() * p.kept_rows.divisor() + spot.h) * p.pitch.divisor() + spot.w();
}

// How much further on the slots are of a tap that reads `offset` further on.
__host__ __device__ inline int class_slot(const AxisParams& axis, int offset) {
  const int from_first = offset - axis.first;
  return from_first % axis.step / axis.class_step * axis.kept + from_first / axis.step;
}

// Lists the offset of every slot's pixel in the tile that begins at `at`, -1 where there is none.
template <typename T>
__device__ inline void find_pixels(const Crew& crew, const TileParams& p, const Image<T>& image,
                                   const Place& at, const Spot* spots, int64_t* list) {
  const int h = at.h * p.h.step + p.h.first, w = at.w * p.w.step + p.w.first;
  const int64_t begin = at.n * image.n + h * image.h + w * image.w;
  for (int i = crew.thread; i < p.slots; i += crew.threads) {
    const Spot spot = spots[i];
    const bool exists = at.n + spot.n() < p.N &&
                        static_cast<unsigned>(h + spot.h) < static_cast<unsigned>(p.h.in) &&
                        static_cast<unsigned>(w + spot.w()) < static_cast<unsigned>(p.w.in);
    list[i] = exists ? begin + spot.offset : -1;
  }
}

template <typename T>
__device__ inline T operand(T v) {
  return v;
}
template <>
__device__ inline float operand<float>(float v) {
  return __uint_as_float(ptx::round_tf32(__float_as_uint(v)));
}

// How a thread brings channels of an image into shared memory: units of eight bytes, side by side
// in slots of one or two, a plane of slots for each. Copies through registers, not asynchronous
// ones: those write what one lane brings at a time where lanes' places are apart.
// kAtOnce: slots of a thread that are on their way together.
template <typename T, int kAtOnce>
class UnitCopies {
 public:
  // Copies `units` units at a time of each of some sets of channels, to planes
  // `plane` slots apart.
  __device__ UnitCopies(const Crew& crew, const Image<T>& image, int first_set, int sets, int units,
                        int slot_bytes, int plane)
      : crew_(crew),
        image_(image),
        units_(units),
        slot_bytes_(slot_bytes),
        plane_(plane * slot_bytes) {
    if (!image.vectors) {
      first_set_ = first_set;
      all_ = sets * units;
      return;
    }
    // Pieces of sixteen bytes. Where units are all of a set's, sets follow each other.
    const int of_set = units * kUnitBytes / 16, all = sets * units * kUnitBytes / 16;
    apart_ = crew.threads / all;
    const int piece = crew.thread % all;
    first_ = crew.thread / all;
    if (first_ >= apart_) first_ = INT32_MAX - apart_;  // of no slot
    const bool whole = units * kElements == image.channels;
    const int set = whole ? 0 : piece / of_set;
    channel_ = (whole ? piece : piece - set * of_set) * kPiece;
    const int64_t begin = int64_t{first_set + set} * image.channels;
    left_ = whole ? static_cast<int>(int64_t{image.sets} * image.channels - begin)
                  : (first_set + set < image.sets ? image.channels : 0);
    from_ = image.data + begin + channel_;
    to_ = piece * (16 / slot_bytes) * plane_;
  }

  // Zeros for what does not exist. `list`: of every slot where its pixel is, -1 where there is
  // none.
  __device__ void bring(int first_unit, const int64_t* list, int slots, char* planes) const {
    if (image_.vectors) {
      bring_pieces(first_unit * kElements, list, slots, planes + to_);
    } else {
      bring_elements(first_unit, list, slots, planes);
    }
  }

 private:
  static constexpr int kElements = kUnitBytes / static_cast<int>(sizeof(T));
  static constexpr int kPiece = 16 / static_cast<int>(sizeof(T));

  __device__ void bring_pieces(int channel, const int64_t* list, int slots, char* plane) const {
    const bool exists = channel_ + channel < left_;
    const T* from = from_ + channel;
    for (int slot = first_; slot < slots; slot += apart_ * kAtOnce) {
      uint4 piece[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = slot + i * apart_;
        const int64_t offset = exists && at < slots ? list[at] : -1;
        piece[i] = uint4{};
        if (offset >= 0) piece[i] = *reinterpret_cast<const uint4*>(from + offset);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = slot + i * apart_;
        if (at >= slots) break;
        T* values = reinterpret_cast<T*>(&piece[i]);
#pragma unroll
        for (int e = 0; e < kPiece; ++e) values[e] = operand(values[e]);
        char* to = plane + at * slot_bytes_;
        if (slot_bytes_ == 16) {
          *reinterpret_cast<uint4*>(to) = piece[i];
        } else {
          *reinterpret_cast<uint2*>(to) = {piece[i].x, piece[i].y};
          *reinterpret_cast<uint2*>(to + plane_) = {piece[i].z, piece[i].w};
        }
      }
    }
  }

  // Neighbouring threads read neighbouring pixels. What does not exist is read where it does.
  __device__ void bring_elements(int first_unit, const int64_t* list, int slots,
                                 char* planes) const {
    const int lane = crew_.thread % 32, warps = crew_.threads / 32;
    const int each = slot_bytes_ / kUnitBytes;
    for (int unit = crew_.thread / 32; unit < all_; unit += warps) {
      const int set = unit / units_, own = unit - set * units_;
      const int channel = (first_unit + own) * kElements;
      const int left = first_set_ + set < image_.sets ? image_.channels - channel : 0;
      const int64_t first = (int64_t{first_set_ + set} * image_.channels + channel) * image_.c;
      const T* from = image_.data + (left > 0 ? first : 0);
      char* to = planes + unit / each * plane_ + unit % each * kUnitBytes;
      if (left >= kElements) {
        bring_unit<true>(from, left, list, lane, slots, to);
      } else {
        bring_unit<false>(from, left, list, lane, slots, to);
      }
    }
  }

  // `kWhole`: all its elements exist, not only `left`.
  template <bool kWhole>
  __device__ void bring_unit(const T* from, int left, const int64_t* list, int lane, int slots,
                             char* to) const {
    for (int first = lane; first < slots; first += 32 * kAtOnce) {
      uint2 unit[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int64_t offset = list[min(first + i * 32, slots - 1)];
        const T* at = from + max(offset, int64_t{0});
        alignas(kUnitBytes) T values[kElements] = {};
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          if (kWhole || e < left) values[e] = operand(at[e * image_.c]);
        }
        unit[i] = *reinterpret_cast<const uint2*>(values);
        if (offset < 0) unit[i] = uint2{};
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int slot = first + i * 32;
        if (slot < slots) *reinterpret_cast<uint2*>(to + slot * slot_bytes_) = unit[i];
      }
    }
  }

  const Crew crew_;
  const Image<T>& image_;
  int units_, slot_bytes_, plane_;
  // For pieces:
  const T* from_ = nullptr;
  int first_ = 0, apart_ = 0, channel_ = 0, left_ = 0, to_ = 0;
  // For elements:
  int first_set_ = 0, all_ = 0;
};

}  // namespace customconv::grouped
