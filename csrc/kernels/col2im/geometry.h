// What the planner and the launcher share: how taps become columns, and what a block has of both.
// Plain C++.
#pragma once

#include <cstdint>

#include "plan/payload.h"
#include "plan/problem.h"

namespace customconv {
struct LaunchShape;
}

namespace customconv::col2im {

// Along an axis, output i has a phase, (i + pad) % stride, and a place, (i + pad) / stride. Tap t
// reaches it where t * dilation % stride is its phase, from the pixel of dy t * dilation / stride
// places before its own: that is the tap's shift.
struct Axis {
  int in, out;  // pixels of dy, of dx
  int pad, stride, dilation, taps;
  int first, places;  // of dx
  int reach;          // the largest shift
};

// What follows each other in dy: a pixel's channels, or the pixels of a row.
enum class Order : uint8_t { kPixels, kPlanes };

struct Geometry {
  int64_t N, C, K;
  Axis h, w;
  Order order;
  int vector;  // bytes that can be copied at once
};
Geometry geometry_of(const ConvProblem& problem);

inline constexpr int kMostShifts = 32;  // of rows
// The shifts of rows, ascending; returns how many, or -1 where there are too many.
int shifts_of(const Axis& axis, int shifts[kMostShifts]);
// The tap of a phase and a shift, or -1.
constexpr int tap_of(int phase, int shift, int stride, int dilation, int taps) {
  const int at = phase + shift * stride;
  return at % dilation == 0 && at / dilation < taps ? at / dilation : -1;
}

// A block computes columns of some phases of rows and of some channels; a phase's columns, by
// channel and then by tap of a row, are whole blocks of a tensor core instruction. A kernel has up
// to so many such blocks.
inline constexpr int kBlockColumns = 8, kBlockPixels = 16;
inline constexpr int kBlocks[] = {1, 2, 3, 4, 6, 8};
inline constexpr int kBlocksCount = 6;
inline constexpr int kMostColumns = 64;
// A warp multiplies so many blocks of pixels.
inline constexpr int kWarpBlocks[] = {2, 4};
inline constexpr int kWarpBlocksCount = 2;
inline constexpr int kMostThreads = 256;
// Thread blocks that registers leave room for.
constexpr int blocks_of(int warp_blocks) { return warp_blocks == 2 ? 2 : 1; }

// dy's channels are brought by chunks of so many bytes, twice the depth of an instruction. Rows of
// them lie further apart, so that eight neighbours fall into different banks; so do planes.
inline constexpr int kChunkBytes = 64, kRowBytes = kChunkBytes + 16;
inline constexpr int kPlanePadding = 8;  // elements
// Columns of sums are so many floats more than whole rows of banks apart, for fragments and for
// neighbouring taps.
inline constexpr int kSumPadding = 20;
inline constexpr int kStages = 2;

// Outputs that a thread gathers at a time. Where channels are neighbours in memory, so many of them
// at most are its own.
inline constexpr int kBatch = 4;
constexpr int own_channels(int channels) {
  int own = kBatch;
  while (channels % own != 0) --own;
  return own;
}

struct Col2imPlan {
  static constexpr PlanKind kKind = PlanKind::col2im;
  int column_blocks = 0, pixel_blocks = 0;  // one of kBlocks, of kWarpBlocks
  int tile[2] = {};                         // rows, and pixels of dy in each
  int warps = 0;
};

// A tile of places: rows, of so many pixels of dy. The first `lead` of a row's have no outputs of
// their own.
struct Work {
  int rows, width, threads;
  int lead, columns;  // columns of places: width - lead, in whole vectors
  int tiles_h, tiles_w;
  int phases, channels;  // of a block
  int phase_columns;
  int phase_chunks, channel_chunks;
  int k_chunks, chunk_channels;  // of dy's channels
  int shift_count;
  int shifts[kMostShifts];
  int stage_rows, plane;       // rows with their halo; elements between planes
  int dy_bytes, weight_bytes;  // of a stage
  int sum_pitch, shared_bytes;
  bool fits;

  int chunks() const { return phase_chunks * channel_chunks; }
  int64_t tiles(int64_t images) const { return images * tiles_h * tiles_w; }
};
Work work_of(const Geometry& geometry, const Col2imPlan& plan, int element_size);
// Bytes of all weights, by chunk of columns, chunk of dy's channels, shift and column.
int64_t packed_bytes(const Work& work, const Col2imPlan& plan);
LaunchShape shape_of(const Geometry& geometry, const Work& work, const Col2imPlan& plan);

}  // namespace customconv::col2im
