// What the grouped family's planner and launcher share: the walk from one image to the other, how
// it is cut into matrix products of warps, the kernels. Plain C++.
#pragma once

#include <cstdint>

#include "plan/payload.h"
#include "plan/problem.h"

namespace customconv {
struct LaunchShape;
}

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
  // A tile keeps only the pixels that taps meet, `class_step` apart. They lie in `classes`: pixels
  // of one class are a step apart.
  int classes, class_step;
  Taps taps[kMostPhases];
};

// A grouped convolution as the kernels see it. The weight gradient reads `out` too.
struct Geometry {
  int64_t N, groups;
  int64_t C, K;    // channels of a group: of `in` and of `out`
  int64_t kernel;  // taps of the filter
  Axis h, w;
  Shape5 in, out;              // strides of n, c, h, w
  bool in_boxed, out_boxed;    // TMA can go through their pixels, channels side by side
  bool in_planes, out_planes;  // it can go through their planes
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
  // For boxes, the slots above are one class's, and classes are `class_slots` apart.
  int classes, class_slots;

  int pixels() const { return images * rows * columns; }
};
Tile tile_of(const Geometry& geometry, int images, int rows, int columns);

// How many tiles there are.
struct TileCounts {
  int64_t n, p, q;

  int64_t all() const { return n * p * q; }
};
TileCounts tile_counts(const Geometry& geometry, const Tile& tile);

constexpr int kMostThreads = 256;  // that multiply
constexpr int kProducers = 128;    // threads that bring what the others will multiply next
// The same where these bring boxes: float32 has half as many elements on their way in a register.
constexpr int box_producers(int64_t element_size) { return element_size == 4 ? 256 : 128; }
constexpr int kBarrierBytes = 32;  // of shared memory
constexpr int kChannelTile = 16;   // of a matrix instruction: rows
constexpr int kPixelTile = 8;      // columns

// Forward and input gradient. A lane multiplies units of eight bytes of neighbouring channels; an
// instruction takes four units, of any taps and channels of a group.
constexpr int kUnitBytes = 8;
constexpr int kStepUnits = 4;
constexpr int kTileBytes = 512;  // of weights, of a step and sixteen channels

// What a warp computes: instructions across its pixels and its channels.
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
  constexpr int box_blocks() const { return pairs * channels > 20 ? 1 : 2; }
};
inline constexpr GradientKernel kGradientKernels[] = {
    {"5 pairs x 8", 5, 1}, {"5 pairs x 16", 5, 2}, {"9 pairs x 16", 9, 2}};
inline constexpr int kGradientKernelCount = 3;
// The same of boxes.
inline constexpr GradientKernel kGradientBoxKernels[] = {{"boxes of 5 pairs x 8", 5, 1},
                                                         {"boxes of 5 pairs x 16", 5, 2},
                                                         {"boxes of 9 pairs x 16", 9, 2},
                                                         {"boxes of 9 pairs x 32", 9, 4}};
inline constexpr int kGradientBoxKernelCount = 4;

constexpr int kOctet = 8;
// Blocks that add up their sums of a slice of a weight gradient by boxes: the largest portable
// cluster.
constexpr int kMostClustered = 8;
constexpr int kSumPlaceBytes = 16;  // of where a row or column of sums goes
constexpr int kStepPixels = 16;     // of which tiles are whole multiples

// Forward and input gradient on compute capability 9.0: TMA, or where it cannot
// threads, bring boxes, rows of 128 bytes of a pixel's channels. A lane multiplies pieces of
// sixteen bytes; an instruction takes two pieces, a step, of any taps and channels of a set: of as
// many groups as fill whole pieces.
constexpr int kBoxRowBytes = 128;
constexpr int kBoxAlignment = 1024;  // what the swizzle repeats after
constexpr int kPieceBytes = 16;
constexpr int kBoxPixelTile = 16;   // of a matrix instruction: rows
constexpr int kBoxChannelTile = 8;  // columns
constexpr int kMostStages = 4;
// Bytes of an instruction's weights: two pieces for each of its columns.
constexpr int kStepWeights = kBoxChannelTile * 2 * kPieceBytes;
constexpr int kMostBox = 256;  // pixels, along an axis
constexpr int kMostBoxStep = 8;
constexpr int kMostPlane = 1 << 30;  // pixels of a plane
constexpr int kPartPixels = 16;      // of a run, that a warp transposes at a time
constexpr int kStripSlack = 8;       // pixels that a copy may begin before a run does
constexpr int kNowhereBytes = 4096;  // for what is of no box: 16 bytes of each thread
constexpr int kStagings = 2;         // of results: one is stored while the other is filled
constexpr int kMostBoxPhases = 4;    // whose results go by TMA

// What a warp computes: instructions across its pixels and its channels.
struct BoxKernel {
  const char* name;
  int pixels, channels;

  // Blocks that are to share a multiprocessor.
  constexpr int blocks() const { return pixels * channels > 8 ? 1 : 2; }
  // Bytes of so many steps' weights, which are fetched for two instructions at a time.
  constexpr int64_t weight_bytes(int64_t steps) const {
    return (steps * channels + 1) / 2 * 2 * kStepWeights;
  }
};
inline constexpr BoxKernel kBoxKernels[] = {
    {"boxes of 128 x 8", 8, 1}, {"boxes of 64 x 8", 4, 1},  {"boxes of 64 x 16", 4, 2},
    {"boxes of 32 x 32", 2, 4}, {"boxes of 64 x 32", 4, 4},
};
inline constexpr int kBoxKernelCount = 5;

// Who brings boxes: TMA; warps, out of strips that it brings; threads.
enum class Loading : uint8_t { kBoxes, kStrips, kThreads };

// `pixel_warps` are the warps that share a tile's pixels: 1, 2, 4 or 8. `tile` has rows, columns
// and images of positions. `tile_blocks` are the blocks that share the tiles of a slice.
struct SlotsPlan {
  static constexpr PlanKind kKind = PlanKind::grouped_slots;
  int kernel = 0;  // of kKernels
  int pixel_warps = 1;
  int passes = 1;  // of each warp through the tile, one after the other: 1, 2 or 4
  int tile[3] = {};
  int tile_blocks = 1;

  int64_t pixels() const {
    return int64_t{kKernels[kernel].pixels} * kPixelTile * pixel_warps * passes;
  }
};
struct SlotGradientsPlan {
  static constexpr PlanKind kKind = PlanKind::grouped_slot_gradients;
  int kernel = 0;  // of kGradientKernels
  int pixel_warps = 1;
  int tile[3] = {};

  const GradientKernel& own_kernel() const { return kGradientKernels[kernel]; }
};
struct BoxesPlan {
  static constexpr PlanKind kKind = PlanKind::grouped_boxes;
  int kernel = 0;  // of kBoxKernels
  int pixel_warps = 1;
  Loading loading = Loading::kBoxes;
  int tile[3] = {};
  int stages = 0, tile_blocks = 1;

  int64_t pixels() const {
    return int64_t{kBoxKernels[kernel].pixels} * kBoxPixelTile * pixel_warps;
  }
};
struct BoxGradientsPlan {
  static constexpr PlanKind kKind = PlanKind::grouped_box_gradients;
  int kernel = 0;  // of kGradientBoxKernels
  int pixel_warps = 1;
  Loading loading = Loading::kBoxes;
  int cluster = 1;  // blocks: 1, 2, 4 or 8
  int tile[3] = {};
  int stages = 0;

  const GradientKernel& own_kernel() const { return kGradientBoxKernels[kernel]; }
};

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
  int64_t slices;
  TileCounts tiles;
  int64_t table_steps, packed_steps;  // of all phases, and times chunks
  int list_at, table_at, input_at, input_bytes, weights_at, sums_at, bytes;  // of shared memory
  bool fits;
};
Work work_of(const Geometry& geometry, const SlotsPlan& plan, const Tile& tile,
             int64_t element_size);
LaunchShape shape_of(const Work& work, const SlotsPlan& plan);
// Bytes of weights in the order in which blocks read them, and with a table of where units lie.
int64_t weight_bytes(const Work& work);
int64_t packed_bytes(const Work& work);

// The tile of positions, and the boxes that it reads, one for each class of columns: neighbouring
// positions then meet neighbouring slots. Between its first row and its last, a box leaves out only
// rows that no tap meets.
Tile box_of(const Geometry& geometry, int images, int rows, int columns);

// Vectors of one or two pixels of what a tile reads, or of its positions, as threads bring them.
int box_vectors(const Geometry& geometry, const Tile& tile, int vector);
int position_vectors(const Tile& tile, int vector);

// Threads that bring boxes, or start the copies.
constexpr int box_loaders(Loading loading, int64_t element_size) {
  return loading == Loading::kThreads ? box_producers(element_size) : 32;
}

// Planes of pixels as TMA brings them: strips of 128 bytes of each channel's
// neighbouring pixels. A run is what a tile reads of neighbouring rows of an image, or of one.
struct Strips {
  bool whole;  // runs are whole rows, one of each image; else each is of a row
  int runs;    // of an image
  int pixels;  // of a run
  int count;   // strips of a run
  int parts;   // of a tile, that a warp transposes at a time
  int channels;
  int strip_bytes, bytes;          // of a tile
  int row_list_bytes, list_bytes;  // see StripList

  int brought_bytes(int images) const { return images * runs * count * channels * kBoxRowBytes; }
};

// The same by boxes.
struct BoxWork {
  Tile tile;
  int pack, C, K;  // groups of a set, and its channels
  int all_sets;
  int sets;          // of a block
  int pieces;        // of a set's pixel
  int parts;         // blocks that share a set's channels
  int column_warps;  // warps that share them in a block
  int warps;         // that multiply
  int boxes;         // of a tile, one for each 128 bytes of channels
  int box_bytes;     // with what is in front of the next one
  int steps;         // of all phases
  int weight_bytes;  // of a warp's channels
  int stages;
  // Where results go by TMA too: boxes of a block's channels, with their bytes, and of
  // these those of a pixel; otherwise none. Planes of pixels are staged so many bytes apart.
  int out_boxes, out_box_bytes, out_row_bytes, out_pitch;
  int stored;   // channels of a block
  int threads;  // of all kinds
  int64_t slices;
  TileCounts tiles;
  // Where things are in shared memory, and its bytes. There are boxes here if they are made of
  // strips, and a list if TMA does not bring them.
  int weights_at, staging_at, spots_at, table_at, barriers_at, list_at, boxes_at, bytes;
  bool fits;
  Loading loading;
  Strips strips;

  int stage_bytes() const { return loading == Loading::kStrips ? strips.bytes : boxes * box_bytes; }
  int fixed_bytes() const { return bytes - boxes_at; }  // what is not stages
  int brought_bytes() const {
    return loading == Loading::kStrips ? strips.brought_bytes(tile.images)
                                       : boxes * tile.classes * tile.slots * kBoxRowBytes;
  }
};
BoxWork box_work_of(const Geometry& geometry, const BoxesPlan& plan, const Tile& tile,
                    int64_t element_size);
LaunchShape shape_of(const BoxWork& work, const BoxesPlan& plan);

// How blocks and warps share a weight gradient.
struct GradientCut {
  int pack, C, K;  // groups of a set, and its channels
  int all_sets;
  int sets;             // of a block
  int octets, columns;  // of a set, in a block: octets of channels of `in`, and of `out`
  int taps;             // of a block
  int octet_parts, column_parts, tap_parts;  // blocks that share a set
  int pair_warps, column_warps;              // warps that share a set
  int threads;
  int64_t slices;
  TileCounts tiles;
};

// How a block sums its share.
struct GradientWork {
  GradientCut cut;
  Tile tile;
  int plane, out_plane;  // slots of a unit of 16 bytes
  int rows;              // of pairs, in whole sixteen bytes
  int bytes;             // of shared memory
  bool fits;
};
GradientWork gradient_work_of(const Geometry& geometry, const SlotGradientsPlan& plan,
                              const Tile& tile, int64_t element_size);
LaunchShape shape_of(const ConvProblem& problem, const GradientWork& work,
                     const SlotGradientsPlan& plan, int64_t splits);

// The same by boxes of both images, of 16 bits, and sets that fill whole octets. The warps that
// share pixels and the blocks of a cluster add up their sums, where the stages were.
struct GradientBoxWork {
  Loading loading;
  Strips strips, out_strips;
  GradientCut cut;
  Tile tile;
  int64_t part;          // vectors of four sums that a part of all slices has, as lanes have them
  int boxes, out_boxes;  // of a tile, one for each row's bytes of channels
  int row_bytes;         // 128, or 64 where no set of a block has more
  int box_bytes, out_box_bytes;  // with what is in front of the next one
  int stages;
  int threads;
  // Where things are in shared memory, and its bytes. There are boxes here if they are made of
  // strips, and lists if TMA does not bring them.
  int boxes_at, positions_at, table_at, places_at, zeros_at, barriers_at, list_at, out_list_at;
  int bytes;
  bool fits;

  int all_box_bytes() const { return boxes * box_bytes + out_boxes * out_box_bytes; }
  int stage_bytes() const {
    return loading == Loading::kStrips ? strips.bytes + out_strips.bytes : all_box_bytes();
  }
  // What is not stages, and not where these were.
  int fixed_bytes() const {
    return bytes - zeros_at + (loading == Loading::kStrips ? all_box_bytes() : 0);
  }
  int brought_bytes() const {
    if (loading == Loading::kStrips) {
      return strips.brought_bytes(tile.images) + out_strips.brought_bytes(tile.images);
    }
    return (boxes * tile.classes * tile.slots + out_boxes * tile.pixels()) * row_bytes;
  }
};
GradientBoxWork gradient_box_work_of(const Geometry& geometry, const BoxGradientsPlan& plan,
                                     const Tile& tile);
LaunchShape shape_of(const GradientBoxWork& work, const BoxGradientsPlan& plan, int64_t splits);

}  // namespace customconv::grouped
