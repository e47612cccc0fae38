// How a weight gradient is cut into matrix products whose one operand, x, goes through registers:
// of float32 in TF32, and of few input channels in 16 bits too.
//
// The matrix instruction takes operands of TF32 with pixels side by side, channels-last tensors
// have channels side by side. Threads read single elements of x from its boxes, so that a tap is
// other pixels of the same box, and dy is transposed in shared memory, in place, once for all the
// taps and input channels of a thread block. (16-bit dy is transposed by the instruction.)
//
// A product takes some lines by two columns of pixels. Lines are rows of an image, or a row of
// several images. A thread stays on its line: what it has read for a tap serves the tap beside it
// some columns further on.
//
// Few channels: an instruction's rows are not channels but all the elements of x that a pixel of dy
// meets, tap by tap, as they lie in an image's row.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/wgrad/geometry.h"

namespace customconv {
struct LaunchShape;
}

namespace customconv::implicit_gemm::wgrad::registers {

constexpr int kBlock = 64;   // channels of a product, of both tensors
constexpr int kXBlock = 32;  // channels of a box of x: a row with the 128-byte swizzle
constexpr int kXRowBytes = 4 * kXBlock;
constexpr int kUnitBytes = 1024;  // of dy: the lines of a product, one column
constexpr int kPair = 2;          // columns of a product
constexpr int kMostFew = 8;       // input channels that are few
constexpr int kMostStages = 6;
constexpr int kBarrierBytes = 256;
constexpr int kMostBox = 256;  // elements of a box in each dimension
constexpr int kMostStep = 8;   // pixels from one of a box to the next

struct Kernel {
  const char* name;
  int warpgroups;
  int taps;    // of a filter row
  int blocks;  // of output channels
  int step;    // columns of x between neighbouring columns of dy, where taps are neighbours; 0: any
  bool few = false;
  bool halves = false;  // of float32: x is halved in registers, dy where it is transposed

  constexpr int products() const { return taps * blocks; }
  constexpr int threads() const { return (warpgroups + 1) * 128; }
  // Columns of x that a thread reads for a product, and those that it keeps for the next one.
  constexpr int fresh() const { return step == 0 ? kPair * taps : kPair * step; }
  constexpr int kept() const { return step == 0 ? 0 : taps - step; }
  // Products of each sum that are under way together.
  constexpr int batch() const {
    if (halves) return 2;
    return taps == 1 ? 4 : step > 0 ? 2 : 1;
  }
};

inline constexpr Kernel kKernels[] = {
    {"registers 3 x 3 taps", 3, 3, 1, 1},         // three taps of three filter rows
    {"registers 3 x 3 taps by any", 3, 3, 1, 0},  // the same of any stride and dilation
    {"registers 3 x 192", 3, 1, 3, 0},            // a single tap
    {"registers 2 x 128", 2, 1, 2, 0},
    {"registers 2 x 64", 2, 1, 1, 0},
    {"few 3 x 64", 3, 1, 1, 0, true},
    {"3xTF32 registers 2 x 128", 2, 1, 2, 0, false, true},
    {"3xTF32 registers 2 x 64", 2, 1, 1, 0, false, true},
    {"3xTF32 few 2 x 64", 2, 1, 1, 0, true, true},
};
constexpr int kKernelCount = sizeof(kKernels) / sizeof(kKernels[0]);
constexpr int kFewKernel = 5;  // of few channels: also of 16 bits

struct Tile {
  int kernel = 0;
  int element_bytes = 4;
  bool by_images = false;                     // what lines are, else rows
  int along_k = 1, along_c = 1;               // warpgroups that have channels of their own
  int images = 1, rows = 1, columns = kPair;  // of output pixels
  int64_t splits = 1;
  bool clustered = false;

  // What follows from that.
  bool fills_x = false, fills_y = false;  // a warp does, where TMA can't
  int filter_rows = 1;                    // of a thread block
  int chunks = 1;                         // of a filter row's taps
  int x_rows = 1;                         // of a box
  int64_t x_row_bytes = kXRowBytes;       // of a box
  int row_step = 1, column_step = 1;      // of a box, from an output pixel to the next
  int step_h = 1, step_w = 1;             // of the image, from one of a box to the next
  int64_t line_bytes = kXRowBytes;        // of a box from a line to the next
  int conflicts = 1;  // of banks, as many times as long a warp's reads of x take
  int x_columns = 1;  // of a box; few channels: elements
  int lead = 0;       // few channels: elements in front of the first, for its alignment
  int64_t x_box_bytes = 0, y_box_bytes = 0, stage_bytes = 0;
  int stages = 0;
  int64_t tiles_n = 1, tiles_p = 1, tiles_q = 1;
  int64_t blocks_k = 1, blocks_c = 1, filter_sets = 1;  // thread blocks in each dimension

  const Kernel& kind() const { return kKernels[kernel]; }
  int lines() const { return 16 / element_bytes; }  // of a product
  int x_boxes() const { return kind().few ? 1 : along_c * (kBlock / kXBlock); }
  int y_boxes() const { return along_k * kind().blocks; }
  int64_t y_bytes() const;  // of a stage; of halves the high ones
  int64_t tiles() const { return tiles_n * tiles_p * tiles_q; }
  int pixels() const { return images * rows * columns; }
  // Sums of a thread block, including those of channels and taps that do not exist.
  int64_t sums() const { return int64_t{kind().warpgroups} * kind().products() * kBlock * kBlock; }
  // Whether stages can hold them, where a cluster's blocks leave them to each other.
  bool holds_sums() const { return stages * stage_bytes >= sums() * 4; }
  bool exists() const {
    return stage_bytes > 0 && splits <= tiles() &&
           (!clustered || (holds_sums() && splits <= kMostClustered));
  }
};

// What warpgroups have of their own: rows of the filter, output channels or input channels.
enum class Along : uint8_t { kRows, kK, kC };
struct RegistersPlan {
  static constexpr PlanKind kKind = PlanKind::implicit_gemm_wgrad_registers;
  int kernel = 0;                             // of kKernels
  bool by_images = false, clustered = false;  // see Tile
  Along along = Along::kRows;
  int tile[3] = {};  // rows, columns, images
  int stages = 0;
};

// Rows of the products: a group's input channels, or all that few channels' taps meet.
int64_t product_rows(const ConvProblem& p, const Kernel& kind);

// Whether TMA can read the rows of x, all channels of all pixels.
bool has_whole_rows(const ConvProblem& p);
// Whether x has few channels, side by side in rows that TMA brings, or that need not be
// rounded to TF32, so that a warp can.
bool is_few(const ConvProblem& p);

// A tile has whole pairs of columns; of few channels it also begins at whole 16 bytes of x.
int column_unit(const ConvProblem& p, const Kernel& kind);

// A single tap of dense images is a product of matrices: its pixels in two columns, or if they are
// odd in those of the images.
ConvProblem as_columns(ConvProblem p);

// As of the other kernels (geometry.h).
bool is_variant(const ConvProblem& p, const RegistersPlan& plan);
Tile make_tile(const ConvProblem& p, const RegistersPlan& plan, int64_t splits);
void choose_stages(int64_t shared_bytes, Tile& t);
LaunchShape shape_of(const ConvProblem& p, const Tile& t);
int64_t blocks_of(const ConvProblem& p, const Tile& t);
bool is_exact(const ConvProblem& p, const Tile& t);

}  // namespace customconv::implicit_gemm::wgrad::registers
