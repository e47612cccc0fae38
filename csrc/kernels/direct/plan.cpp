// Direct convolution: one output element a thread (a block for a weight gradient), for everything.
#include <algorithm>

#include "kernels/direct/order.h"

namespace customconv::direct {

namespace {

// Share of the CUDA cores' peak that is reached, by pass; measured, see docs/how/direct.md.
constexpr double kFpropEfficiency = 0.06;
constexpr double kStridedEfficiency =
    0.0075;  // fprop by pixels in NHWC: neighbours load channels apart
constexpr double kDgradEfficiency = 0.045;
constexpr double kWgradEfficiency = 0.018;
// What a result takes besides its products, in products: an element, of wgrad a block.
constexpr double kProductsPerOutput = 22;
constexpr double kProductsPerInput = 27;
constexpr double kProductsPerBlock = 6500;
constexpr double kLaunchMs = 0.003;

// Channels that a sum runs over in NHWC, up to which threads should take neighbouring channels:
// beyond it their weights are too far apart.
constexpr int64_t kFewChannels = 4;

// Pixels that one block of a weight gradient adds up before the sum is cut into parts.
constexpr int64_t kPixelsPerSplit = 32768;
constexpr int64_t kMostSplits = 64;
// Enough blocks to fill any GPU; beyond it, cutting sums gains nothing.
constexpr int64_t kFullGrid = 4096;

const char* can_implement(const ConvProblem& problem, const DeviceProperties&) {
  return has_int32_coordinates(problem) ? nullptr : "image coordinates pass 2^31";
}

// The order in which threads take outputs; it should make neighbours load neighbours.
Order choose_order(const ConvProblem& p) {
  switch (p.pass) {
    case Pass::kFprop: {
      const bool nhwc = dense_layout(p.y_sizes(), p.y_strides) == Layout::kNhwc;
      return nhwc && p.group_C() <= kFewChannels ? Order::kChannels : Order::kPixels;
    }
    case Pass::kDgrad: {
      const bool nhwc = dense_layout(p.x_sizes(), p.x_strides) == Layout::kNhwc;
      return nhwc ? Order::kChannels : Order::kPixels;
    }
    case Pass::kWgrad: {
      const bool nhwc = dense_layout(p.y_sizes(), p.y_strides) == Layout::kNhwc;
      return nhwc && p.K >= kWgradChannels / 4 ? Order::kChannels : Order::kPixels;
    }
  }
  return Order::kPixels;
}

// By the shape alone, so that the same sums are formed on every device.
int64_t wgrad_splits(const ConvProblem& p, int64_t blocks) {
  const int64_t by_pixels = p.N * p.P * p.Q / kPixelsPerSplit;
  const int64_t by_grid = ceil_divide(kFullGrid, blocks);
  return std::clamp<int64_t>(std::min(by_pixels, by_grid), 1, kMostSplits);
}

ConvPlan propose(const ConvProblem& problem, const DeviceProperties& device) {
  ConvPlan plan;
  plan.block = kBlock;
  plan.wide_index = needs_wide_index(problem);
  const Order order = choose_order(problem);
  plan.variant_index = static_cast<int>(order);
  plan.variant = order == Order::kChannels ? "channels" : "pixels";
  double macs = problem.macs();
  double efficiency = kFpropEfficiency;
  int64_t launches = 1;
  int64_t blocks = 0;
  switch (problem.pass) {
    case Pass::kFprop:
      blocks = ceil_divide(problem.y_count(), kBlock);
      macs += static_cast<double>(problem.y_count()) * kProductsPerOutput;
      if (order == Order::kPixels && problem.x_strides[1] == 1 && problem.group_C() > 1) {
        efficiency = kStridedEfficiency;
      }
      break;
    case Pass::kDgrad:
      blocks = ceil_divide(problem.x_count(), kBlock);
      // Every tap is tried at every input pixel, also those that the stride skips.
      macs = static_cast<double>(problem.x_count()) *
             (static_cast<double>(problem.group_K() * problem.R * problem.S) + kProductsPerInput);
      efficiency = kDgradEfficiency;
      break;
    case Pass::kWgrad:
      blocks = wgrad_blocks(problem, order);
      plan.splits = wgrad_splits(problem, blocks);
      if (plan.splits > 1) {
        plan.workspace_bytes = plan.splits * problem.w_count() * accumulator_size(problem.dtype);
        launches = 2;
      }
      macs += static_cast<double>(blocks * plan.splits) * kProductsPerBlock;
      efficiency = kWgradEfficiency;
      break;
  }
  plan.grid[0] = std::min(blocks, device.max_grid_x);
  plan.grid[1] = plan.splits;
  // A grid under one wave runs no faster than a full one.
  const double threads = static_cast<double>(plan.grid[0] * plan.grid[1]) * kBlock;
  const double fill = std::min(1.0, threads / (2048.0 * device.sm_count));
  const double math_ms = 2e3 * macs / (efficiency * fill * device.vector_flops(problem.dtype));
  const double bytes_ms = 1e-6 * problem.least_bytes() / device.bandwidth_gb_s;
  plan.predicted_ms = std::max(math_ms, bytes_ms) + static_cast<double>(launches) * kLaunchMs;
  return plan;
}

}  // namespace

extern const Family family;
const Family family{"direct", can_implement, propose};

}  // namespace customconv::direct
