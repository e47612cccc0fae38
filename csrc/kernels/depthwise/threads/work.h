// What the planner and the launcher of threads share: the kernels, and how threads share the work.
// Plain C++.
#pragma once

#include <cstdint>

#include "kernels/depthwise/geometry.h"
#include "plan/payload.h"

namespace customconv {
struct LaunchShape;
}

namespace customconv::depthwise::threads {

// What a thread computes, and what its neighbours in a warp do.
enum class Order : uint8_t {
  kPlanes,    // neighbouring columns of a plane
  kChannels,  // four channels of a pixel; neighbours have the next ones
  kElements,  // one channel of a pixel
  kWindows,   // neighbouring columns of a plane, whose windows of the input share registers
  kLines      // windows of one row, of filters of one row
};
inline constexpr int kOrderCount = 5;
constexpr int width_of(Order order) { return order == Order::kChannels ? 4 : 1; }
constexpr bool is_planar(Order order) {
  return order == Order::kPlanes || order == Order::kWindows || order == Order::kLines;
}
// Windows: how rows are aligned, in elements, and where between two such units a window begins.
struct WindowShape {
  int unit, offset;
};
inline constexpr WindowShape kWindowShapes[] = {{4, 0}, {4, 1}, {4, 2}, {4, 3},
                                                {2, 0}, {2, 1}, {1, 0}};
inline constexpr int kWindowShapesCount = 7;
// Columns of taps at a time of filters that no kernel of fewer is for.
inline constexpr int kBandTaps = 8;
// Lines, by their shape: columns of taps at a time, and of which a thread has the gradients.
inline constexpr int kLineTaps[] = {5, kBandTaps};
inline constexpr int kLineGradients[] = {5, 2 * kBandTaps};
inline constexpr int kLineShapesCount = 2;
// Elements of a unit of the input's rows: 16 bytes.
constexpr int line_unit(int64_t element_size) { return 16 / static_cast<int>(element_size); }

// How a thread's outputs, one below the other, share rows of the input.
enum class Walk : uint8_t {
  kNext,    // stride 1: each begins a row further on
  kSecond,  // stride 2
  kHalf,    // transposed, stride 2
  kAny      // any stride and dilation: nothing is shared
};
inline constexpr int kWalkCount = 4;
// Rows of the input that go by where so many outputs meet so many rows of taps.
constexpr int row_count(Walk walk, int taps, int kept) {
  return walk == Walk::kNext     ? kept - 1 + taps
         : walk == Walk::kSecond ? 2 * (kept - 1) + taps
         : walk == Walk::kHalf   ? (kept - 1) / 2 + (taps - 1) / 2 + 1
                                 : kept;
}

// Rows of the filter that a thread holds at a time; longer filters take several turns.
inline constexpr int kTaps[] = {1, 3, 5, kBandTaps};
inline constexpr int kTapsCount = 4;
// Neighbouring columns of a thread. Windows: 16 bytes, but where products count for more than
// bytes.
constexpr int columns_of(Order order, int taps, int64_t element_size) {
  if (order == Order::kLines) return 8;
  if (order != Order::kWindows) return 1;
  return taps == kBandTaps ? 8 : 16 / static_cast<int>(element_size);
}
// Outputs of a thread, one below the other; lines have one.
inline constexpr int kRows[] = {8, 4};
inline constexpr int kRowsCount = 2;

// Columns of the filter whose gradients a thread sums up at a time.
constexpr int gradient_columns(Order order, int taps, int shape) {
  if (order == Order::kLines) return kLineGradients[shape];
  if (order == Order::kChannels) return taps <= 5 ? 3 : 2;
  if (order == Order::kWindows) return taps;
  return taps == 1 ? 3 : taps == kBandTaps ? 4 : taps;
}

struct Variant {
  Order order;
  Walk walk;
  int taps, rows;  // indices into the tables
  int shape;       // of windows and lines

  // Outputs of a thread, one below the other.
  constexpr int kept() const { return order == Order::kLines ? 1 : kRows[rows]; }
  constexpr int index() const {
    const int kind = static_cast<int>(order) * kWalkCount + static_cast<int>(walk);
    return ((kind * kTapsCount + taps) * kRowsCount + rows) * kWindowShapesCount + shape;
  }
  static constexpr Variant at(int index) {
    const int rows = index / kWindowShapesCount, taps = rows / kRowsCount, walk = taps / kTapsCount;
    return {static_cast<Order>(walk / kWalkCount), static_cast<Walk>(walk % kWalkCount),
            taps % kTapsCount, rows % kRowsCount, index % kWindowShapesCount};
  }
};
inline constexpr int kVariantCount =
    kOrderCount * kWalkCount * kTapsCount * kRowsCount * kWindowShapesCount;

constexpr bool has_kernel(const Variant& v) {
  const int taps = kTaps[v.taps], rows = kRows[v.rows];
  const bool next = v.walk == Walk::kNext, any = v.walk == Walk::kAny && taps == 1;
  if (v.order == Order::kWindows) {
    // A filter of a single turn has the offset of half padding, the only one for units of one.
    const auto [unit, offset] = kWindowShapes[v.shape];
    const bool usual = (offset + (taps - 1) / 2) % unit == 0;
    return next && taps > 1 && rows == 4 && (usual || taps == kBandTaps);
  }
  if (v.order == Order::kLines) return any && v.rows == 0 && v.shape < kLineShapesCount;
  if (v.shape != 0) return false;
  const bool shares = v.walk != Walk::kAny && taps > 1;
  if (v.order == Order::kChannels) return any || shares;
  // Few problems are computed a channel at a time: five rows of taps fit most of their filters. A
  // transposed walk takes turns of an even number.
  const bool band = v.walk == Walk::kHalf || (v.order == Order::kPlanes && next);
  const bool fits = taps == 5 ? v.walk != Walk::kHalf : taps == kBandTaps && band;
  return rows == 8 && (any || (shares && fits));
}

struct ThreadsPlan {
  static constexpr PlanKind kKind = PlanKind::depthwise_threads;
  Order order = Order::kPlanes;
  Walk walk = Walk::kAny;
  int taps = 0;              // rows of the filter that a thread holds at a time
  int rows = 0;              // of outputs of a thread
  int unit = 0, offset = 0;  // of windows: see WindowShape
  int columns = 0;           // of lines: columns of taps at a time
  int vectors = 1;           // see Work
};

// The kernel of a plan.
Variant variant_of(const ThreadsPlan& plan);

constexpr int kThreads = 256;
// Blocks that are to share a multiprocessor: what their registers leave room for.
constexpr int blocks_of(Order order, int rows) {
  if (order == Order::kPlanes || order == Order::kElements || order == Order::kLines) return 4;
  return order == Order::kChannels && rows < 8 ? 3 : 2;
}
constexpr int gradient_blocks_of(int taps) { return taps > 5 ? 1 : 2; }

// How blocks of threads share the work.
struct Work {
  int first_row;      // of the first strip of rows: 0, or -1 so that strips begin where taps do
  int64_t strips;     // of rows of an image
  int64_t columns;    // that threads begin at
  int vectors;        // channels: of a block, side by side
  int filter_rows;    // channels: of the filters in shared memory, with zeros
  int stage_columns;  // channels: columns of the filters in shared memory at a time
  int64_t units;      // channels: groups of `vectors`; weight gradient: what has a sum
  int64_t items;      // pixels, or of planes all their strips and columns
  int64_t chunks_r = 1, chunks_s = 1;  // of a weight gradient: of the filter
  int64_t blocks;                      // but for splits
  int shared_bytes;
};
Work work_of(const Geometry& geometry, const Variant& variant, int vectors, int64_t element_size);
LaunchShape shape_of(const ConvProblem& problem, const Work& work, int64_t splits);

}  // namespace customconv::depthwise::threads
