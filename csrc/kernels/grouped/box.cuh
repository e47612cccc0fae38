// Where things are in boxes: rows of 128 bytes of a pixel's channels with the 128-byte swizzle,
// which repeats after eight rows. Channels of more bytes are in several boxes, one after the other.
#pragma once

#include <cstdint>

#include "kernels/grouped/input.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::grouped {

// Bits of an address, where rows have so many bytes: none but of 64 and 128.
__host__ __device__ constexpr uint32_t swizzled_bits(int row_bytes) {
  const bool swizzled = row_bytes == kBoxRowBytes || row_bytes == kBoxRowBytes / 2;
  return swizzled ? static_cast<uint32_t>(row_bytes - kPieceBytes) : 0;
}
constexpr uint32_t kSwizzled = swizzled_bits(kBoxRowBytes);

// An address in rows that lie as if they were not swizzled.
__device__ inline uint32_t swizzle(uint32_t address, uint32_t bits = kSwizzled) {
  return address ^ (address >> 3 & bits);
}

// The row of a box that has a position's first pixel.
__device__ inline int box_row(const TileParams& p, int position) {
  int32_t image = position;
  const int column = p.columns.split(image), row = p.rows.split(image);
  const int h = image * p.kept_rows.divisor() + row * p.h.by_class_step.quotient(p.h.step);
  return h * p.pitch.divisor() + column;
}
// How many rows further on those are of a tap that reads so far from the position's pixel.
__device__ inline int rows_between(const TileParams& p, int offset_h, int offset_w) {
  int32_t column = offset_w - p.w.first;
  const int klass = p.w.by_class_step.quotient(p.w.by_step.split(column));
  return p.h.by_class_step.quotient(offset_h - p.h.first) * p.pitch.divisor() +
         klass * p.class_slots + column;
}
// Where a row's piece of channels is, seen from the row in the first box.
__device__ inline int piece_place(int piece, int box_bytes) {
  constexpr int kRowPieces = kBoxRowBytes / kPieceBytes;
  return piece / kRowPieces * box_bytes + piece % kRowPieces * kPieceBytes;
}

// Threads that bring boxes initialise the barriers of the stages and begin at once; those that
// multiply them wait for it, at a barrier of both.
constexpr int kStagesReady = 3;
__device__ inline void init_stages(ptx::Barrier* full, ptx::Barrier* empty, bool is_first,
                                   int loaders, int arrivals, int warps) {
  if (is_first) {
    for (int i = 0; i < kMostStages; ++i) {
      ptx::init_barrier(&full[i], arrivals);
      ptx::init_barrier(&empty[i], warps);
    }
    ptx::fence_barrier_init();
  }
  __syncwarp();
  ptx::named_barrier_arrive(kStagesReady, warps * 32 + loaders);
}
__device__ inline void await_stages(int loaders, int warps) {
  ptx::named_barrier_sync(kStagesReady, warps * 32 + loaders);
}

// Brings the box at an image's pixel, from a channel on, of so many boxes of channels. One thread.
template <typename T>
__device__ inline void bring_boxes(const CUtensorMap& map, ptx::Barrier* full, int channel, int w,
                                   int h, int n, int boxes, int box_bytes, char* to) {
  constexpr int kRowChannels = kBoxRowBytes / static_cast<int>(sizeof(T));
#pragma unroll 1
  for (int box = 0; box < boxes; ++box) {
    ptx::tma_load(to + box * box_bytes, &map, full, channel + box * kRowChannels, w, h, n);
  }
}

// Brings what the tile reads that begins at `at`.
template <typename T>
__device__ inline void bring_tile(const TileParams& p, const CUtensorMap& map, ptx::Barrier* full,
                                  int channel, const Place& at, int boxes, int box_bytes, char* to,
                                  int row_bytes = kBoxRowBytes) {
  const int w = at.w * p.w.step + p.w.first, h = at.h * p.h.step + p.h.first;
#pragma unroll 1
  for (int klass = 0; klass < p.classes; ++klass) {
    bring_boxes<T>(map, full, channel, w + klass * p.w.class_step, h, at.n, boxes, box_bytes,
                   to + klass * p.class_slots * row_bytes);
  }
}

}  // namespace customconv::grouped
