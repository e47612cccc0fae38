// What the price of a plan of grouped is counted from: instructions of a warp, as the kernels have
// them, and how threads bring pixels.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/grouped/geometry.h"
#include "plan/hardware.h"

namespace customconv::grouped {

constexpr double kSlotInstructions = 40;     // of 32 slots: where their pixels are
constexpr double kVectorInstructions = 12;   // brought: of 32 units
constexpr double kElementInstructions = 12;  // the same, of 32 elements
constexpr double kStepInstructions = 6;      // of products, besides operands: a table, the loop
constexpr double kOperandInstructions = 2;   // its address, the load
constexpr double kOutputInstructions = 30;   // a vector of channels, or a pixel: where, the store
constexpr double kTileInstructions = 100;    // and phase: what it is, barriers
constexpr double kSumInstructions = 2;       // of a product's four: zeroed, staged

// The same of boxes.
constexpr double kBoxOperandInstructions = 5;  // its swizzled address, the load
constexpr double kBoxOutputInstructions = 4;   // of a lane's pixel
constexpr double kWeightInstructions = 60;     // brought: of a lane's sixteen bytes, by divisions
constexpr double kPieceInstructions = 12;      // brought by threads: of an element of a piece
constexpr double kTurnInstructions = 160;      // of 2 KB of strips
constexpr double kStoredVectorInstructions = 30;  // of planes
// In a weight gradient, of a product's four sums: left as they are, exchanged, stored in the
// result.
constexpr double kLeftInstructions = 8;
constexpr double kExchangedInstructions = 30;
constexpr double kStoredInstructions = 80;
constexpr double kClusterWaits = 2;  // until all blocks have their sums, and until all are read

// What threads that bring boxes and store planes cost: a warp's instructions, lines that the
// first-level cache looks for, bytes to and from the second-level cache, and how often a warp
// waits.
struct ByThreads {
  double issues = 0, lines = 0, bytes = 0, waits = 0;
};
// Rows of an image, with so many pixels each, of so many channels. `stride`: of these pixels.
inline void count_rows(ByThreads& all, int size, double rows, double pixels, double channels,
                       int64_t stride) {
  const double row_bytes = pixels * size * static_cast<double>(stride);
  all.lines += rows * channels * std::min(1 + row_bytes / hardware::kSharedBytesPerClock, pixels);
  all.bytes += rows * channels *
               std::min(hardware::kSectorBytes + row_bytes, pixels * hardware::kSectorBytes);
}
inline void count_boxes(ByThreads& all, int size, const Shape4& strides, int rows, int pixels,
                        int64_t pieces) {
  const double elements = static_cast<double>(kPieceBytes) / size;
  count_rows(all, size, rows, pixels, static_cast<double>(pieces) * elements, strides[3]);
  // A lane brings a piece's elements of two pixels at a time.
  const double turns = std::ceil(rows * pixels / 64.0) * static_cast<double>(pieces);
  all.issues += turns * 2 * elements * kPieceInstructions;
  all.waits += std::ceil(turns / (box_producers(size) / 32));
}

// Strips that warps turn into boxes.
inline void count_strips(ByThreads& all, const Strips& s, int images) {
  const double part = 16 * kBoxRowBytes;  // bytes
  const double bytes = s.brought_bytes(images);
  const double turns = bytes / part;
  all.issues += turns * kTurnInstructions;
  all.lines += 2 * bytes / kBoxRowBytes;
  all.waits += std::ceil(turns / (kMostThreads / 32)) / hardware::kStepsOfWait;
}

}  // namespace customconv::grouped
