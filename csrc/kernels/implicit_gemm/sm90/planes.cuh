// The planes loader: a stage of the halo loader's positions, from channels-first input.
// TMA brings boxes of planes as they are, and warps transpose them, so that each pixel's channels
// lie side by side.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/halves.cuh"
#include "kernels/implicit_gemm/sm90/work.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm::sm90 {

// A box has kBoxPixels pixels of a row, with all channels of a stage: in shared memory a row for
// each channel, with the swizzle of its width. Calls `place` for a pixel of the box and a unit of
// 16 bytes of channels; it returns the pixel's row of the stage, or -1. If planes are not
// `kShifted`, that is the same for all units.
//
// `dump`: 128 bytes for matrices of 16 bits that have no place. `kHalves`: of float32, whose high
// halves a row has before their low ones; then a box has half as many channels.
template <typename T, int kRowBytes, bool kShifted, bool kHalves, typename PlaceOf>
__device__ inline void transpose_box(uint32_t box, uint32_t stage, uint32_t dump, int lane,
                                     const PlaceOf& place) {
  constexpr int kUnits = kRowBytes / 16;  // of a pixel's channels
  constexpr int kChannelBytes = kBoxPixels * static_cast<int>(sizeof(T));
  // What is XORed into where a unit is, in the row that begins there in the stage.
  const auto swizzle_of = [](int begin) { return begin >> 3 & (kRowBytes - 16); };
  if constexpr (sizeof(T) == 2) {
    // A lane gives the address of a channel's 8 pixels, and then of a pixel's 8 channels.
    const uint32_t from = box + lane % 8 * kChannelBytes + (lane / 8 ^ lane / 2 % 4) * 16;
    int row = place(lane, 0);
#pragma unroll
    for (int first = 0; first < kUnits; first += 2) {
      uint32_t m[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ptx::load_transposed_matrices(from + (first + i) * 8 * kChannelBytes, m[i]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (kShifted) row = place(lane, first + i);
        const int begin = row * kRowBytes;
        const uint32_t to =
            row < 0 ? dump + lane % 8 * 16 : stage + begin + ((first + i) * 16 ^ swizzle_of(begin));
        ptx::store_matrices(to, m[i][0], m[i][1], m[i][2], m[i][3]);
      }
    }
  } else {
    // A lane transposes 4 pixels of 4 channels. Eight that load, or store, at once meet different
    // banks. No remainders: the compiler would have to think of negative ones.
    const int own_unit = lane & 3, quad = (own_unit >> 1 ^ lane >> 3) << 1 | (lane >> 2 & 1);
    constexpr int kOwnUnits = kHalves ? kUnits / 2 : kUnits;  // of the box
#pragma unroll
    for (int unit = own_unit; unit < kOwnUnits; unit += 4) {
      uint4 v[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int channel = unit * 4 + c;
        v[c] = ptx::load_shared<uint4>(box + channel * kChannelBytes + (quad ^ channel % 8) * 16);
      }
      const auto store = [&](int i, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
        const int row = place(quad * 4 + i, kShifted ? unit : 0), begin = row * kRowBytes;
        if (row < 0) return;
        const uint32_t to = stage + begin + (unit * 16 ^ swizzle_of(begin));
        if constexpr (kHalves) {
          const Halved x = halve(a), y = halve(b), z = halve(c), w = halve(d);
          ptx::store_shared(to, make_uint4(x.high, y.high, z.high, w.high));
          ptx::store_shared(to ^ (kOwnUnits * 16), make_uint4(x.low, y.low, z.low, w.low));
        } else {
          ptx::store_shared(to, make_uint4(a, b, c, d));
        }
      };
      store(0, v[0].x, v[1].x, v[2].x, v[3].x);
      store(1, v[0].y, v[1].y, v[2].y, v[3].y);
      store(2, v[0].z, v[1].z, v[2].z, v[3].z);
      store(3, v[0].w, v[1].w, v[2].w, v[3].w);
    }
  }
}

// A warp that transposes planes: every kWarps-th box, of the boxes of all stages one after the
// other. It starts the copies of its own boxes, as many ahead as it has slots, and keeps what
// transposing them needs in a queue.
template <typename T, int kShape, bool kStreamK, bool kClustered>
class PlaneLoader {
  static constexpr int kWarps = kTileShapes[kShape].plane_warps();
  static constexpr int kMostUnitBits = 3;  // of units of 16 bytes in the widest row
  static constexpr bool kHalves = kTileShapes[kShape].halves;

 public:
  // `warp`: among those that transpose planes.
  __device__ PlaneLoader(const Params& p, const Memory& memory, int rank, int warp, int lane)
      : p_(p),
        memory_(memory),
        full_(memory.slot_full + warp * kMostPlaneSlots),
        slots_(memory.slots + warp * p.plane_slots * slot_bytes()),
        dump_(ptx::shared_address(memory.dumps) + warp * kDumpBytes),
        rank_(rank),
        warp_(warp),
        lane_(lane) {
    asm volatile("" : "+r"(lane_));  // or it is read from its special register again and again
  }

  // All of a thread block's tiles, of which `first_item` is the first.
  __device__ void load(int first_item) {
    Cursor next(*this, first_item);
    Box queue;  // a box of each lane
    int first = 0, count = 0, room = p_.plane_slots;
    while (true) {
      while (next.is_valid(p_) && room > 0 && count < 32) {
        if (lane_ == (first + count) % 32) queue = next.own.box;
        ++count;
        if (next.own.box.exists()) {
          --room;
          copy(next);
        }
        next.advance(*this);
      }
      if (count == 0) return;
      if (state(queue.of_lane(first))) ++room;
      first = (first + 1) % 32;
      --count;
    }
  }

 private:
  static constexpr int kUnit = 16 / static_cast<int>(sizeof(T));

  // What transposing a box needs. Pixels are counted from column 0 of an aligned box; planes begin
  // up to kUnit - 1 pixels behind 16 bytes, and shift what a box has of them by as many.
  struct Box {
    // Those that are positions of the stage: [begin, end); pixel 0's; whether there are any; and
    // stages from the one of the warp's box before.
    uint32_t pixels;
    uint32_t outside;  // positions outside the image, to be cleared: the first, how many

    static constexpr int kRowBits = 13, kStagesShift = 29;
    static constexpr uint32_t kExists = 1u << 28;
    static_assert(kWarps < 8);

    __device__ void set(int begin, int end, int row, int shift) {
      pixels = (begin + kUnit) | (end + kUnit) << 6 | (row + kBoxPixels) << 12 |
               shift << (12 + kRowBits) | kExists;
    }
    __device__ bool exists() const { return (pixels & kExists) != 0; }
    __device__ int stages() const { return static_cast<int>(pixels >> kStagesShift); }
    __device__ int begin() const { return static_cast<int>(pixels & 63) - kUnit; }
    __device__ int end() const { return static_cast<int>(pixels >> 6 & 63) - kUnit; }
    __device__ int row() const {
      return static_cast<int>(pixels >> 12 & ((1 << kRowBits) - 1)) - kBoxPixels;
    }
    // Shift of the row in a plane that begins at 16 bytes.
    __device__ int shift() const {
      return static_cast<int>(pixels >> (12 + kRowBits) & (kUnit - 1));
    }
    __device__ Box of_lane(int lane) const {
      return {__shfl_sync(~0u, pixels, lane), __shfl_sync(~0u, outside, lane)};
    }
  };

  // A box of a chunk of a tile. The boxes of a tile's chunks are alike: a lane finds one, and each
  // warp asks for its own ones.
  struct Cursor {
    TileScheduler<kStreamK> scheduler;
    int chunk, box;
    int last;       // of a tile whose steps blocks share, the end of the block's chunks
    int first;      // position of the tile's stages
    int first_row;  // position where the row begins that it lies in,
    int passed;     // and boxes of that row in front of it
    int c;          // the group's first channel
    int found = 0;  // which box the first lane has found; the next lane has the next one
    struct Found {
      int n;      // the box's image
      int pixel;  // of a plane, the box's first if it were aligned
      Box box;
    };
    Found of_lane, own;

    __device__ Cursor(const PlaneLoader& loader, int first_item)
        : scheduler(loader.p_, first_item), chunk(0), box(loader.warp_) {
      start(loader);
      find_next(loader);
    }
    __device__ bool is_valid(const Params& p) const { return scheduler.is_valid(p); }
    __device__ void advance(const PlaneLoader& loader) {
      box += kWarps;
      find_next(loader);
    }
    // Goes on to the stage that has the box.
    __device__ void find_next(const PlaneLoader& loader) {
      const Params& p = loader.p_;
      int stages = 0;
      for (; box >= p.plane_boxes && is_valid(p); box -= p.plane_boxes, ++stages) {
        if (++chunk < (kStreamK || kClustered ? last : p.chunks)) continue;
        scheduler.advance(p);
        start(loader);
      }
      if (!is_valid(p)) return;
      constexpr int kLanes = 32;
      if (box / kLanes * kLanes != found) {
        found = box / kLanes * kLanes;
        of_lane = find(loader, found + loader.lane_);
      }
      const int lane = box - found;
      own.n = __shfl_sync(~0u, of_lane.n, lane);
      own.pixel = __shfl_sync(~0u, of_lane.pixel, lane);
      own.box = of_lane.box.of_lane(lane);
      own.box.pixels |= static_cast<uint32_t>(stages) << Box::kStagesShift;
    }
    // The tile, or the next one that any tap meets.
    __device__ void start(const PlaneLoader& loader) {
      constexpr TileShape kTile = kTileShapes[kShape];
      const Params& p = loader.p_;
      for (; is_valid(p); scheduler.advance(p)) {
        Work work = scheduler.current(p, kTile, Loader::kHalo);
        if (kClustered) work.split(loader.rank_, p.splits);
        if (work.taps == 0) continue;
        chunk = work.first;
        if (kStreamK || kClustered) last = work.last;
        first = work.position - p.halo + p.image;  // one image ahead, so that none is negative
        int32_t rows = first;
        const int column = p.by_pitch.split(rows);
        first_row = first - column;
        passed = min(column / kBoxPixels, p.by_row_boxes.divisor() - 1);
        c = work.c;
        found = -1;
        return;
      }
    }
    __device__ Found find(const PlaneLoader& loader, int number) const {
      const Params& p = loader.p_;
      const int pitch = p.by_pitch.divisor();
      int32_t own_row = number + passed;
      const int own_box = p.by_row_boxes.split(own_row);
      const int begin = first_row + own_row * pitch;  // the row's first position
      const Place place(p, begin);
      Found of{};
      of.n = place.n - 1;
      const bool in_image = place.row < p.H && of.n >= 0 && of.n < p.N;
      const int origin = place.first_column - p.plane_column;  // the row's column of the input
      const int passed_columns = own_box * kBoxPixels;
      const int column = origin + passed_columns;
      of.pixel = place.row * p.plane_row + column;
      const int at = begin + passed_columns - first;  // of the stage
      // No maxima of negated numbers: there ptxas of CUDA 13.0 loses a parameter's sign.
      const int from = -min(min(at, column), min(passed_columns, p.most_shift));
      const int to =
          min(min(p.copy_rows - at, kBoxPixels), min(p.W - column, pitch - passed_columns));
      if (in_image && from < to) of.box.set(from, to, at, of.pixel & (kUnit - 1));
      // The row's columns from the box's on, up to the next box's, that are outside the image.
      const bool is_last = own_box == p.by_row_boxes.divisor() - 1;
      const int left = pitch - passed_columns;
      int out = 0, out_end = is_last ? left : min(left, kBoxPixels);
      if (in_image && origin < 0) out_end = min(out_end, -column);
      if (in_image && origin >= 0) out = max(out, p.W - column);
      out = max(at + out, 0);
      const int count = min(at + out_end, p.copy_rows) - out;
      of.box.outside = count > 0 ? out | count << 16 : 0;
      return of;
    }
  };

  __device__ int slot_bytes() const { return kBoxPixels * p_.row_bytes >> (kHalves ? 1 : 0); }

  // A copy for each residue of channels, by one lane: others would take turns, and longer.
  __device__ void copy(const Cursor& at) {
    ptx::Barrier* full = full_ + copied_.stage;
    if (lane_ == 0) {
      ptx::arrive_and_expect_tx(full, slot_bytes());
      char* const slot = slots_ + copied_.stage * slot_bytes();
      const int bits = p_.residue_bits;
      const int c = (at.c + at.chunk * p_.row_channels) >> (bits + (kHalves ? 1 : 0));
#pragma unroll 1
      for (int i = 0; i >> bits == 0; ++i) {
        const int first = at.own.pixel + shift_of(i);
        ptx::tma_load(slot + i * (slot_bytes() >> bits), p_.planes + i, full, first & -kUnit, c,
                      at.own.n);
      }
    }
    __syncwarp();
    copied_.advance(p_.plane_slots);
  }

  // Where in 16 bytes planes begin of the channels of that residue.
  __device__ int shift_of(int residue) const {
    return (p_.plane_start + residue * p_.plane_step) & (kUnit - 1);
  }

  // Returns whether a slot is free again.
  __device__ bool state(const Box& own) {
    x_.advance(own.stages(), p_.by_x_stages);
    ptx::wait(memory_.x_empty + x_.stage, x_.parity ^ 1);
    const uint32_t stage = ptx::shared_address(memory_.pixels) + x_.stage * p_.x_bytes;
    if (own.exists()) {
      ptx::wait(full_ + transposed_.stage, transposed_.parity);
      const uint32_t box = ptx::shared_address(slots_) + transposed_.stage * slot_bytes();
      const int begin = own.begin(), end = own.end(), row = own.row(), row_shift = own.shift();
      // Residues follow each other in a stage, each with as many units of channels.
      const int unit_bits = kMostUnitBits - p_.residue_bits;
      const auto place = [&](int pixel, int unit) {
        const int shift = (row_shift + shift_of(unit >> unit_bits)) & (kUnit - 1);
        pixel -= shift;
        return pixel >= begin && pixel < end ? row + pixel : -1;
      };
      if (!kHalves && p_.residue_bits > 0) {
        transpose_box<T, kMostRowBytes, !kHalves, kHalves>(box, stage, dump_, lane_, place);
      } else if (p_.row_bytes == kMostRowBytes) {
        transpose_box<T, kMostRowBytes, false, kHalves>(box, stage, dump_, lane_, place);
      } else if (kHalves || p_.row_bytes == kMostRowBytes / 2) {
        transpose_box<T, kMostRowBytes / 2, false, kHalves>(box, stage, dump_, lane_, place);
      } else {
        transpose_box<T, kLeastRowBytes, false, kHalves>(box, stage, dump_, lane_, place);
      }
      transposed_.advance(p_.plane_slots);
    }
    if (own.outside != 0) clear(own, stage);
    ptx::fence_shared_writes();
    __syncwarp();
    if (lane_ == 0) ptx::arrive(memory_.x_full + x_.stage);
    return own.exists();
  }

  // Clears positions outside the image.
  __device__ void clear(const Box& own, uint32_t stage) const {
    const int units = p_.row_bytes / 16, count = static_cast<int>(own.outside >> 16) * units;
    const uint32_t to = stage + (own.outside & 0xFFFF) * p_.row_bytes;
    for (int i = lane_; i < count; i += 32) {
      ptx::store_shared(to + i * 16, make_uint4(0, 0, 0, 0));
    }
  }

  const Params& p_;
  const Memory& memory_;
  ptx::Barrier* full_;
  char* slots_;
  uint32_t dump_;
  int rank_, warp_, lane_;
  ptx::PipelineState copied_, transposed_, x_;
};

}  // namespace customconv::implicit_gemm::sm90
