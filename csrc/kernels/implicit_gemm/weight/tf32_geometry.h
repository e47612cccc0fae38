// How a weight gradient of float32 tensors is cut into matrix products of TF32.
//
// The matrix instruction takes such operands with pixels side by side, channels-last tensors have
// channels side by side. So x goes through registers: threads read single elements of its boxes,
// and a tap is other pixels of the same box. dy is transposed in shared memory, in place, once for
// all the taps and input channels of a thread block.
//
// The instruction takes eight pixels, in any order that both operands have: of four lines two
// columns. Lines are rows of an image, or a row of several images. A thread stays on its line: what
// it has read for a tap serves the tap beside it some columns further on.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace customconv::implicit_gemm::weight::tf32 {

constexpr int kBlock = 64;   // channels of a product, of both tensors
constexpr int kXBlock = 32;  // channels of a box of x: a row with the 128-byte swizzle
constexpr int kXRowBytes = 4 * kXBlock;
constexpr int kYRowBytes = 4 * kBlock;
constexpr int kLines = 4;
constexpr int kPair = 2;                         // columns
constexpr int kUnitBytes = kLines * kYRowBytes;  // what is transposed at a time
constexpr int kMostStages = 6;
constexpr int kBarrierBytes = 256;
constexpr int kMostBox = 256;  // pixels of a box in each dimension
constexpr int kMostStep = 8;   // pixels from one of a box to the next

struct Kernel {
  const char* name;
  int warpgroups;
  int taps;    // of a filter row
  int blocks;  // of output channels
  int step;    // columns of x between neighbouring columns of dy, where taps are neighbours; 0: any

  constexpr int products() const { return taps * blocks; }
  constexpr int threads() const { return (warpgroups + 1) * 128; }
  // Columns of x that a thread holds for two of dy, and those that it reads for the next two.
  constexpr int window() const { return step == 0 ? kPair * taps : taps + step; }
  constexpr int fresh() const { return step == 0 ? window() : kPair * step; }
};

inline constexpr Kernel kKernels[] = {
    {"tf32 3 x 3 taps", 3, 3, 1, 1},         // three taps of three filter rows
    {"tf32 3 x 3 taps by two", 3, 3, 1, 2},  // the same of a stride of two
    {"tf32 3 x 3 taps by any", 3, 3, 1, 0},  // other strides, and dilations
    {"tf32 3 x 192", 3, 1, 3, 0},            // a single tap
    {"tf32 2 x 256", 2, 1, 4, 0},
    {"tf32 2 x 128", 2, 1, 2, 0},
    {"tf32 2 x 64", 2, 1, 1, 0},
};
constexpr int kKernelCount = sizeof(kKernels) / sizeof(kKernels[0]);

// Bits of a plan's variant beside the kernel.
constexpr int kVariantKernels = 8;
constexpr int kAlongK = 8;     // warpgroups are output channels,
constexpr int kAlongC = 16;    // or input channels, else rows of the filter
constexpr int kByImages = 64;  // lines are images, else rows
constexpr int kTwins = 128;    // two thread blocks, a cluster, share boxes of dy

struct Tile {
  int kernel = 0;
  bool by_images = false, twins = false;
  int along_k = 1, along_c = 1;               // warpgroups that have channels of their own
  int images = 1, rows = 1, columns = kPair;  // of output pixels
  int64_t splits = 1;

  // What follows from that.
  int filter_rows = 1;                // of a thread block
  int chunks = 1;                     // of a filter row's taps
  int x_rows = 1, x_columns = 1;      // of a box
  int row_step = 1, column_step = 1;  // of a box, from an output pixel to the next
  int step_h = 1, step_w = 1;         // of the image, from one of a box to the next
  int line_pitch = 1;                 // pixels of a box from a line to the next
  int64_t x_box_bytes = 0, y_box_bytes = 0, stage_bytes = 0;
  int stages = 0;
  int64_t tiles_n = 1, tiles_p = 1, tiles_q = 1;
  int64_t blocks_k = 1, blocks_c = 1, filter_sets = 1;  // thread blocks in each dimension

  const Kernel& kind() const { return kKernels[kernel]; }
  int x_boxes() const { return along_c * (kBlock / kXBlock); }
  int y_boxes() const { return along_k * kind().blocks; }
  int64_t tiles() const { return tiles_n * tiles_p * tiles_q; }
  int pixels() const { return images * rows * columns; }
  // Of a thread block, also of channels and taps that do not exist.
  int64_t sums() const { return int64_t{kind().warpgroups} * kind().products() * kBlock * kBlock; }
};

// A single tap of dense images is a product of matrices: its pixels in two columns, or if they are
// odd in those of the images.
ConvProblem as_columns(ConvProblem p);

// The tile of a variant, `pixels` being rows, columns and images; its stages are 0 where it is
// none, or does not fit so much shared memory.
Tile make_tile(const ConvProblem& p, int variant, const int (&pixels)[3], int64_t splits,
               int64_t shared_bytes);
Tile tile_of(const ConvProblem& p, const ConvPlan& plan);
int shared_bytes(const Tile& t);

// Thread blocks that share a part of the pixels.
int64_t blocks_of(const ConvProblem& p, const Tile& t);
// As of 16-bit elements (geometry.h).
bool is_exact(const ConvProblem& p, const Tile& t);
bool is_direct(const ConvProblem& p, const Tile& t);

}  // namespace customconv::implicit_gemm::weight::tf32
