// Where things are in boxes: rows of 128 bytes of a pixel's channels with the 128-byte swizzle,
// which repeats after eight rows. Channels of more bytes are in several boxes, one after the other.
#pragma once

#include <cstdint>

#include "kernels/grouped/input.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::grouped {

constexpr uint32_t kSwizzled = kBoxRowBytes - kPieceBytes;  // bits of an address

// An address in rows that lie as if they were not swizzled.
__device__ inline uint32_t swizzle(uint32_t address, uint32_t bits = kSwizzled) {
  return address ^ (address >> 3 & bits);
}

// The row of a box that has a position's first pixel.
__device__ inline int box_row(const TileParams& p, const Spot& spot) {
  const int h = spot.n() * p.kept_rows.divisor() + spot.h * (p.h.step / p.h.class_step);
  return h * p.pitch.divisor() + spot.w();
}
// How many rows further on those are of a tap that reads so far from the position's pixel.
__device__ inline int rows_between(const TileParams& p, int offset_h, int offset_w) {
  const int from_first = offset_w - p.w.first;
  return (offset_h - p.h.first) / p.h.class_step * p.pitch.divisor() +
         from_first % p.w.step / p.w.class_step * p.class_slots + from_first / p.w.step;
}
// Where a row's piece of channels is, seen from the row in the first box.
__device__ inline int piece_place(int piece, int box_bytes) {
  constexpr int kRowPieces = kBoxRowBytes / kPieceBytes;
  return piece / kRowPieces * box_bytes + piece % kRowPieces * kPieceBytes;
}

// Brings the box at an image's pixel, from a channel on, of so many boxes of channels. One thread.
template <typename T>
__device__ inline void bring_boxes(const CUtensorMap& map, ptx::Barrier* full, int channel, int w,
                                   int h, int n, int boxes, int box_bytes, char* to) {
  constexpr int kRowChannels = kBoxRowBytes / static_cast<int>(sizeof(T));
#pragma unroll 1
  for (int box = 0; box < boxes; ++box) {
    ptx::copy_box(to + box * box_bytes, &map, full, channel + box * kRowChannels, w, h, n);
  }
}

// Brings what the tile reads that begins at `at`.
template <typename T>
__device__ inline void bring_tile(const TileParams& p, const CUtensorMap& map, ptx::Barrier* full,
                                  int channel, const Place& at, int boxes, int box_bytes,
                                  char* to) {
  const int w = at.w * p.w.step + p.w.first, h = at.h * p.h.step + p.h.first;
#pragma unroll 1
  for (int klass = 0; klass < p.classes; ++klass) {
    bring_boxes<T>(map, full, channel, w + klass * p.w.class_step, h, at.n, boxes, box_bytes,
                   to + klass * p.class_slots * kBoxRowBytes);
  }
}

// The stage that comes next, and the parity of its round.
struct Turn {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance(int stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

}  // namespace customconv::grouped
