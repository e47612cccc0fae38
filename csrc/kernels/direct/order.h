// How the family's threads are laid over its outputs; the planner chooses, the kernels follow.
#pragma once

#include <cstdint>

#include "plan/payload.h"
#include "plan/problem.h"

namespace customconv::direct {

constexpr int kBlock = 256;

// What neighbouring threads differ in.
enum class Order : int { kPixels = 0, kChannels = 1 };

struct DirectPlan {
  static constexpr PlanKind kKind = PlanKind::direct;
  Order order = Order::kPixels;
  bool wide = false;  // 64-bit offsets, which volumes always have
};

// Output channels that a block of a weight gradient takes at a time: in NHWC a line of them.
constexpr int kWgradChannels = 32;

// Blocks over the weights: of one weight each, or of the weights of kWgradChannels channels.
inline int64_t wgrad_blocks(const ConvProblem& p, Order order) {
  const int64_t channels = order == Order::kChannels ? kWgradChannels : 1;
  return ceil_divide(p.K, channels) * p.group_C() * p.T * p.R * p.S;
}

// Pixels that a weight gradient sums over.
inline int64_t wgrad_pixels(const ConvProblem& p) { return p.N * p.O * p.P * p.Q; }

}  // namespace customconv::direct
