// How a convolution is cut into matrix products; the planner chooses, the kernel follows.
//
// A block of threads computes a tile: some output pixels by some output channels. Of the input it
// keeps a plane at a time in shared memory: the pixels that some taps read, 128 bytes of channels
// each, with their halo. A tap reads its pixels where they lie, so a plane is loaded once for all
// its taps. Taps share a plane where they are whole strides apart: with stride 1 and dilation 1 all
// of them do; where the halo is too large, each has a plane of its own.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace customconv::implicit_gemm {

constexpr int kRowBytes = 128;    // of a pixel or an output channel in shared memory
constexpr int kBlockPixels = 64;  // rows of one matrix instruction
constexpr int kMostBlocks = 4;    // of a tile
constexpr int kWarpgroups = 2;    // that multiply
constexpr int kThreads = 128 * (1 + kWarpgroups);
constexpr int kMostStages = 8;
constexpr int kSlabBytes = kBlockPixels * kRowBytes;  // of output: a block by 128 bytes of channels
constexpr int kMostSlabs = 4;                         // that a warpgroup stores at a time

// A kernel: output channels of a tile, and blocks of pixels a warpgroup.
struct Kernel {
  const char* name;
  int columns;
  int blocks;
};

inline constexpr Kernel kKernels[] = {
    {"256 pixels x 128", 128, 2},  // the most products for the bytes loaded
    {"256 pixels x 64", 64, 2},    // few output channels
    {"256 pixels x 32", 32, 2},    // fewer
    {"128 pixels x 128", 128, 1},  // small images
    {"128 pixels x 64", 64, 1},    // and few tiles
};
inline constexpr int kKernelCount = sizeof(kKernels) / sizeof(kKernels[0]);

// Along one dimension of the image.
struct Axis {
  int planes;  // tap i belongs to plane i % planes
  int step;    // in a plane, pixels from one tap to the next
  int reach;   // pixels from the first tap of a plane to its last, at most
};

struct Tile {
  int rows, columns, images;  // of output pixels
  bool lines;                 // blocks are runs of 64 pixels of the plane; else squares of 8 x 8
  Axis h, w;
  int pitch;       // pixels in a row of a plane
  int plane_rows;  // rows of an image in a plane
  int kernel;      // of kKernels
  int x_stages, w_stages;
  int splits;
  bool boxed_out;  // the output is stored in boxes by the copy engine
  bool gathered;   // the input is gathered by threads; else copied in boxes
  bool flat;       // channels and taps are one dimension: few channels

  int64_t tiles_k, tiles_q, tiles_p, tiles_n;
  int chunks;  // of channels: 128 bytes each

  int blocks() const { return kKernels[kernel].blocks * kWarpgroups; }
  int64_t tiles() const { return tiles_k * tiles_q * tiles_p * tiles_n; }
  int steps() const { return chunks * h.planes * w.planes; }
  int plane_bytes() const { return (images * plane_rows * pitch * kRowBytes + 1023) / 1024 * 1024; }
  // Slabs that a warpgroup's sums fill, of elements of this size.
  int slabs(int64_t size) const {
    const int all =
        kKernels[kernel].blocks * kKernels[kernel].columns * static_cast<int>(size) / kRowBytes;
    return all < kMostSlabs ? all : kMostSlabs;
  }
  int weight_bytes() const { return kKernels[kernel].columns * kRowBytes; }
};

// A pointwise convolution of dense channels-last images is one of a single row of all their pixels;
// any other problem stays as it is.
ConvProblem as_one_row(ConvProblem problem);

// The tile that a plan stands for; the problem is as one row if it can be.
Tile tile_of(const ConvProblem& problem, const ConvPlan& plan);

// Sums of splits, kept until they are added up.
inline int64_t partial_bytes(const Tile& t) {
  if (t.splits == 1) return 0;
  return t.tiles() * t.splits * t.blocks() * kBlockPixels * kKernels[t.kernel].columns * 4;
}

// Input channels that a filter has in memory once it is packed: rows of whole 16 bytes.
inline int64_t packed_channels(const ConvProblem& p, bool flat) {
  const int64_t unit = 16 / element_size(p.dtype);
  const int64_t channels = flat ? p.C * p.R * p.S : p.C;
  return (channels + unit - 1) / unit * unit;
}

// Shared memory that results pass through on their way out.
int staging(const ConvProblem& problem, const Tile& tile);

// Whether the copy engine can read the weight as it is: rows (k, r, s) of whole 16 bytes.
bool weight_is_packed(const ConvProblem& problem);
bool input_is_boxed(const ConvProblem& problem);
// And whether it can write the output, in squares of pixels.
bool output_is_boxed(const ConvProblem& problem, const Tile& tile);

}  // namespace customconv::implicit_gemm
