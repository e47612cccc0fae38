// What the grouped family's planner and launcher share: the walk from one image to the other, how
// it is cut into matrix products of warps, the kernels. Plain C++.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace customconv::grouped {

// Some taps along one axis: every `step`-th from `first` on. At position i the j-th of them reads
// the pixel i * Axis::step + offset + j * offset_step.
struct Taps {
  int first, step, count;
  int offset, offset_step;
};

constexpr int kMostPhases = 8;

// One axis of the walk from the image that is read to the one that is computed. A position stands
// for `phases` neighbouring pixels that are computed, each with taps of its own: as many as the
// stride in an input gradient, else one.
struct Axis {
  int in, out;  // pixels of both images
  int positions, phases;
  int step;         // pixels that are read, from one position to the next
  int first, last;  // of all taps: the offsets that they reach
  // Of the pixels that a tile reads, only those are kept that taps meet: `class_step` apart. They
  // lie in `classes`, of each those that are a step apart.
  int classes, class_step;
  Taps taps[kMostPhases];
};

// A grouped convolution as the kernels see it. The weight gradient reads `out` too.
struct Geometry {
  int64_t N, groups;
  int64_t C, K;    // channels of a group: of `in` and of `out`
  int64_t kernel;  // taps of the filter
  Axis h, w;
  Shape4 in, out;  // strides of n, c, h, w
  int64_t weight_group, weight_k, weight_c, weight_r, weight_s;
};

// Whether pixels, not channels, are neighbours in what is computed.
inline bool is_planar(const Geometry& g) { return g.out[1] != 1; }

bool has_phases(const ConvProblem& problem);  // few enough of them
Geometry geometry_of(const ConvProblem& problem);

// A tile of positions, and what it reads in shared memory: a plane of slots, one for a pixel.
struct Tile {
  int images, rows, columns;
  int kept_rows, kept_columns;  // of a class
  int pitch, image_slots, slots;

  int pixels() const { return images * rows * columns; }
};
Tile tile_of(const Geometry& geometry, int images, int rows, int columns);

constexpr int kMostThreads = 256;  // that multiply
constexpr int kProducers = 128;    // threads that bring what the others will multiply next
constexpr int kBarrierBytes = 32;  // of shared memory
constexpr int kChannelTile = 16;   // of a matrix instruction: rows
constexpr int kPixelTile = 8;      // columns

// Forward and input gradient. A lane multiplies units of eight bytes of neighbouring channels; an
// instruction takes four units, of any taps and channels of a group.
constexpr int kUnitBytes = 8;
constexpr int kStepUnits = 4;
constexpr int kTileBytes = 512;  // of weights, of a step and sixteen channels

// Of a warp: instructions across its pixels and its channels.
struct Kernel {
  const char* name;
  int pixels, channels;

  // Whether blocks may have warps that only bring the next tile: where registers leave room.
  constexpr bool has_producers() const { return pixels * channels <= 8; }
  constexpr int threads() const { return kMostThreads + (has_producers() ? kProducers : 0); }
  // Blocks that are to share a multiprocessor.
  constexpr int blocks() const { return 2; }
};
inline constexpr Kernel kKernels[] = {{"64 x 16", 8, 1}, {"32 x 16", 4, 1}, {"64 x 32", 8, 2},
                                      {"32 x 32", 4, 2}, {"32 x 64", 4, 4}, {"16 x 64", 2, 4}};
inline constexpr int kKernelCount = 6;

// The weight gradient. An instruction multiplies pixels: of two octets of channels, each of some
// tap, by eight channels of the other image.
struct GradientKernel {
  const char* name;
  int pairs, channels;

  constexpr int blocks() const { return pairs * channels > 10 ? 2 : 3; }
};
inline constexpr GradientKernel kGradientKernels[] = {
    {"5 pairs x 8", 5, 1}, {"5 pairs x 16", 5, 2}, {"9 pairs x 16", 9, 2}};
inline constexpr int kGradientKernelCount = 3;

constexpr int kOctet = 8;
constexpr int kStepPixels = 16;  // of which tiles are whole multiples

struct Variant {
  int kernel;
  int warps;   // that share a tile's pixels: 1, 2, 4 or 8, by their logarithm
  int passes;  // of each through the tile, one after the other: 1, 2 or 4, likewise

  int index() const { return (kernel * 4 + warps) * 4 + passes; }
  static Variant at(int index) { return {index / 16, index / 4 % 4, index % 4}; }
  int pixel_warps() const { return 1 << warps; }
  // Forward and input gradient: of a tile.
  int64_t pixels() const {
    return int64_t{kKernels[kernel].pixels} * kPixelTile << (warps + passes);
  }
};
constexpr int kPassChoices = 3;

// How a block computes a tile.
struct Work {
  Tile tile;
  int groups;         // of a block
  int channel_tiles;  // of a group, in a block
  int parts;          // blocks that share a group's channels
  int channel_warps;  // that share a group's channels in a block
  int threads;
  int units, chunks;  // of a group's channels: at a time, and how many times
  int slot_bytes;     // of a pixel: a unit or two, side by side
  int plane;          // slots of a unit or two, with what keeps banks apart
  int steps;          // of weights that are kept at a time
  bool resident;      // those are all, and there are two tiles of input
  int staged_pitch;   // floats, from a channel (planar) or pixel of the sums to the next
  int64_t slices, tiles_q, tiles_p, tiles_n;
  int64_t table_steps, packed_steps;  // of all phases, and times chunks
  int list_at, table_at, input_at, input_bytes, weights_at, sums_at, bytes;  // of shared memory
  bool fits;
};
Work work_of(const Geometry& geometry, const Variant& variant, const Tile& tile,
             int64_t element_size, int64_t most_bytes);
// Bytes of weights in the order in which blocks read them, and with a table of where units lie.
int64_t weight_bytes(const Work& work);
int64_t packed_bytes(const Work& work);

// How a block sums a share of a weight gradient.
struct GradientWork {
  Tile tile;
  int pack;             // groups that share an octet of channels
  int sets;             // of so many groups, of a block
  int octets, columns;  // of a set, in a block: octets of channels of `in`, and of `out`
  int taps;             // of a block
  int octet_parts, column_parts, tap_parts;  // blocks that share a set
  int pair_warps, column_warps;              // warps that share a set
  int threads;
  int plane, out_plane;  // slots of a unit of 16 bytes
  int rows;              // of pairs, in whole sixteen bytes
  int64_t slices, tiles_q, tiles_p, tiles_n;
  int bytes;  // of shared memory
  bool fits;
};
GradientWork gradient_work_of(const Geometry& geometry, const Variant& variant, const Tile& tile,
                              int64_t element_size, int64_t most_bytes);

}  // namespace customconv::grouped
