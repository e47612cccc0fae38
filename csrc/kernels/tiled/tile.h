// What the tiled family's planner and launcher share: a problem in forward form, the table of
// kernels, and the tile of output that a block computes. Plain C++.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/payload.h"
#include "plan/problem.h"

namespace customconv {
struct LaunchShape;
}

namespace customconv::tiled {

// A convolution as the kernel sees it, always forward; C and K are the channels of one group. dgrad
// is a forward convolution of dy with the weights flipped: `weight_offset` leads to the last tap,
// the strides r and s are negative, and the padding may be negative too.
struct Geometry {
  int64_t N, H, W, P, Q;
  int64_t groups, C, K;
  int64_t R, S;
  int64_t stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  struct {
    int64_t n, c, h, w;
  } in;
  struct {
    int64_t n, k, p, q;
  } out;
  struct {
    int64_t g, k, c, r, s;
  } weight;
  int64_t weight_offset;

  // Neighbours in memory are neighbours in the channel, not along the row.
  bool in_channels_last() const { return C * groups > 1 && in.c < in.w; }
  bool out_channels_last() const { return K * groups > 1 && out.k < out.q; }
};

Geometry forward_geometry(const ConvProblem& problem);

// How a thread walks the taps of a kernel row.
enum class Taps : uint8_t {
  kOne,       // one tap; also the gathered tile
  kThree,     // the row's slice stays in registers for all taps; so do the next three
  kFive,      //
  kSeven,     //
  kAny,       // any number of taps, four at a time
  kStride1,   // dilated: every tap reads its inputs
  kStride2,   //
  kAnyStride  // any stride and dilation
};

// A kernel: the walk, and how many output channels a thread keeps for its strip of pixels.
struct Kernel {
  const char* name;
  Taps taps;
  int channels;
};

inline constexpr Kernel kKernels[] = {
    // Eight channels by eight pixels a thread: 64 multiply-adds for each tap's loads.
    {"1 tap x8", Taps::kOne, 8},
    {"3 taps x8", Taps::kThree, 8},
    {"5 taps x8", Taps::kFive, 8},
    {"7 taps x8", Taps::kSeven, 8},
    {"any taps x8", Taps::kAny, 8},
    {"stride 1 x8", Taps::kStride1, 8},
    {"stride 2 x8", Taps::kStride2, 8},
    {"any stride x8", Taps::kAnyStride, 8},
    // Two to four output channels in a group: images, thin groups.
    {"1 tap x4", Taps::kOne, 4},
    {"3 taps x4", Taps::kThree, 4},
    {"any taps x4", Taps::kAny, 4},
    {"any stride x4", Taps::kAnyStride, 4},
    // One output channel in a group: depthwise, single-channel outputs.
    {"1 tap x1", Taps::kOne, 1},
    {"3 taps x1", Taps::kThree, 1},
    {"5 taps x1", Taps::kFive, 1},
    {"7 taps x1", Taps::kSeven, 1},
    {"any taps x1", Taps::kAny, 1},
    {"any stride x1", Taps::kAnyStride, 1},
};
inline constexpr size_t kKernelCount = sizeof(kKernels) / sizeof(kKernels[0]);

// A thread's pixels: a strip of one output row.
constexpr int kStrip = 8;

// A block's threads, and the blocks that are to share a multiprocessor: 168 registers a thread for
// four or eight channels, 80 for one.
constexpr int max_threads(int channels) { return channels == 1 ? 256 : 128; }
constexpr int kMinBlocks = 3;

constexpr bool reads_windows(Taps taps) { return taps <= Taps::kAny; }

// Warps of a block: along the output channels and along the strips.
struct WarpShape {
  int channels;
  int strips;
};
inline constexpr WarpShape kWarpShapes[] = {{4, 1}, {2, 2}, {1, 8}, {1, 4}, {2, 1}, {1, 2}, {1, 1}};
inline constexpr int kWarpShapeCount = 7;

// Strips that lie side by side in a tile. Four, by rows, read shared memory without conflicts.
inline constexpr int kTileWidths[] = {4, 1, 2, 8, 32};
inline constexpr int kTileWidthCount = 5;

// Tiles of further groups that a block computes in turn: where a group is little work, what a block
// has to set up is shared by several.
inline constexpr int kRounds[] = {1, 8};
inline constexpr int kRoundsCount = 2;
constexpr bool has_rounds(int channels) { return channels < 8; }

struct TiledPlan {
  static constexpr PlanKind kKind = PlanKind::tiled;
  int kernel = 0;         // a row of kKernels
  int warps[2] = {};      // along the output channels and along the strips
  bool gathered = false;  // see Tile, also for the rest
  int tile[3] = {};       // images, rows, strips
  int groups = 1, rounds = 1, chunk = 0;
};

// One block's work and how it lies in shared memory (in floats, whatever the dtype).
struct Tile {
  bool gathered = false;      // holds the inputs of one tap at a time, no halo
  bool groups_first = false;  // neighbouring threads work on neighbouring groups

  int groups = 1, images = 1, rows = 1, strips = 1;  // output
  int channels = 1;                                  // output, of each group
  int in_rows = 1, in_columns = 1;                   // of an image, halo included
  int pitch = 1;                                     // of a row
  int plane = 1;                                     // of a channel
  int chunk = 1;                                     // input channels of a group in a step
  int weight_pitch = 1;                              // of a tap
  int stages = 1;
  int rounds = 1;     // of one step each, where there are several
  int64_t steps = 1;  // of a round
  int64_t tiles_k = 1, tiles_g = 1, tiles_q = 1, tiles_p = 1, tiles_n = 1;
  int64_t shared_bytes = 0;

  int64_t count() const { return tiles_k * tiles_g * tiles_q * tiles_p * tiles_n; }
  int positions() const { return images * in_rows * pitch; }
  int step_planes() const { return groups * chunk; }
  int step_taps(const Geometry& g) const { return gathered ? 1 : static_cast<int>(g.R * g.S); }
  // Offsets of the inputs and the weights, a row for each weight.
  int64_t table_bytes(const Geometry& g) const {
    return (int64_t{8} * positions() + int64_t{12} * chunk * step_taps(g) + 15) / 16 * 16;
  }
  int input_floats() const { return (step_planes() * plane + 3) / 4 * 4; }
  int weight_floats(const Geometry& g) const {
    return (chunk * step_taps(g) * weight_pitch + 3) / 4 * 4;
  }
};

// The tile that a plan stands for; of no shared memory where it is out of all proportion.
Tile make_tile(const Geometry& geometry, const TiledPlan& plan);
LaunchShape shape_of(const Tile& tile, const TiledPlan& plan);

}  // namespace customconv::tiled
