// What the planner and the launcher of planes share: how a strip of outputs meets a strip
// of inputs, the kernels, and the tiles of a block. Plain C++.
#pragma once

#include <cstdint>

#include "kernels/depthwise/geometry.h"
#include "plan/payload.h"

namespace customconv {
struct LaunchShape;
}

namespace customconv::depthwise::planes {

// How outputs meet inputs along an axis: neighbours begin a pixel apart, or two. In input gradients
// they begin a pixel apart and meet the taps in reverse order, or half a pixel apart and meet the
// even and the odd taps in turns; with even padding the first output meets the even ones.
enum class Walk : uint8_t { kNext, kSecond, kBack, kHalf, kHalfOdd };
inline constexpr int kWalkCount = 5;
constexpr bool is_half(Walk walk) { return walk == Walk::kHalf || walk == Walk::kHalfOdd; }

// The tap by which an output of a strip meets one of the inputs that the strip reads. The strip
// begins at an even output; there may be no tap of that number.
constexpr int tap_of(Walk walk, int taps, int out, int in) {
  return walk == Walk::kNext     ? in - out
         : walk == Walk::kSecond ? in - 2 * out
         : walk == Walk::kBack   ? out + taps - 1 - in
         : walk == Walk::kHalf   ? out + taps - 1 - 2 * in
                                 : out + taps - 2 - 2 * in;
}
// How many inputs a strip reads, of filters of an odd number of taps.
constexpr int reach_of(Walk walk, int taps, int outputs) {
  return walk == Walk::kNext     ? outputs - 1 + taps
         : walk == Walk::kBack   ? outputs - 1 + taps
         : walk == Walk::kSecond ? 2 * (outputs - 1) + taps
         : walk == Walk::kHalf   ? (outputs + taps - 2) / 2 + 1
                                 : (outputs + taps - 3) / 2 + 1;
}
// Where the inputs begin of a strip that begins at output `out`, and of the first strip.
constexpr int input_of(Walk walk, int out, int first) {
  return first + (walk == Walk::kSecond ? 2 * out : is_half(walk) ? out / 2 : out);
}
constexpr int first_input(Walk walk, int taps, int pad) {
  return is_half(walk) ? (pad + 1) / 2 - (taps - 1) / 2 : -pad;
}

inline constexpr int kTaps[] = {3, 5, 7};
inline constexpr int kTapsCount = 3;
inline constexpr int kRows[] = {4, 2};  // of outputs of a thread
inline constexpr int kRowsCount = 2;
// Columns of a thread, by the walk. Seven words of shared memory apart, all neighbours in a row are
// in different banks; others fit short rows. Zero: there is no such kernel.
inline constexpr int kPairColumns[] = {14, 8, 7};   // of 16 bits, next and back
inline constexpr int kSingleColumns[] = {7, 4, 0};  // of 32 bits; second
inline constexpr int kHalfColumns[] = {14, 8, 0};
inline constexpr int kColumnsCount = 3;

struct Variant {
  Walk walk;
  int taps, width, rows;  // indices into the tables

  constexpr int index() const {
    const int filter = static_cast<int>(walk) * kTapsCount + taps;
    return (filter * kColumnsCount + width) * kRowsCount + rows;
  }
  static constexpr Variant at(int index) {
    const int width = index / kRowsCount, filter = width / kColumnsCount;
    return {static_cast<Walk>(filter / kTapsCount), filter % kTapsCount, width % kColumnsCount,
            index % kRowsCount};
  }
  constexpr int columns(int element_size) const {
    return is_half(walk)                                ? kHalfColumns[width]
           : walk == Walk::kSecond || element_size == 4 ? kSingleColumns[width]
                                                        : kPairColumns[width];
  }
};
inline constexpr int kVariantCount = kWalkCount * kTapsCount * kColumnsCount * kRowsCount;

struct PlanesPlan {
  static constexpr PlanKind kKind = PlanKind::depthwise_planes;
  Walk walk = Walk::kNext;
  int taps = 0;       // along either axis
  int strip[2] = {};  // rows and columns of outputs of a thread
  int tile[3] = {};   // planes, rows, images: see Tile
  int stages = 0;
};

// What leaves a thread its registers. Weight gradients walk to the next or the second pixel.
constexpr bool has_kernel(const Variant& v, int element_size) {
  const int columns = v.columns(element_size);
  if (kTaps[v.taps] == 3) return columns > 0;
  return columns > 0 && columns <= 8 && kRows[v.rows] == 4;
}

// Whether a strip of a weight gradient has sums of its own, where registers allow: errors of
// rounding stay small, and what does not exist need not be left out.
constexpr bool sums_strips(int taps) { return taps < 7; }

constexpr int kMostThreads = 256;
constexpr int kMostStages = 4;  // tiles that are on their way or looked at
// Blocks of as many threads that are to share a multiprocessor: what registers leave room for.
constexpr int blocks_of(const Variant& v, int element_size) {
  return kTaps[v.taps] == 3 && kRows[v.rows] * v.columns(element_size) <= 32 ? 3 : 2;
}
// Bytes before and behind a tile's input, which windows of the first and the last row may touch.
constexpr int kFrontBytes = 32;
constexpr int kBackBytes = 192;
constexpr int kZeroBytes = 96;  // that a window reads where a row does not exist

// A tile: whole neighbouring planes, or some rows of one; of a weight gradient, those of
// several images.
struct Tile {
  int planes, rows;  // of outputs
  int images;
  int bands;                          // of a plane
  int row_strips, column_strips;      // of a plane's rows in a tile, and of its columns
  int64_t items;                      // strips in all, one for each thread
  int64_t count;                      // of tiles; of a weight gradient, of groups of channels
  int64_t steps;                      // of a weight gradient: tiles of a group, in all images
  int64_t in_elements, out_elements;  // of an image
};
// Shared memory of a run of so many elements, with what may lie before them up to an address of
// whole 16 bytes, and behind.
int64_t run_bytes(int64_t elements, int element_size);
// Where tiles are in shared memory. Those of the output are read in a weight gradient, from a stage
// too; else they are behind the stages, one that is written and one that is stored.
struct Places {
  int64_t stage;       // bytes
  int64_t out, a_out;  // where the first one of the output is, and its bytes
  int64_t zeros;       // where a row of zeros is
  int64_t all;         // bytes
};
Places places_of(const depthwise::Geometry& geometry, const Tile& tile, int stages,
                 int element_size);
// The kernel of a plan, and its tile.
Variant variant_of(const PlanesPlan& plan, int element_size);
Tile tile_of(const depthwise::Geometry& geometry, const PlanesPlan& plan);
// Tiles of forward convolutions may take turns on fewer blocks.
LaunchShape shape_of(const ConvProblem& problem, const depthwise::Geometry& geometry,
                     const Tile& tile, int stages, int64_t splits);

// The walk of a pass along both axes; false where there is none.
bool find_walk(const depthwise::Geometry& geometry, Pass pass, Walk* walk);

}  // namespace customconv::depthwise::planes
