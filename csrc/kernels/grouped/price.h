// What a plan of grouped costs: constants fitted to times on the H100, and what they are multiplied
// by.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/grouped/geometry.h"
#include "plan/device.h"

namespace customconv::grouped {

// The cost model: a warp's instructions, by purpose.
constexpr double kInstructionsPerSlot = 46.3;    // listed
constexpr double kInstructionsPerVector = 37.2;  // brought
constexpr double kInstructionsPerElement = 24.3;
constexpr double kInstructionsPerStep = 2.73;  // of products, besides operands
constexpr double kInstructionsPerOperand = 1.5;
constexpr double kInstructionsPerOutput = 63.5;  // stored: a vector of channels, or a pixel
constexpr double kInstructionsPerTile = 100;     // and phase, of a warp
constexpr double kInstructionsPerPass = 20;
constexpr double kInstructionsPerSum = 2;   // of a product's four: zeroed, staged
constexpr double kIssueEfficiency = 0.896;  // of an instruction a clock, of each scheduler
// Clocks of a multiprocessor: of a product of 16 by 8 by 32 bytes, and of an operand's 512 bytes
// from shared memory.
constexpr double kProductClocks = 1.9;
constexpr double kOperandClocks = 2.03;
constexpr double kBlockClocks = 3.36e+03;  // that a block waits: until it begins
constexpr double kTileClocks = 2960;       // for a tile, where producers bring it
constexpr double kTurnClocks = 4280;       // and where all threads bring it or a chunk in turns
constexpr double kLaunchMs = 4.9e-3;
constexpr double kPackMs = 0.9e-3;
constexpr double kNextMs = 3.3e-3;  // of a weight gradient's second kernel

// The same of boxes.
constexpr double kBoxInstructionsPerOperand = 5.67;  // besides products
constexpr double kBoxInstructionsPerStep = 43.1;
constexpr double kBoxInstructionsPerOutput = 3.55;  // of a lane's pixel
constexpr double kBoxInstructionsPerTile = 43.2;    // and phase
constexpr double kBoxInstructionsPerWeight = 74.7;  // brought: of four bytes
constexpr double kBoxTileClocks = 720;              // that a block waits for a tile
constexpr double kBoxTurnClocks = 4770;             // the same where there is one stage
constexpr double kBoxBytesPerClock = 29;            // brought to a multiprocessor
// Where threads bring a box: of 32 rows and a piece of their channels, and until those are there.
constexpr double kInstructionsPerBrought = 300;
constexpr double kBroughtClocks = 1300;
// Where they are made of strips: of 2 KB, until a block's warps have made a tile's, and what a
// block without another beside it waits for more.
constexpr double kInstructionsPerTurn = 330;
constexpr double kTurnedClocks = 700;
constexpr double kTurnLatency = 65;
constexpr double kAloneClocks = 2200;
constexpr double kInstructionsPerPlaneVector = 84.2;  // stored
constexpr double kBoxBlockClocks = 1.33e+04;          // until a block begins
constexpr double kGradientBlockClocks = 6300;         // the same in a weight gradient
// There, of a product's four sums: left as they are, exchanged, and stored in the result.
constexpr double kInstructionsPerLeftSum = 16;
constexpr double kInstructionsPerExchangedSum = 80;
constexpr double kInstructionsPerStoredSum = 160;
constexpr double kOperandLatency = 14;  // clocks of a warp, in a weight gradient
constexpr double kProductLatency = 23;

// Of clusters; the share as in implicit_gemm's weight gradients.
constexpr double kClusterBytesPerClock = 13.7;  // of the others' shared memory
constexpr double kClusterMs = 0.45e-3;          // for each of its blocks
constexpr double kClusterShare = 0.834;  // of the multiprocessors, that those above two reach

// What threads that bring boxes and store planes cost: a warp's instructions, lines that the
// first-level cache looks for, bytes to and from the second-level cache, and the clocks until a
// box is there.
struct ByThreads {
  double issues = 0, lines = 0, bytes = 0, waits = 0;

  // With what the threads that multiply issue, and ask of shared memory.
  double clocks(double others, double shared) const {
    return std::max(
        {(issues + others) / (4 * kIssueEfficiency), shared + lines, bytes / kBoxBytesPerClock});
  }
};
// Rows of an image, with so many pixels each, of so many channels. `stride`: of these pixels.
inline void count_rows(ByThreads& all, int size, double rows, double pixels, double channels,
                       int64_t stride) {
  constexpr double kLine = 128, kSector = 32;
  const double row_bytes = pixels * size * static_cast<double>(stride);
  all.lines += rows * channels * std::min(1 + row_bytes / kLine, pixels);
  all.bytes += rows * channels * std::min(kSector + row_bytes, pixels * kSector);
}
inline void count_boxes(ByThreads& all, int size, const Shape4& strides, int rows, int pixels,
                        int64_t pieces) {
  const double channels = static_cast<double>(pieces) * kPieceBytes / size;
  count_rows(all, size, rows, pixels, channels, strides[3]);
  const double turns = std::ceil(rows * pixels / 64.0) * static_cast<double>(pieces);
  all.issues += turns * kInstructionsPerBrought;
  all.waits += std::ceil(turns / (box_producers(size) / 32)) * kBroughtClocks;
}

// Strips that warps turn into boxes; returns the clocks that a block waits for these.
inline double count_strips(ByThreads& all, const Strips& s, int images) {
  const double part = 16 * kBoxRowBytes;  // bytes
  const double bytes = s.brought_bytes(images);
  const double turns = bytes / part;
  all.issues += turns * kInstructionsPerTurn;
  all.lines += 2 * bytes / kBoxRowBytes;
  return kTurnedClocks + std::ceil(turns / 8) * kTurnLatency;
}

// How well a kind of kernel uses the bandwidth, and which share of the shorter times the longest
// does not hide.
struct Overlap {
  double bandwidth, loss;
};
constexpr Overlap kSlotOverlap{0.666, 1};
constexpr Overlap kBoxOverlap{0.894, 0.439};

// Of blocks that keep one of so many multiprocessors busy for so many clocks, and wait for so
// many.
inline double total_ms(const DeviceProperties& d, const Overlap& overlap, double blocks,
                       double clocks, double waits, double sms, double resident, double bytes) {
  const double to_ms = 1 / (d.clock_ghz * 1e6);
  const double busy_ms = std::ceil(blocks / sms) * clocks * to_ms;
  const double waits_ms = std::ceil(blocks / (sms * resident)) * waits * to_ms;
  const double bytes_ms = bytes / (d.bandwidth_gb_s * 1e6 * overlap.bandwidth);
  const double longest = std::max({busy_ms, waits_ms, bytes_ms});
  return longest + overlap.loss * (busy_ms + waits_ms + bytes_ms - longest);
}

}  // namespace customconv::grouped
