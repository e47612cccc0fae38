// The planes loader: a stage of the halo loader's positions, from channels-first input. The copy
// engine brings boxes of planes as they are, and warps turn them, so that each pixel's channels lie
// side by side.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/work.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm::sm90 {

// The first column of a box is a multiple of so many: of 16 bytes, as the copy engine demands.
template <typename T>
constexpr int kBoxUnit = 16 / static_cast<int>(sizeof(T));

// A box has kBoxPixels pixels of a row, with all channels of a stage: in shared memory a row for
// each channel, with the swizzle of its width. Calls `place` for a pixel of the box; it returns the
// pixel's row of the stage, or -1.
//
// `dump`: 128 bytes for what has no place.
template <typename T, int kRowBytes, typename PlaceOf>
__device__ inline void turn_box(uint32_t box, uint32_t stage, uint32_t dump, int lane,
                                const PlaceOf& place) {
  constexpr int kUnits = kRowBytes / 16;  // of a pixel's channels
  constexpr int kChannelBytes = kBoxPixels * static_cast<int>(sizeof(T));
  // What is XORed into where a unit is, in the row that begins there in the stage.
  const auto swizzle_of = [](int begin) { return begin >> 3 & (kRowBytes - 16); };
  if constexpr (sizeof(T) == 2) {
    // A lane gives the address of a channel's 8 pixels, and then of a pixel's 8 channels.
    const uint32_t from = box + lane % 8 * kChannelBytes + (lane / 8 ^ lane / 2 % 4) * 16;
    const int row = place(lane);
    const uint32_t to = row < 0 ? dump + lane % 8 * 16 : stage + row * kRowBytes;
    const int swizzle = row < 0 ? 0 : swizzle_of(row * kRowBytes);
    const int unit_mask = row < 0 ? 0 : kRowBytes - 16;  // a dump has a single unit
#pragma unroll
    for (int first = 0; first < kUnits; first += 2) {
      uint32_t m[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ptx::load_transposed_matrices(from + (first + i) * 8 * kChannelBytes, m[i]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int unit = (first + i) * 16 & unit_mask;
        ptx::store_matrices(to + (unit ^ swizzle), m[i][0], m[i][1], m[i][2], m[i][3]);
      }
    }
  } else {
    // A lane turns 4 pixels of 4 channels. Eight that load at once meet different banks.
    const int quad = lane % 4 + lane / 8 % 2 * 4, own_unit = lane / 4 % 2 + lane / 16 * 2;
#pragma unroll
    for (int unit = own_unit; unit < kUnits; unit += 4) {
      uint32_t v[4][4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int channel = unit * 4 + c;
        const uint4 bits =
            ptx::load_shared<uint4>(box + channel * kChannelBytes + (quad ^ channel % 8) * 16);
        v[c][0] = bits.x;
        v[c][1] = bits.y;
        v[c][2] = bits.z;
        v[c][3] = bits.w;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = place(quad * 4 + i);
        if (row < 0) continue;
        const int begin = row * kRowBytes;
        ptx::store_shared(stage + begin + (unit * 16 ^ swizzle_of(begin)),
                          make_uint4(v[0][i], v[1][i], v[2][i], v[3][i]));
      }
    }
  }
}

// A warp that turns planes: every kWarps-th box of each stage. It starts the copies of its own
// boxes, as many ahead as it has slots.
template <typename T, int kShape>
class PlaneLoader {
  static constexpr int kWarps = kTileShapes[kShape].plane_warps();

 public:
  // `warp`: among those that turn planes.
  __device__ PlaneLoader(const Params& p, const Memory& memory, int warp, int lane)
      : p_(p),
        memory_(memory),
        full_(memory.slot_full + warp * kMostPlaneSlots),
        slots_(memory.slots + warp * p.plane_slots * slot_bytes()),
        dump_(ptx::shared_address(memory.dumps) + warp * kDumpBytes),
        warp_(warp),
        lane_(lane) {
    asm volatile("" : "+r"(lane_));  // or it is read from its special register again and again
  }

  // All of a thread block's tiles, of which `item` is the first.
  __device__ void load(int item) {
    Cursor next(*this, item), ahead = next;
    int room = p_.plane_slots;
    while (next.item < p_.items) {
      while (ahead.item < p_.items && room > 0) {
        if (ahead.exists) {
          --room;
          copy(ahead);
        }
        ahead.advance(*this);
      }
      if (turn(next)) ++room;
      next.advance(*this);
    }
  }

 private:
  // A box of a chunk of a tile.
  struct Cursor {
    int item, chunk, box;
    int first;       // position of the tile's stages
    int first_row;   // position where the row begins that it lies in,
    int passed;      // and boxes of that row in front of it
    int c;           // the group's first channel
    bool exists;     // whether any of the stage's positions is in the box
    bool last;       // of its row
    int begin, row;  // the row's first position; which of the input's rows it is
    int n;
    int column;  // the box's first, of the input
    int lead;    // columns of the box in front of the row's first position

    __device__ Cursor(const PlaneLoader& loader, int item)
        : item(item), chunk(0), box(loader.warp_) {
      start(loader.p_);
    }
    __device__ void advance(const PlaneLoader& loader) {
      const Params& p = loader.p_;
      box += kWarps;
      if (box < p.plane_boxes) return find(p);
      box = loader.warp_;
      if (++chunk < p.chunks) return find(p);
      chunk = 0;
      item += gridDim.x;
      start(p);
    }
    // The tile, or the next one that any tap meets.
    __device__ void start(const Params& p) {
      constexpr TileShape kTile = kTileShapes[kShape];
      for (; item < p.items; item += gridDim.x) {
        const Work work(p, item, 0, kTile, Loader::kHalo);
        if (work.taps == 0) continue;
        first = work.position - p.halo + p.image;  // one image ahead, so that none is negative
        int32_t rows = first;
        const int column = p.by_pitch.split(rows);
        first_row = first - column;
        const int lead = -p.plane_column & (kBoxUnit<T> - 1);
        passed = min((column + lead) / kBoxPixels, p.by_row_boxes.divisor() - 1);
        c = work.c;
        return find(p);
      }
    }
    __device__ void find(const Params& p) {
      int32_t own_row = box + passed;
      const int own_box = p.by_row_boxes.split(own_row);
      begin = first_row + own_row * p.by_pitch.divisor();
      const Place place(p, begin);
      row = place.row;
      n = place.n - 1;
      const int origin = place.first_column - p.plane_column;  // of the row's first position
      column = (origin & -kBoxUnit<T>)+own_box * kBoxPixels;
      lead = origin - column;
      last = own_box == p.by_row_boxes.divisor() - 1;
      const int from = begin - lead;  // the position of the box's first pixel
      exists = from + kBoxPixels > first && from < first + p.copy_rows;
    }
  };

  __device__ int slot_bytes() const { return kBoxPixels * p_.row_bytes; }

  __device__ void copy(const Cursor& at) {
    if (lane_ == 0) {
      ptx::Barrier* full = full_ + copied_.stage;
      ptx::arrive_expecting(full, slot_bytes());
      ptx::copy_box(slots_ + copied_.stage * slot_bytes(), &p_.x, full, at.column, at.row,
                    at.c + at.chunk * p_.row_channels, at.n);
    }
    copied_.advance(p_.plane_slots);
  }

  // Returns whether a slot is free again.
  __device__ bool turn(const Cursor& at) {
    if (at.box == warp_) ptx::wait(memory_.x_empty + x_.stage, x_.parity ^ 1);
    const uint32_t stage = ptx::shared_address(memory_.pixels) + x_.stage * p_.x_bytes;
    if (at.exists) {
      ptx::wait(full_ + turned_.stage, turned_.parity);
      const uint32_t box = ptx::shared_address(slots_) + turned_.stage * slot_bytes();
      const auto place = [&](int pixel) {
        const int column = pixel - at.lead, row = at.begin - at.first + column;
        const bool own = column >= 0 && column < p_.by_pitch.divisor();
        return own && row >= 0 && row < p_.copy_rows ? row : -1;
      };
      if (p_.row_bytes == kMostRowBytes) {
        turn_box<T, kMostRowBytes>(box, stage, dump_, lane_, place);
      } else if (p_.row_bytes == kMostRowBytes / 2) {
        turn_box<T, kMostRowBytes / 2>(box, stage, dump_, lane_, place);
      } else {
        turn_box<T, kLeastRowBytes>(box, stage, dump_, lane_, place);
      }
      turned_.advance(p_.plane_slots);
    }
    if (at.last) clear_behind(at, stage);
    const bool done = at.box + kWarps >= p_.plane_boxes;
    if (done) ptx::fence_shared_writes();
    __syncwarp();
    if (done) {
      if (lane_ == 0) ptx::arrive(memory_.x_full + x_.stage);
      x_.advance(p_.x_stages);
    }
    return at.exists;
  }

  // Clears the row's positions behind its last box: they are padding.
  __device__ void clear_behind(const Cursor& at, uint32_t stage) const {
    const int column = kBoxPixels - at.lead, units = p_.row_bytes / 16;
    const int row = at.begin - at.first + column;
    for (int i = lane_; i < (p_.by_pitch.divisor() - column) * units; i += 32) {
      const int own = row * units + i;
      if (own >= 0 && own < p_.copy_rows * units) {
        ptx::store_shared(stage + own * 16, make_uint4(0, 0, 0, 0));
      }
    }
  }

  const Params& p_;
  const Memory& memory_;
  ptx::Barrier* full_;
  char* slots_;
  uint32_t dump_;
  int warp_, lane_;
  ptx::Turn copied_, turned_, x_;
};

}  // namespace customconv::implicit_gemm::sm90
