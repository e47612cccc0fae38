// How a weight gradient is cut into matrix products; the planner chooses, the kernel follows.
//
// The gradient of a tap is a product of two matrices over output pixels: dy, of which a row is the
// output channels of a pixel, and x, moved by the tap. Boxes of both lie in shared memory with
// their channels side by side, 64 to a row, pixels one below the other, and the matrix instruction
// transposes them. A tap is a matrix of x that starts some pixels later, so that all taps read one
// box with its halo; taps of a filter row, that are a constant number of pixels apart, are the
// columns of one instruction, or else several blocks of channels are. Warpgroups have different
// rows of the filter or different output channels.
//
// The instruction takes 16 pixels: two runs of eight in an image's row, any distance apart.
#pragma once

#include <cstdint>

#include "plan/payload.h"
#include "plan/problem.h"

namespace customconv {
struct LaunchShape;
}

namespace customconv::implicit_gemm::wgrad {

constexpr int kBlock = 64;             // channels of a box: a row of shared memory
constexpr int kRowBytes = 2 * kBlock;  // with the 128-byte swizzle
constexpr int kRun = 8;                // pixels that follow each other in a row of the image
constexpr int kMostStages = 6;
constexpr int kBarrierBytes = 128;
constexpr int kMostBox = 256;       // pixels of a box in each dimension
constexpr int kMostStep = 8;        // pixels from one of a box to the next
constexpr int kFillers = 128;       // threads that fill boxes
constexpr int kFillersBarrier = 1;  // 0 is __syncthreads's

// Columns are blocks of 64: input channels of a tap.
struct Kernel {
  const char* name;
  int warpgroups, blocks;

  constexpr int threads(bool fills) const { return warpgroups * 128 + (fills ? kFillers : 32); }
};

inline constexpr Kernel kKernels[] = {
    {"3 x 192", 3, 3},  // three taps of three filter rows, for each element that is loaded
    {"2 x 128", 2, 2},  // fewer channels or taps
    {"2 x 64", 2, 1},   // fewest
    {"2 x 192", 2, 3},  // three taps by 128 output channels, or by fewer rows
};
constexpr int kKernelCount = sizeof(kKernels) / sizeof(kKernels[0]);

constexpr int kMostClustered = 8;  // thread blocks

// How threads fill boxes where TMA can't bring them: with 16 bytes of a pixel at a
// time, or where each channel is a plane, with pixels' single channels, or pairs of neighbours'
// that are a word.
enum class Fill : uint8_t { kNone, kUnits, kPixels, kPairs };
// What is loaded at a time of a row. It may begin with the second of a pair.
constexpr int row_places(Fill fill, int pixels) {
  return fill == Fill::kPairs ? (pixels + 2) / 2 : pixels;
}

struct Tile {
  int kernel = 0;
  bool by_taps = false;                      // what an instruction's columns are
  int along_k = 1;                           // warpgroups that have output channels of their own
  int images = 1, rows = 1, columns = kRun;  // of output pixels
  int64_t splits = 1;
  bool clustered = false;  // thread blocks of all splits, also of one, add up their sums and store

  // What follows from that.
  Fill fill_x = Fill::kNone, fill_y = Fill::kNone;  // planes are transposed in both, or in neither
  int filter_rows = 1;                              // of a thread block
  int tap_apart = 1;                                // taps of a chunk are so many apart
  int tap_step = 0;                                 // and so many pixels of a box
  int class_chunks = 1, chunks = 1;  // of a filter row: of taps that share boxes, and of all
  int channel_blocks = 1;            // of a chunk
  int x_rows = 1, x_columns = kRun;  // of a box
  int row_step = 1;                  // rows of a box from an output row to the next
  int step_h = 1;                    // rows of the image from one of a box to the next
  int64_t x_box_bytes = 0, y_box_bytes = 0, stage_bytes = 0;
  int stages = 0;
  int64_t tiles_n = 1, tiles_p = 1, tiles_q = 1;
  int64_t blocks_k = 1, blocks_c = 1, filter_sets = 1;  // thread blocks in each dimension

  const Kernel& kind() const { return kKernels[kernel]; }
  int64_t tiles() const { return tiles_n * tiles_p * tiles_q; }
  int pixels() const { return images * rows * columns; }
  // Bytes of the tables of places in boxes that are transposed.
  int table_bytes() const {
    if (!transposes()) return 0;
    return (row_places(fill_x, x_columns) * x_rows + row_places(fill_y, columns) * rows) * images *
           8;
  }
  bool transposes() const { return fill_y == Fill::kPixels || fill_y == Fill::kPairs; }
  bool fills() const { return fill_x != Fill::kNone || fill_y != Fill::kNone; }
  int threads() const { return kind().threads(fills()); }
  // Sums of a thread block, including those of channels and taps that do not exist.
  int64_t sums() const { return int64_t{kind().warpgroups} * kind().blocks * kBlock * kBlock; }
  // Whether stages can hold them, where a cluster's blocks leave them to each other.
  bool holds_sums() const { return stages * stage_bytes >= sums() * 4; }
  bool exists() const {
    return stage_bytes > 0 && splits <= tiles() &&
           (!clustered || (holds_sums() && splits <= kMostClustered));
  }
};

struct BoxesPlan {
  static constexpr PlanKind kKind = PlanKind::implicit_gemm_wgrad_boxes;
  int kernel = 0;                                            // of kKernels
  bool by_taps = false, along_k = false, clustered = false;  // see Tile
  int tile[3] = {};                                          // rows, columns, images
  int stages = 0;
};

// Whether channels lie side by side in both tensors.
bool has_pixels(const ConvProblem& p);
Fill fill_of_x(const ConvProblem& p);
Fill fill_of_y(const ConvProblem& p);

// A single tap of dense images is a product of matrices: one image of one row. One of dense planes:
// each image is one row.
ConvProblem as_one_row(ConvProblem p);

// Whether there are such tiles, of whatever size.
bool is_variant(const ConvProblem& p, const BoxesPlan& plan);

// The tile that a plan stands for; its stages have no bytes where there is none.
Tile make_tile(const ConvProblem& p, const BoxesPlan& plan, int64_t splits);
// As many stages as so much shared memory holds.
void choose_stages(int64_t shared_bytes, Tile& t);
LaunchShape shape_of(const ConvProblem& p, const Tile& t);

// Thread blocks that share a part of the pixels.
int64_t blocks_of(const ConvProblem& p, const Tile& t);
// Whether sums meet no pixel of x but those that their taps meet. Else zeros of dy, of pixels that
// do not exist, meet some more.
bool is_exact(const ConvProblem& p, const Tile& t);

}  // namespace customconv::implicit_gemm::wgrad
