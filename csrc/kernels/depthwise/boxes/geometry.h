// What the planner and the launcher of boxes share: how outputs meet the input's
// pixels, and what a block has of them. Plain C++.
#pragma once

#include <cstdint>

#include "plan/payload.h"
#include "plan/problem.h"

namespace customconv {
struct LaunchShape;
}

namespace customconv::depthwise::boxes {

// How neighbouring outputs share pixels of the input.
enum class Walk : uint8_t {
  kNext,    // stride 1
  kSecond,  // stride 2
  kHalf,    // the input gradient of stride 2: `out` is the finer image
  kAny  // any filter, stride and dilation, tap by tap; no gradients but with stride 1 the input's
};

// A thread computes patches of kPatch rows and columns of outputs. Filters are squares of so many
// rows, but of kAny.
inline constexpr int kPatch = 4;
inline constexpr int kTaps[] = {3, 5, 7};
inline constexpr int kTapsCount = 3;
inline constexpr int kMostKernel = 1024;  // taps of any filter
// Neighbouring taps that kAny takes at once, where outputs share their pixels.
inline constexpr int kBand = 4;

// Whether a patch of a weight gradient has sums of its own, where registers allow: errors of
// rounding stay small, and what does not exist need not be looked for.
constexpr bool sums_patches(int taps) { return taps == 3; }

// Along either axis, the pixels that a patch meets: its window.
constexpr int window_of(Walk walk, int taps) {
  return walk == Walk::kNext     ? kPatch - 1 + taps
         : walk == Walk::kSecond ? 2 * (kPatch - 1) + taps
                                 : kPatch / 2 + (taps - 1) / 2;
}
// The tap by which an output of a patch meets a pixel of its window; there may be none such.
constexpr int tap_of(Walk walk, int taps, int pixel, int output) {
  return walk == Walk::kNext     ? pixel - output
         : walk == Walk::kSecond ? pixel - 2 * output
                                 : output + 2 * ((taps - 1) / 2 - pixel);
}

// Rows or columns.
struct Axis {
  int in, out;  // pixels
  int first;    // of `out`, where the first patch begins: 0, or -1
  int origin;   // of `in`, where its window begins
  int patches;
  int advance, window;  // from one patch's window to the next one's, and how large these are
  int taps, step, dilation;
};

// A convolution as the kernels see it, from `in` to `out`. An input gradient of stride 1 is one
// with the filter turned round; a weight gradient reads `out` too.
struct Geometry {
  int64_t N, C;
  Axis h, w;
  Walk walk;
  bool of_weights;
  Shape5 in, out;  // strides of n, c, h, w
  int64_t weight_k, weight_r, weight_s, weight_offset;
};
Geometry geometry_of(const ConvProblem& problem);

// Taps of a row that are computed at once.
inline int taps_of(const Geometry& g) {
  if (g.walk != Walk::kAny) return g.w.taps;
  return g.w.step == 1 && g.w.dilation == 1 ? kBand : 1;
}

// Threads that compute, of kernels by taps; one more warp tells TMA what to bring.
constexpr int most_threads(int taps) { return taps == 5 ? 224 : taps == 7 ? 352 : 288; }
inline constexpr int kLoaderThreads = 32;
// Blocks that are to share a multiprocessor: what their registers leave room for.
constexpr int blocks_of(int taps) { return taps == 7 ? 1 : 2; }

inline constexpr int kMostStages = 4;
inline constexpr int kMostBox = 256;  // elements of a box along each dimension

// A tile: patches of some rows and columns, of some images, of the channels of a block.
struct Tile {
  int channels, rows, columns, images;
  bool merged;  // pixels are so thin that TMA brings several as one row

  int patches() const { return rows * columns * images; }
};
// Whether an image's pixels can be merged, where a block has all channels.
bool can_merge(const Geometry& geometry);

struct BoxesPlan {
  static constexpr PlanKind kKind = PlanKind::depthwise_boxes;
  bool merged = false;  // see Tile
  int channels = 0;
  int tile[3] = {};  // patches: rows, columns, images
  int stages = 0;
  int tile_blocks = 1;     // that share the tiles of their channels
  bool clustered = false;  // they are a cluster, of a weight gradient
};

// A tile's pixels in shared memory: boxes of so many columns, side by side.
struct Boxed {
  int rows, columns, count;
  int bytes;      // from one box to the next
  int all_bytes;  // that are brought
};
// Windows are read by groups of so many columns, which lie in one box.
constexpr int group_of(Walk walk) { return walk == Walk::kHalf ? kPatch / 2 : kPatch; }

// A block's threads have a pair of neighbouring channels and a column of patches each, of which
// they take every so-manieth row. Tiles go through stages in shared memory.
struct Work {
  Tile tile;
  int pairs, down, threads;  // that compute, in whole warps: `down` times all columns' pairs
  Boxed in, out;             // the second of a weight gradient
  int stage_bytes, stages;
  int filter_at, barriers_at, bytes;  // of shared memory
  int64_t chunks;                     // of the channels
  int64_t tiles_n, tiles_h, tiles_w;

  int64_t tiles() const { return tiles_n * tiles_h * tiles_w; }
};
// The work of a plan's blocks; without bytes where it does not fit boxes.
Work work_of(const Geometry& geometry, const BoxesPlan& plan, int element_size);
// The same of as many stages as so much shared memory holds; without bytes where these are too few.
Work choose_stages(const Geometry& geometry, int element_size, int shared_bytes, BoxesPlan& plan);
LaunchShape shape_of(const ConvProblem& problem, const Work& work, const BoxesPlan& plan,
                     int64_t splits);

}  // namespace customconv::depthwise::boxes
