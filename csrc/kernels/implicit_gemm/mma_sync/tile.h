// How a convolution is cut into matrix products; the planner chooses, the kernel follows.
//
// A block of threads computes a tile: some output pixels by some output channels. It keeps in
// shared memory the part of the input that some channels of a tile need, with the halo, and all
// taps read it where it lies. How depends on the input's layout (`Fetch`):
//
// Boxes, for channels-last: a plane of pixels, 128 bytes of channels each; a tap is a plane that
// starts some pixels later. Taps share a plane where they are whole strides apart: with stride 1
// and dilation 1 all of them do; where the halo is too large, each has a plane of its own.
//
// Rows, for all else: of each channel the rows of the image that the tile needs, or images as they
// are. Threads fetch single pixels from there, so that any tap may begin anywhere.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/forward.h"

namespace customconv {
struct LaunchShape;
}

namespace customconv::implicit_gemm::mma_sync {

constexpr int kRowBytes = 128;    // of a pixel or an output channel in shared memory
constexpr int kPieceBytes = 32;   // of a row: what one matrix instruction multiplies
constexpr int kBlockPixels = 64;  // that a warpgroup's instructions multiply at a time
constexpr int kMostBlocks = 4;    // of a tile
constexpr int kWarpgroups = 2;    // that multiply; one more loads
constexpr int kThreads = 128 * (1 + kWarpgroups);
constexpr int kRowThreads = 96;  // that copy the input
constexpr int kRowBarrier = 15;  // of theirs
constexpr int kMostStages = 8;
// A slab of planar output: 64 channels by 128 bytes of pixels.
constexpr int kSlabBytes = 64 * kRowBytes;
constexpr int kMostSlabs = 2;                  // that a warpgroup stores at a time
constexpr int kMostPositions = 768;            // of a plane: two of them fill the shared memory
constexpr int kMostCopies = 768;               // of rows of a channel
constexpr int kCopiesBytes = kMostCopies * 8;  // where they come from
constexpr int kBarrierBytes = 1024;            // and what aligns the rest
constexpr int64_t kTooMany = 1 << 20;          // positions: a plane that no memory holds
constexpr int kMostFlat = 1024;                // channels times taps, where they are one dimension
constexpr int kFlatBytes = kMostFlat * 4;
constexpr int kSplitColumns = 32;  // channels of a warpgroup's block that are added up at a time

struct Kernel {
  const char* name;
  int channels;  // of a tile: columns of its products
  int pixels;    // of a tile

  constexpr int blocks() const { return pixels / kBlockPixels; }
};

inline constexpr Kernel kKernels[] = {
    {"256 pixels x 128", 128, 256},  // the most products for the bytes loaded
    {"256 pixels x 64", 64, 256},    // few output channels
    {"256 pixels x 32", 32, 256},    // fewer
    {"128 pixels x 128", 128, 128},  // small images
    {"128 pixels x 64", 64, 128},    // and few tiles
};
inline constexpr int kKernelCount = sizeof(kKernels) / sizeof(kKernels[0]);

// How a tile's pixels lie in the image.
enum class Shape : int {
  kSquares,  // blocks of 8 x 8
  kLines,    // rows of equal length
  kRun,      // whole rows that follow each other along the images
};

// Where the matrix instruction gets its pixels.
enum class Fetch : int {
  kShared,    // boxes: 16 bytes of channels at a time
  kPieces,    // rows, a single tap: pairs of pixels, several pieces of channels at a time
  kTaps,      // rows, stride 1: pairs of pixels, several taps at a time
  kOddTaps,   // the same where the first pair begins at an odd pixel of a row
  kElements,  // rows, any stride: pixel by pixel
  kFlat,      // the same where channels and taps are one dimension: few channels
};
inline constexpr int kFetchCount = 6;

// Weights are matrices whose rows are channels, else units of a piece of one tap.
constexpr bool has_matrix(Fetch fetch) {
  return fetch == Fetch::kShared || fetch == Fetch::kPieces;
}
// Whether there is such a kernel: where threads fetch single pixels into registers, sums of larger
// tiles would leave too few.
constexpr bool has_kernel(const Kernel& kernel, Fetch fetch) {
  return fetch == Fetch::kShared || kernel.blocks() == kWarpgroups;
}

// Products whose weights are a stage, at most.
constexpr int group_products(Fetch fetch) {
  if (has_matrix(fetch)) return kRowBytes / kPieceBytes;
  return fetch == Fetch::kTaps || fetch == Fetch::kOddTaps ? 3 : 2;
}
// Channels of a slab.
constexpr int slab_channels(int channels) { return channels < 64 ? channels : 64; }

// How many taps of a row are a group. Three share pixels; longer rows are cut where a pair of
// pixels begins.
constexpr int taps_of_group(Fetch fetch, int taps) {
  return taps <= group_products(fetch) ? taps : 2;
}

// Along one dimension of the image.
struct Axis {
  int planes;  // tap i belongs to plane i % planes
  int step;    // in a plane, pixels from one tap to the next
  int reach;   // pixels from the first tap of a plane to its last, at most
};

// How rows are copied. A plane's rows are counted over the images: every image has `period` of
// them, of which an output row takes `per_output`.
struct Rows {
  bool interleaved;  // channels-last: all channels are one, of wider rows
  int vector;        // bytes that are copied at a time
  bool shifted;      // rows begin anywhere: threads put vectors together from aligned words
  int slack;         // pixels before the first that a tap reads, which align the copies
  int pairs;         // of pixels in a row of output
  int per_output;    // rows of a plane from one output row to the next
  int row_step;      // rows of the image from one row of a plane to the next
  int period;
  int channel_bytes;  // of a stage
};

struct Tile {
  int rows, columns, images;  // of output pixels
  Shape shape;
  Fetch fetch;
  Axis h, w;
  int pitch;       // pixels in a row of a plane
  int plane_rows;  // rows in a plane; of boxes, in that of one image
  int positions;   // pixels of a plane
  int kernel;      // of kKernels
  int x_stages, w_stages;
  Rows row;
  int splits;
  bool planes_first;  // tiles of the same output channels follow each other, image by image

  int64_t tiles_k, tiles_q, tiles_p, tiles_n;
  int pieces;       // of a group's channels, or with its taps: kPieceBytes each
  int chunk;        // of them, in a step
  int stage_bytes;  // of the input

  constexpr const Kernel& kind() const { return kKernels[kernel]; }
  bool is_flat() const { return fetch == Fetch::kFlat; }
  int64_t tiles() const { return tiles_k * tiles_q * tiles_p * tiles_n; }
  int chunks() const { return (pieces + chunk - 1) / chunk; }
  int steps() const { return chunks() * h.planes * w.planes; }
  // Bytes of weights that one group of products reads.
  int weight_bytes() const { return kind().channels * kPieceBytes * group_products(fetch); }
};

// The tile that a plan stands for. The problem has one phase, of all taps, and is as one row if it
// can be.
struct MmaSyncPlan;
Tile make_tile(const Forward& problem, const MmaSyncPlan& plan, int64_t splits);
// Whether it can be computed, if there is memory enough.
bool is_legal(const Forward& problem, const Tile& tile);
// Shares `room` bytes of shared memory out between the stages of the input and of the weights;
// false where they are too few.
bool choose_stages(const Forward& problem, int64_t room, Tile& tile);
LaunchShape shape_of(const Forward& problem, const Tile& tile);

// Where the weight is a matrix, see packed_matrix. Else, for each tile's channels k, units
// (piece, r, s) follow each other: of a piece, both halves of 16 bytes, each of all k.
PackedWeight packed_weight(const Forward& problem, const Tile& tile);

// Sums of all splits, kept in memory until a second kernel adds them up.
inline int64_t partial_bytes(const Tile& t) {
  return t.splits == 1 ? 0 : t.tiles() * t.splits * t.kind().pixels * t.kind().channels * 4;
}
// Parts of a tile's sums: some channels of a block of pixels, which a warpgroup adds up at a time.
constexpr int split_parts(const Kernel& kernel) {
  return kernel.blocks() * kernel.channels / kSplitColumns;
}

// What rows are copied from: where channels are interleaved, an image of one channel.
ConvProblem source_problem(ConvProblem problem, const Tile& tile);

// Whether the output is planes of pixels.
bool stores_planes(const ConvProblem& problem);

// Shared memory that results pass through on their way out, of all that multiply.
int staging(const Forward& problem, const Tile& tile);

// Bytes of shared memory that a warp's channels-last results pass through.
constexpr int warp_staging(int64_t element_size, int channels) {
  return element_size == 2 ? 16 * (channels * 2 + 16) : 0;
}

}  // namespace customconv::implicit_gemm::mma_sync
