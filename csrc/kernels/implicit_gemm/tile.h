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

constexpr int kRowBytes = 128;        // of a pixel or an output channel in shared memory
constexpr int kPieceBytes = 32;       // of a row: what one matrix instruction multiplies
constexpr int kInstructionRows = 64;  // of the matrix instruction's first operand
constexpr int kSpanUnit = 8;          // bytes that boxes of spans are counted in
constexpr int kMostBlocks = 4;        // of a tile
constexpr int kWarpgroups = 2;        // that multiply
constexpr int kMostStages = 8;
constexpr int kSlabBytes = 64 * kRowBytes;  // of output: 64 pixels by 128 bytes of channels
constexpr int kMostPositions = 768;         // of a plane: two of them fill the shared memory
constexpr int kBarrierBytes = 512;
constexpr int kMostPixels = 256;                             // of a tile
constexpr int kOffsetBytes = kWarpgroups * kMostPixels * 8;  // where pixels go, for each warpgroup
constexpr int kMostSlabs = 4;                                // that a warpgroup stores at a time

// A kernel. Its results lie as the matrix instruction leaves them: channels side by side, or,
// `planar`, pixels side by side; the output's layout decides which is wanted.
struct Kernel {
  const char* name;
  int channels;  // of a tile
  int pixels;    // of a tile
  int block;     // pixels of an instruction
  bool planar;

  // Columns of an instruction; the sums of a block are 64 rows of so many.
  constexpr int columns() const { return planar ? block : channels; }
  // Warpgroups share the channels of a tile, or have 64 each.
  constexpr int channel_groups() const { return planar ? channels / kInstructionRows : 1; }
  // Of pixels, that a warpgroup computes.
  constexpr int blocks() const { return pixels / block * channel_groups() / kWarpgroups; }
  // Of each thread that multiplies.
  constexpr int sums() const { return blocks() * columns() / 2; }
};

inline constexpr Kernel kKernels[] = {
    {"256 pixels x 128", 128, 256, 64, false},  // the most products for the bytes loaded
    {"256 pixels x 64", 64, 256, 64, false},    // few output channels
    {"256 pixels x 32", 32, 256, 64, false},    // fewer
    {"128 pixels x 128", 128, 128, 64, false},  // small images
    {"128 pixels x 64", 64, 128, 64, false},    // and few tiles
    {"128 x 256 pixels", 128, 256, 256, true},  // the same for planes of pixels
    {"64 x 256 pixels", 64, 256, 128, true},   {"128 x 128 pixels", 128, 128, 128, true},
    {"64 x 128 pixels", 64, 128, 64, true},
};
inline constexpr int kKernelCount = sizeof(kKernels) / sizeof(kKernels[0]);

// How a tile's pixels lie in its planes.
enum class Shape : int {
  kSquares,  // blocks are 8 pixels wide
  kLines,    // blocks follow each other along the rows of an image, halo included
  kRun,      // and along the images
};

// Where planes come from.
enum class Loader : int {
  kBoxes,        // the copy engine puts boxes of pixels where they belong
  kTurnedBoxes,  // it fetches boxes of channels-first images, which threads turn
  kTurnedSpans,  // the same with spans of whole rows, whose length may be any
  kGathered,     // threads fetch element by element
};
constexpr bool is_turned(Loader loader) {
  return loader == Loader::kTurnedBoxes || loader == Loader::kTurnedSpans;
}

// Groups of 128 threads that fetch: what leaves registers enough for the others' sums.
constexpr int fetchers(const Kernel& kernel, Loader loader) {
  return is_turned(loader) && kernel.sums() <= 64 ? 2 : 1;
}
constexpr int threads_of(const Kernel& kernel, Loader loader) {
  return 128 * (fetchers(kernel, loader) + kWarpgroups);
}
// Of the fetchers, those that turn; two warps start copies.
constexpr int turners(const Kernel& kernel, Loader loader) {
  return fetchers(kernel, loader) == 1 ? 64 : 128;
}

// Along one dimension of the image.
struct Axis {
  int planes;  // tap i belongs to plane i % planes
  int step;    // in a plane, pixels from one tap to the next
  int reach;   // pixels from the first tap of a plane to its last, at most
};

// Pieces of channels-first input on their way into a plane; strides in bytes.
struct Pieces {
  int stages;
  int bytes;  // of a stage
  int count;  // of pieces in a stage
  int channel, row, image;
  // Spans: one box an image, or all channels of an image at once, or one copy a channel.
  bool boxes, whole;
};

struct Tile {
  int rows, columns, images;  // of output pixels
  Shape shape;
  Loader loader;
  bool flat;  // channels and taps are one dimension: few channels
  Axis h, w;
  int pitch;       // pixels in a row of a plane
  int plane_rows;  // rows of an image in a plane
  int positions;   // pixels of a plane
  int kernel;      // of kKernels
  int x_stages, w_stages;
  Pieces pieces;
  int splits;
  bool boxed_out;  // the output is stored in boxes by the copy engine

  int64_t tiles_k, tiles_q, tiles_p, tiles_n;
  int chunks;  // of channels: 128 bytes each

  constexpr const Kernel& kind() const { return kKernels[kernel]; }
  int64_t tiles() const { return tiles_k * tiles_q * tiles_p * tiles_n; }
  int steps() const { return chunks * h.planes * w.planes; }
  int plane_bytes() const { return (positions * kRowBytes + 1023) / 1024 * 1024; }
  int blocks() const { return kind().pixels / kind().block; }
  // Slabs that a warpgroup's sums fill, of elements of this size.
  int slabs(int64_t size) const {
    const int all = kind().blocks() * kind().channels * static_cast<int>(size) / kRowBytes;
    return all < kMostSlabs ? all : kMostSlabs;
  }
  int weight_bytes() const { return kind().channels * kRowBytes; }
};

// A pointwise convolution of dense images is one of a single row: of all their pixels where those
// are channels-last, else of each image's; any other problem stays as it is.
ConvProblem as_one_row(ConvProblem problem);

// The tile that a plan stands for; the problem is as one row if it can be.
Tile tile_of(const ConvProblem& problem, const ConvPlan& plan);

// Sums of splits, kept until they are added up.
inline int64_t partial_bytes(const Tile& t) {
  if (t.splits == 1) return 0;
  return t.tiles() * t.splits * t.kind().pixels * t.kind().channels * 4;
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
// Whether it can read boxes of pixels, of channels-first images, and spans of their rows.
bool input_is_boxed(const ConvProblem& problem);
bool input_is_boxed_planar(const ConvProblem& problem);
bool input_is_spanned(const ConvProblem& problem);
// And whether it can write the output, in squares of pixels.
bool output_is_boxed(const ConvProblem& problem, const Tile& tile);

}  // namespace customconv::implicit_gemm
