// How the main loop for Hopper cuts a convolution into matrix products.
//
// A thread block computes a tile: a run of positions by some output channels. Positions are those
// of a grid of `pitch` columns and `period` rows for each image, one image after the other, so that
// a run may go on in the next row and in the next image. The loader says which grid it is.
//
// - im2col: the grid has the output's pixels alone. A stage of shared memory holds one tap: the
//   pixels that it meets by some channels, and its weights. No pixel is computed that is not there.
// - halo: the grid has the input's pixels, and the padding behind each row and each image. A stage
//   holds the pixels that all taps meet: a tap reads the same stage some rows further on. Pixels
//   are loaded once, not once for each tap. Positions in the padding are computed but not stored.
// - planes: the same from channels-first input, whose planes warps transpose.
// - gather: the output's pixels, and a stage holds what some taps of each meet, which warps gather
//   from few channels.
//
// For halo and planes, an image may be cut into strips of columns, so that a tile has more rows and
// a smaller halo; the strips overlap by what taps reach. If strips that TMA brings
// have eight columns, the instruction passes over the columns of their halo.
//
// TMA brings pixels in its im2col mode, or one row of a strip at a time, to a row of
// shared memory for each position. The matrix instruction reads them in place.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/packed.h"

namespace customconv::implicit_gemm::sm90 {

constexpr int kMostStages = 12;
constexpr int kMostRowBytes = 128;    // of a position's channels in a stage
constexpr int kLeastRowBytes = 32;    // what one matrix instruction multiplies
constexpr int kInstructionRows = 64;  // output channels of a matrix instruction
constexpr int kSlabChannels = 64;     // of weights that are read as they are stored,
constexpr int kSlabRowBytes = 128;    // which lie side by side
constexpr int kBarrierBytes = 1024;   // and what aligns the rest
constexpr int kMostSplits = 8;        // thread blocks of a cluster
constexpr int kGroupPositions = 8;    // of a stage, that an instruction takes from anywhere
constexpr int kBoxPixels = 32;        // of a plane, that a warp transposes at a time,
constexpr int kMostPlaneSlots = 4;    // from so many slots
constexpr int kDumpBytes = 128;       // where a warp writes pixels that have no place,
constexpr int kDumpsBytes = 1024;     // and room for all these warps
constexpr int kMostStride = 8;        // of a copy
constexpr int kMostResidues = 8;      // of channels, whose planes begin at different bytes of 16
constexpr int kMostMultipliers = 2;   // warpgroups
constexpr int kTermBytes = 8;         // of what says where a term is that is gathered
constexpr int kGatherLoads = 32;      // of a thread that gathers, that are on their way at a time

struct TileShape {
  int pixels, channels;
  int warpgroups;  // that multiply it: each has some of its channels, or if they are few of its
                   // pixels
  int teams;       // of so many warpgroups: one stores a tile while another multiplies the next
  int occupancy;   // thread blocks that run on a multiprocessor
  bool halves = false;  // operands are halves of float32, and sums are promoted after each stage

  constexpr int multipliers() const { return warpgroups * teams; }
  // Whether rows of the instruction are pixels, and columns channels, of which there are too few
  // for rows.
  constexpr bool has_pixel_rows() const { return channels < kInstructionRows; }
  constexpr bool splits_pixels() const { return channels < kInstructionRows * warpgroups; }
  // Pixels of a warpgroup.
  constexpr int own_pixels() const { return splits_pixels() ? pixels / warpgroups : pixels; }
  // Whether warpgroups issue their products in turn: while one promotes its sums, the other's are
  // under way.
  constexpr bool is_ordered() const { return halves && warpgroups == 2; }
  // Warpgroups that load. If stages are not copied but written, as planes are transposed, that
  // takes many warps: two warpgroups of a block that is alone on its multiprocessor.
  constexpr int loaders(bool writes) const { return writes && occupancy == 1 ? 2 : 1; }
  constexpr int threads(bool writes) const { return 128 * (loaders(writes) + multipliers()); }
  // Registers of each thread at the start.
  constexpr int registers(bool writes) const {
    return 65536 / (threads(writes) * occupancy) / 8 * 8;
  }
  // Columns of an instruction: all positions of a warpgroup, or a part of them where the sums of
  // all would take more registers than there are. Where positions are rows instead, warps exchange
  // sums so that they have as many columns as if two parts of the positions were rows.
  constexpr int columns(bool writes) const {
    const int own = own_pixels();
    if (has_pixel_rows()) return own * channels / kInstructionRows;
    return !writes || loaders(true) == 1 || own <= 128 ? own : 128;
  }
  // Warps that transpose planes: all that load but the one that loads weights.
  constexpr int plane_warps() const { return 4 * loaders(true) - 1; }
};
inline constexpr TileShape kTileShapes[] = {
    {256, 128, 2, 1, 1},       {128, 128, 1, 2, 1},      {256, 64, 1, 2, 1},
    {128, 64, 1, 1, 2},        {64, 64, 1, 1, 2},        {256, 32, 1, 2, 1},
    {128, 128, 2, 1, 1, true}, {256, 64, 2, 1, 1, true}, {64, 64, 1, 1, 2, true},
};
inline constexpr int kTileShapeCount = sizeof(kTileShapes) / sizeof(TileShape);

enum class Loader : uint8_t { kIm2col, kHalo, kPlanes, kGather };
inline constexpr const char* kLoaderNames[] = {"im2col", "halo", "planes", "gather"};
inline constexpr int kLoaderCount = sizeof(kLoaderNames) / sizeof(const char*);

// Whether a stage has the pixels of one tap, or of terms that are channels of one tap, and its
// weights.
constexpr bool is_one_tap(Loader loader) {
  return loader == Loader::kIm2col || loader == Loader::kGather;
}

// Whether a loader has kernels of a tile. From other tiles hardly any layer gains.
constexpr bool has_tile(Loader loader, const TileShape& shape) {
  if (loader == Loader::kGather) {
    return !shape.halves && !shape.has_pixel_rows() && shape.teams == 2;
  }
  if (shape.halves) return true;
  if (loader == Loader::kIm2col) return !shape.has_pixel_rows();
  return loader == Loader::kHalo ? shape.channels <= 64 : shape.teams == 2;
}

// How sums reach the output.
enum class Store : uint8_t {
  kRows,     // channels-last, by TMA: positions are the output's pixels
  kPixels,   // channels-last, by threads, a pixel's channels 16 bytes at a time
  kPlanes,   // channels-first, by threads
  kCluster,  // sums are split among the thread blocks of a cluster, which add them up; any layout
};
inline constexpr int kStoreCount = 4;

// Where results of the gather loader go.
constexpr bool gathers_to(Store store) { return store == Store::kRows || store == Store::kPlanes; }

// Shared memory that a warpgroup's results pass through: slabs of 64 positions by 128 bytes of
// channels, or planes that are a little further apart.
constexpr int staging_bytes(Store store) {
  return store == Store::kPlanes ? 18 << 10 : store == Store::kCluster ? 0 : 16 << 10;
}

// Whether such kernels may transpose planes: the same kernels load halos.
constexpr bool has_planes(Loader loader, Store store, const TileShape& shape) {
  return !is_one_tap(loader) && (store == Store::kPlanes || store == Store::kCluster) &&
         has_tile(Loader::kPlanes, shape);
}

// Whether many warps write stages: two warpgroups, of a block that is alone.
constexpr bool writes_stages(Loader loader, Store store, const TileShape& shape) {
  return loader == Loader::kGather || has_planes(loader, store, shape);
}

// Whether thread blocks may share the steps of tiles (stream_k.cuh). With im2col it gains nothing:
// its tiles ask L2 for more than it gives, so that others get what idle multiprocessors leave.
constexpr bool may_share_tiles(Loader loader) { return !is_one_tap(loader); }

// Whether the planner splits sums of such a tile in a cluster: a block's stages have room for them,
// and its warpgroups channels. With other loaders, and of halves but with im2col, it gains nothing.
constexpr bool has_clusters(Loader loader, const TileShape& shape) {
  const bool gains = loader == Loader::kIm2col ||
                     (may_share_tiles(loader) && !shape.halves && has_tile(loader, shape));
  return gains && shape.pixels * shape.channels <= 128 * 128 &&
         shape.channels >= kInstructionRows * shape.multipliers();
}

// What is seldom asked for has no kernels without an epilogue.
constexpr bool is_fused(Loader loader, Store store, bool stream_k, bool has_epilogue) {
  return has_epilogue || stream_k || store == Store::kCluster ||
         (store == Store::kPixels && loader == Loader::kIm2col);
}

struct Tile {
  Loader loader;
  int shape;      // of kTileShapes
  int row_bytes;  // of channels, of a position in a stage: 32, 64 or 128
  // Whether pixels come as float32, of half a row, and warps halve them in shared memory
  // (halve.cuh). Else what has halves comes with both, side by side.
  bool halves_pixels;
  int splits;
  bool stream_k;  // blocks share the steps of some tiles: chunks of channels (stream_k.cuh)
  Store store;
  bool weights_as_stored;  // an input gradient's: the instruction transposes them

  int64_t pitch, period;  // columns and rows of an image's positions, or of a strip's
  int64_t stage_pitch;    // rows of a stage from one row of positions to the next
  int64_t strips;         // of an image,
  int64_t strip_columns;  // of so many columns of the output each
  int row_boxes;          // of planes, that cover a row of positions,
  int plane_boxes;        // and a stage
  int plane_slots;        // of a warp that transposes boxes
  int residue_bits;       // of channels, by where in 16 bytes their planes begin
  int most_shift;         // pixels between the start of a box and that of its row, at most
  int64_t halo;           // positions of a stage before the tile's first
  int64_t span;           // positions of a stage beside the tile's
  int copies, copy_rows;  // a stage's pixels come in so many copies of so many rows,
  int copy_positions;     // each for so many positions;
  bool copies_strips;     // each of them is a row of a strip,
  bool boxed;             // of eight columns, whose halo is not computed
  int x_bytes, w_bytes;   // of a stage
  int w_copy_channels;    // of the output, that a copy of weights brings
  int x_stages, w_stages;
  int chunks;        // of channels, a stage each
  int padded_terms;  // elements of all chunks
  int w_steps;       // stages of weights that a tile multiplies
  // Whether weights stay: each step has a stage of its own, which is loaded once for all tiles of a
  // thread block.
  bool keeps_weights;
  int64_t tiles_m, tiles_k, phases;

  constexpr const TileShape& kind() const { return kTileShapes[shape]; }
  int threads() const { return kind().threads(writes_stages(loader, store, kind())); }
  // Rows of a stage from eight positions to the next eight.
  int64_t group_rows() const { return boxed ? stage_pitch : kGroupPositions; }
  int pixel_row_bytes() const { return halves_pixels ? row_bytes / 2 : row_bytes; }
  // From a pixel's high halves to its low ones.
  int low_bytes() const { return halves_pixels ? x_bytes / 2 : row_bytes / 2; }
  int64_t items() const { return tiles_m * tiles_k * phases; }
  int64_t image() const { return pitch * period * strips; }
  // Tiles whose steps so many blocks share: all that are not whole waves, and a wave of others.
  int64_t shared_tiles(int64_t blocks) const {
    if (!stream_k) return 0;
    return items() < blocks ? items() : items() % blocks + blocks;
  }
  // Steps of these that a block computes at most.
  int64_t shared_steps(int64_t blocks) const {
    return (shared_tiles(blocks) * chunks + blocks - 1) / blocks;
  }
};

// The tile that a plan stands for.
struct MainLoopPlan;
Tile make_tile(const Packed& problem, const MainLoopPlan& plan, int64_t splits);
// Shares out a block's shared memory among stages; false if they are too few.
bool choose_stages(int shared_bytes, Tile& tile);
bool is_legal(const Packed& problem, const Tile& tile);
int shared_bytes(const Tile& tile);
// Bytes of the workspace for what so many blocks leave of tiles that they share.
int64_t partial_bytes(const Tile& tile, int64_t blocks);
// Output channels of whose weights all tiles of the same positions take copies.
int64_t copied_channels(const Packed& problem, const Tile& tile);
// The weight as the tile's kernel reads it, and bytes of the workspace if it is packed for that.
PackedWeight weight_of(const Packed& problem, const Tile& tile);
int64_t packed_weight_bytes(const Packed& problem, const Tile& tile);
// Whether tiles leave out slices of taps that meet none of the input, and which part of all slices
// of taps they are left with, in the mean of the slices of the output.
bool leaves_out_slices(const Packed& problem, const Tile& tile);
double met_slices(const Packed& problem);
// Behind the last pixel of an axis, where the first tap of its last output pixel is.
int64_t upper_corner(int64_t pixels, int64_t outputs, int64_t stride, int64_t pad);
// Elements from one pixel of the output to the next, if they all are equally far apart.
int64_t pixel_stride(const Forward& problem);
// Whether pixels of the output are not side by side with their channels.
bool stores_planes(const Forward& problem);
// Whether the pixels of all images follow each other, `pixel` elements apart.
bool pixels_follow(const Shape5& sizes, const Shape5& strides, int64_t pixel);

}  // namespace customconv::implicit_gemm::sm90
