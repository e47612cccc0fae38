// Direct convolution: one output element a thread (a block for a weight gradient), for everything.
#include "plan/plan.h"

#include <algorithm>

namespace customconv::direct {

namespace {

constexpr int kBlock = 256;

// Share of the CUDA cores' peak that one multiply-add per two loads reaches; measured, see
// docs/kernels/direct.md.
constexpr double kEfficiency = 0.06;
constexpr double kLaunchMs = 0.003;

// Pixels that one block of a weight gradient adds up before the sum is cut into parts.
constexpr int64_t kPixelsPerSplit = 32768;
constexpr int64_t kMostSplits = 64;
// Enough blocks to fill any GPU; beyond it, cutting sums gains nothing.
constexpr int64_t kFullGrid = 4096;

const char* can_implement(const ConvProblem& problem, const DeviceProperties&) {
  return has_int32_coordinates(problem) ? nullptr : "image coordinates pass 2^31";
}

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// By the shape alone, so that the same sums are formed on every device.
int64_t wgrad_splits(const ConvProblem& p) {
  const int64_t by_pixels = p.N * p.P * p.Q / kPixelsPerSplit;
  const int64_t by_grid = ceil_divide(kFullGrid, p.w_count());
  return std::clamp<int64_t>(std::min(by_pixels, by_grid), 1, kMostSplits);
}

ConvPlan propose(const ConvProblem& problem, const DeviceProperties& device) {
  ConvPlan plan;
  plan.block = kBlock;
  plan.wide_index = needs_wide_index(problem);
  plan.variant = plan.wide_index ? "64-bit" : "32-bit";
  int64_t launches = 1;
  switch (problem.pass) {
    case Pass::kFprop:
      plan.grid[0] = std::min(ceil_divide(problem.y_count(), kBlock), device.max_grid_x);
      break;
    case Pass::kDgrad:
      plan.grid[0] = std::min(ceil_divide(problem.x_count(), kBlock), device.max_grid_x);
      break;
    case Pass::kWgrad:
      plan.grid[0] = std::min(problem.w_count(), device.max_grid_x);
      plan.splits = wgrad_splits(problem);
      plan.grid[1] = plan.splits;
      if (plan.splits > 1) {
        plan.workspace_bytes = plan.splits * problem.w_count() * accumulator_size(problem.dtype);
        launches = 2;
      }
      break;
  }
  // Threads that have nothing to do still take their turn: a grid under one wave runs no faster.
  const double threads = static_cast<double>(plan.grid[0] * plan.grid[1]) * kBlock;
  const double full = 2048.0 * device.sm_count;
  const double fill = std::min(1.0, threads / full);
  double macs = problem.macs();
  if (problem.pass == Pass::kDgrad) {
    // Every tap is tried at every input pixel, also those that the stride skips.
    macs = static_cast<double>(problem.x_count()) *
           static_cast<double>(problem.group_K() * problem.R * problem.S);
  }
  const double math_ms = 2e3 * macs / (kEfficiency * fill * device.vector_flops(problem.dtype));
  const double bytes_ms = 1e-6 * problem.least_bytes() / device.bandwidth_gb_s;
  plan.predicted_ms = std::max(math_ms, bytes_ms) + static_cast<double>(launches) * kLaunchMs;
  return plan;
}

}  // namespace

extern const Family family;
const Family family{"direct", can_implement, propose};

}  // namespace customconv::direct
