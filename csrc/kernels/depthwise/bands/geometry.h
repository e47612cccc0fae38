// What the planner and the launcher of bands share: the convolution as the kernels see it, how
// blocks share it, and what lies where in shared memory. Plain C++.
#pragma once

#include <cstdint>

#include "plan/payload.h"
#include "plan/problem.h"

namespace customconv {
struct LaunchShape;
}

namespace customconv::depthwise::bands {

// Every channel by a filter of its own, with stride 1. The input gradient is one too, by the filter
// turned round.
struct Geometry {
  int64_t N, C, H, W, P, Q, R, S;  // H, W of what is read, P, Q of what is written
  int64_t pad_h, pad_w;            // may be negative
  Shape5 in, out;                  // strides of n, c, h, w
  int64_t weight_c, weight_r, weight_s, weight_offset;
  bool in_aligned, out_aligned;
};
Geometry geometry_of(const ConvProblem& problem);

// A piece is what one row of a matrix instruction stands for: so many rows of so many columns of an
// output channel. Sixteen pieces are a warp's item.
inline constexpr int kPieceRows = 7;
inline constexpr int kPieceColumns = 8;
inline constexpr int kItemPieces = 16;
// A band is a row of the filter as a matrix: eight columns of the output by blocks of eight columns
// of the input. Longer ones are multiplied in sections of so many blocks.
inline constexpr int kLeastBlocks = 2, kMostBlocks = 5;
inline constexpr int kBlockBytes = 16;

inline constexpr int kMostWarps = 8;
// Blocks of so many warps that registers leave room for on a multiprocessor.
constexpr int shared_by(int blocks) { return blocks == kLeastBlocks ? 3 : 2; }

// How tiles come to shared memory.
enum class Source : uint8_t {
  kPlanes,  // rows of planes, some neighbours at once
  kVectors  // neighbouring channels, eight pixels at once
};

struct BandsPlan {
  static constexpr PlanKind kKind = PlanKind::depthwise_bands;
  Source source = Source::kPlanes;
  int blocks = 0;    // of a section
  int channels = 0;  // of a tile
  int unit = 0;      // of planes: columns that are copied at once
  int tile[3] = {};  // rows, columns, images: see Tile
  int shares = 1;    // of the tiles of some channels, a block each
};

// Channels that a thread brings or stores together, of a tile's.
constexpr int vector_of(int channels) { return channels < 8 ? channels : 8; }
inline constexpr int kShiftBytes = 64;  // between a tile's first eight channels and the others

// A tile: its rows and columns of pieces, and its images.
struct Tile {
  int64_t rows, columns, images;
};
template <typename Plan>
Tile tile_of(const Plan& plan) {
  return {plan.tile[0], plan.tile[1], plan.tile[2]};
}

// A tile's rows in shared memory, with what lies around them.
struct Planes {
  int64_t rows, blocks;  // of eight columns
  int64_t pitch, plane;  // bytes from row to row and from image to image
  double wavefronts;     // of a load of eight pieces: 1 where their banks differ
};
// How many tiles a problem has.
struct TileCount {
  int64_t channels, rows, columns, images;

  int64_t of_a_channel() const { return rows * columns * images; }
};

// What a block needs for its tiles.
struct Work {
  int64_t shift;  // columns between where a tile's rows begin and its first tap
  int64_t sections;
  int64_t pieces, items;     // of a channel
  int64_t channels_at_once;  // a warp has one item of one
  int64_t in_rows;           // of a tile that may be in the image
  Planes in;
  int64_t zeros;                 // bytes of a row that is not
  int64_t filter_rows;           // with one of zeros where rows go in pairs
  int64_t filter_pitch, filter;  // bytes from row to row of the filter and from channel to channel
  TileCount tiles;
  int64_t buffer;        // bytes of a tile
  int64_t shared_bytes;  // with a buffer for the next tile, where it can be copied ahead
  int threads;
};
// The sections of a filter, and how many blocks each has.
int64_t section_count(int64_t taps, int64_t shift);
int section_blocks(int64_t taps, int64_t shift);
int64_t shift_of(const Geometry& geometry, int unit);
// How many neighbours in a row can always be copied at once: 8, 4, 2 or 1.
int unit_of(const Shape5& strides, const Shape5& sizes, bool aligned);

Work work_of(const Geometry& geometry, const BandsPlan& plan);
LaunchShape shape_of(const Work& work, const BandsPlan& plan);

// The weight gradient. Here a row of the instruction is a column of x, a column one of dy, and
// pieces, of any height, are summed over: sums of x[i] dy[j] with the same i - j are of one tap. A
// warp has some rows of taps by a section of so many pairs of blocks.
inline constexpr int kMostPairs = 3;
constexpr int section_taps(int pairs) { return 2 * kPieceColumns * pairs - kPieceColumns; }
inline constexpr int kGradientTaps[] = {4, 5, 7};
constexpr bool has_gradient(int pairs, int taps) {
  return pairs == 1 || taps == 4 || (pairs == 2 && taps == 5);
}

// Where a warp adds up sums of a row of taps, in floats: columns of x are so many apart.
inline constexpr int kScratchPitch = kPieceColumns + 1;
constexpr int64_t scratch_bytes(int pairs) { return 2 * kPieceColumns * pairs * kScratchPitch * 4; }

struct BandGradientsPlan {
  static constexpr PlanKind kKind = PlanKind::depthwise_band_gradients;
  Source source = Source::kPlanes;
  int pairs = 0, taps = 0;
  int height = 0;              // of a piece
  int channels = 0, unit = 0;  // as of BandsPlan
  int tile[3] = {};            // rows, columns, images
};

struct GradientWork {
  int64_t shift, sections;
  int64_t pieces, items;
  int64_t units;   // of rows of taps and sections, of all channels
  int64_t slices;  // of the items, that warps share
  Planes x, dy;
  TileCount tiles;
  int64_t before, zeros, buffer;  // bytes of what is before tiles, of a row of zeros, of a tile
  int64_t shared_bytes;           // with a buffer for the next tile, where it can be copied ahead
};
// Blocks that registers leave room for on a multiprocessor.
constexpr int gradients_shared_by(int pairs, int channels) {
  return pairs == 1 && channels < 8 ? 3 : 2;
}
int64_t gradient_sections(int64_t taps, int64_t shift);
int gradient_pairs(int64_t taps, int64_t shift);
GradientWork gradient_work_of(const Geometry& geometry, const BandGradientsPlan& plan);
LaunchShape shape_of(const ConvProblem& problem, const GradientWork& work, int64_t splits);

}  // namespace customconv::depthwise::bands
