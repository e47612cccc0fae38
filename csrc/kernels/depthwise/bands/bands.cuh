// Rows of a filter as matrices. A row w of taps, applied to a row x of an image, gives eight
// neighbouring outputs y = x T, where T[j][i] = w[j - i]: a band. Pieces of the output, each with
// its own place in the image, are the rows of the instruction; the same band multiplies them all.
#pragma once

#include "kernels/depthwise/bands/geometry.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::depthwise::bands {

// Loads the blocks of a section of one row of sixteen pieces, as operands. A lane gives the address
// of the row of piece lane % 16, in the first block or the second.
template <int kBlocks>
__device__ inline void load_row(uint32_t address, uint32_t (&row)[2 * kBlocks]) {
#pragma unroll
  for (int b = 0; b < kBlocks; b += 2) {
    if (b + 1 < kBlocks) {
      uint32_t two[4];
      ptx::load_matrices(address + b * kBlockBytes, two);
#pragma unroll
      for (int i = 0; i < 4; ++i) row[2 * b + i] = two[i];
    } else {
      uint32_t one[2];
      ptx::load_matrices(address + b * kBlockBytes, one);
      row[2 * b] = one[0];
      row[2 * b + 1] = one[1];
    }
  }
}

template <int kBlocks>
__device__ inline void load_band(uint32_t address, uint32_t (&band)[kBlocks]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    band[b] = ptx::load_shared<uint32_t>(address + b * kBlockBytes);
  }
}

// Where in a row of the filter a lane's part of the first block is: taps lane % 4 * 2 - lane / 4
// and the next. The row lies there with a block of zeros in front, and again an element earlier.
__device__ inline int band_place(int lane, int filter_pitch) {
  const int first = lane % 4 * 2 - lane / 4 + kPieceColumns;
  return lane / 4 % 2 == 0 ? first * 2 : filter_pitch / 2 + (first - 1) * 2;
}

// The rows of an image that a lane meets, one after the other; those that do not exist are all the
// same zeros.
struct RowWalk {
  uint32_t address, zeros;
  int pitch;
  int row, rows;  // the next, and how many exist

  __device__ uint32_t next() {
    const uint32_t at = static_cast<unsigned>(row) < static_cast<unsigned>(rows) ? address : zeros;
    address += pitch;
    ++row;
    return at;
  }
};

// Adds a row of the filter, two blocks of its band at a time. `first`: where the first of the rows
// is that the rows of a piece meet.
template <typename T, int kBlocks>
__device__ inline void add_pairs(const uint32_t (&rows)[kPieceRows][2 * kBlocks], int first,
                                 const uint32_t (&band)[kBlocks], float (&sum)[kPieceRows][4]) {
#pragma unroll
  for (int b = 0; b + 1 < kBlocks; b += 2) {
#pragma unroll
    for (int t = 0; t < kPieceRows; ++t) {
      const uint32_t* row = rows[(first + t) % kPieceRows] + 2 * b;
      const uint32_t two[4] = {row[0], row[1], row[2], row[3]};
      ptx::multiply_add<T>(sum[t], two, band[b], band[b + 1]);
    }
  }
}

// Adds a section of the filter. Rows of the image that the rows of a piece meet are in registers; a
// row of the filter further on, one of them gives way to the next. An instruction over one block
// takes as long as over two: an odd last block waits for that of the filter's next row. Then `taps`
// are even.
template <typename T, int kBlocks>
__device__ inline void add_section(RowWalk walk, uint32_t filter, int filter_pitch, int taps,
                                   float (&sum)[kPieceRows][4]) {
  constexpr bool kOdd = kBlocks % 2 == 1;
  constexpr int kLast = kBlocks - 1;
  uint32_t rows[kPieceRows][2 * kBlocks], band[kBlocks];
#pragma unroll
  for (auto& row : rows) load_row<kBlocks>(walk.next(), row);
  load_band<kBlocks>(filter, band);
  const auto load_next = [&](uint32_t (&row)[2 * kBlocks]) {
    load_row<kBlocks>(walk.next(), row);
    filter += filter_pitch;
    load_band<kBlocks>(filter, band);
  };
  for (int r = 0;;) {
#pragma unroll
    for (int step = 0; step < kPieceRows; ++step) {
      const int first = 2 * step % kPieceRows, second = (first + 1) % kPieceRows;
      add_pairs<T, kBlocks>(rows, first, band, sum);
      if (++r == taps) return;
      const uint32_t waiting[3] = {rows[first][2 * kLast], rows[first][2 * kLast + 1], band[kLast]};
      load_next(rows[first]);
      add_pairs<T, kBlocks>(rows, second, band, sum);
#pragma unroll
      for (int t = 0; kOdd && t < kPieceRows; ++t) {
        const uint32_t* near = t == 0 ? waiting : rows[(first + t) % kPieceRows] + 2 * kLast;
        const uint32_t* far = rows[(second + t) % kPieceRows] + 2 * kLast;
        const uint32_t both[4] = {near[0], near[1], far[0], far[1]};
        ptx::multiply_add<T>(sum[t], both, waiting[2], band[kLast]);
      }
      if (++r == taps) return;
      load_next(rows[second]);
    }
  }
}

}  // namespace customconv::depthwise::bands
