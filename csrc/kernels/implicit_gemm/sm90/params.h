// What the main loop's kernels are told.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/common/divide.cuh"
#include "kernels/epilogue.h"
#include "kernels/implicit_gemm/sm90/tile.h"

namespace customconv::implicit_gemm::sm90 {

// What tiles of halves are summed of, element by element (../halves.cuh): pixels, which are packed
// as halves or as they were, and packed weights.
struct Halves {
  const float *pixels, *weights;
  int64_t n, c, d, h, w;  // strides of pixels; packed ones have none of channels
  int64_t weight_row;     // elements
  int C, D, H, W, taps, bits;
  bool gradient;  // of the input: there are no taps outside the image
};

// Where a term of an output pixel is: bytes from the one that the pixel's first tap meets in
// channel 0, and the tap: its row and, from bit 8 on, its column; or kNoTap.
struct Term {
  int32_t offset;
  uint32_t tap;
};
constexpr uint32_t kNoTap = 1 << 16;
static_assert(sizeof(Term) == kTermBytes);

// Input whose pixels are gathered: the convolution before its taps became channels.
struct Gather {
  const void* x;
  int64_t n;  // strides, in elements
  int c, h, w;
  int tap_h, tap_w;  // from one tap to the next
  int H, W, R, S;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int terms, padded_terms;
  Divider<int32_t> by_C, by_S;
};

// Rows of memory that 1x1 convolutions multiply: what output pixels, or output channels, read.
struct MatrixRows {
  const char* data;  // null where they are not rows
  int64_t stride;    // bytes
  int count, bytes;
};

// What blocks leave of tiles that they share (stream_k.cuh): each the sums of one tile, and a flag
// for each warpgroup, which then is `token`.
struct Partials {
  float* sums;
  uint64_t* flags;
  uint64_t token;
};

// Rows of a volume are those of its slices, one slice behind the other: of what is computed, and of
// taps. Images have a single slice.
struct Depth {
  Divider<int32_t> by_rows;  // of a slice of what is computed
  int filter_rows;           // of a slice of taps
  int stride, pad, dilation;
  bool is_deep;
  // Whether tiles leave out slices of taps that meet no slice of the input, of so many slices both.
  bool leaves_out;
  int taps, slices;
};

struct Params {
  CUtensorMap x, w, y, residual;
  CUtensorMap planes[kMostResidues];  // channels of each residue

  // Work: tiles of the same phase follow each other; of those, tiles of the same positions.
  int items, splits, phases;
  int shared_tiles;                // the first so many, whose steps are shared by blocks:
  int block_steps, longer_blocks;  // each has so many, and the first ones have one more
  Divider<int32_t> by_steps;       // of a shared tile
  Partials partials;
  Divider<int32_t> by_tiles_k, by_tiles_m;
  Divider<int32_t> by_group_tiles;  // tiles of channels of a group of the convolution
  int group_C, group_K;
  Phase phase[kMostPhases];

  // Positions.
  Divider<int32_t> by_pitch, by_period, by_strips;
  int strip_columns;  // of the output, of a strip
  int image, halo;    // an image's positions, of all its strips; a tile's halo

  // Stages.
  int copies, copy_rows, copy_positions;
  bool copies_strips;
  int row_bytes, row_channels, chunks;
  bool halves_pixels, keeps_weights;
  int pixel_row_bytes, low_bytes;  // see Tile
  int x_bytes, w_bytes, x_stages, w_stages;
  int w_copy_channels, w_copy_bytes;  // that a copy of weights brings
  Divider<int32_t> by_x_stages, by_w_stages;
  // Planes that warps transpose: boxes of a stage, or 0, and of a row; a warp's slots; and how far
  // in front of a strip's first column of the output its first position is.
  int plane_boxes, plane_slots, plane_column;
  Divider<int32_t> by_row_boxes;
  // Planes: size of an image, pixels from one row to the next, and where in 16 bytes planes
  // begin of channels of the same residue: the first, from one to the next, and a box's shift at
  // most.
  int H, W, plane_row, plane_start, plane_step, residue_bits, most_shift;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  Depth depth;
  // Halo: positions of a stage from one row to the next, bytes from one tap to the next, and from
  // eight positions of the tile to the next eight.
  int stage_pitch, tap_h, tap_w;
  uint32_t group_bytes;

  // Output.
  void* out;
  int64_t out_n, out_p, out_q, out_k;  // strides
  int N, K;
  bool vectors;      // 16 bytes may be stored at once
  bool pixel_pairs;  // of planes, pairs of positions are pairs of aligned pixels
  Epilogue epilogue;
  Halves halves;
  MatrixRows pixel_rows, weight_rows;
  Gather gather;
};

}  // namespace customconv::implicit_gemm::sm90
