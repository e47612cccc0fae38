// Direct convolution: one output element a thread (a block for a weight gradient), for everything.
#include "plan/plan.h"

#include <algorithm>
#include <cmath>

#include "kernels/direct/order.h"
#include "plan/fields.h"
#include "plan/hardware.h"
#include "plan/planner.h"
#include "plan/price.h"

namespace customconv::direct {

namespace {

// Instructions of a thread.
constexpr double kOutputInstructions = 60;    // to find an output's place and store it
constexpr double kTapInstructions = 15;       // to find a tap's place and whether it is inside
constexpr double kDivisionInstructions = 20;  // to divide by a stride
constexpr double kProductInstructions = 6;    // two loads, their addresses, two conversions
constexpr double kPixelInstructions = 40;     // weight gradient: a pixel's place and its product
constexpr double kHalvingInstructions = 12;   // weight gradient: to halve a block's sums once
constexpr double kBatch = 4;                  // products whose operands are loaded together
constexpr double kChannelBlock = 8;           // channels for which a tap is tried once (direct.cuh)
constexpr double kWarps = kBlock / 32.0;

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
  const int64_t by_pixels = wgrad_pixels(p) / kPixelsPerSplit;
  const int64_t by_grid = ceil_divide(kFullGrid, blocks);
  return std::clamp<int64_t>(std::min(by_pixels, by_grid), 1, kMostSplits);
}

// The work of blocks. `instructions` are those of each thread, and `wavefronts` the lines that the
// loads of each warp meet.
Work blocks_work(int row, const DeviceProperties& d, double blocks, double instructions,
                 double wavefronts, double waits, double bytes) {
  Work work;
  work.row = price_row(PriceKind::kDirect, row);
  work.blocks = static_cast<float>(blocks);
  work.sms = static_cast<float>(d.sm_count);
  work.resident = static_cast<float>(hardware::kWarpsPerSm / kWarps);
  work.busy = static_cast<float>(
      busiest({kWarps * instructions / hardware::kSchedulers, kWarps * wavefronts}));
  work.waits = static_cast<float>(waits);
  work.bytes = static_cast<float>(bytes);
  return work;
}

// Lines of 128 bytes that a load of a warp meets, whose threads' elements are `stride` elements
// apart. A multiprocessor reads one line a clock.
double lines_of_load(const ConvProblem& p, int64_t stride) {
  return std::clamp<double>(static_cast<double>(stride * element_size(p.dtype)) / 4, 1, 32);
}

WorkList count_work(const ConvProblem& p, const DeviceProperties& d, const ConvPlan& plan,
                    Order order, int64_t blocks) {
  // If a channel is a single pixel, neighbouring threads have neighbouring channels in any order.
  const int64_t pixels = p.pass == Pass::kDgrad ? p.D * p.H * p.W : p.O * p.P * p.Q;
  const bool by_channels = order == Order::kChannels || (pixels == 1 && p.pass != Pass::kWgrad);
  const auto taps = static_cast<double>(p.T * p.R * p.S);
  WorkList works;
  switch (p.pass) {
    case Pass::kFprop: {
      const auto channels = static_cast<double>(p.group_C());
      const double products = taps * channels;
      const double lines = by_channels ? 1 + lines_of_load(p, p.w_strides[0])
                                       : 1 + lines_of_load(p, p.x_strides[3] * p.stride_w);
      const double visits = std::ceil(channels / kChannelBlock) * taps;
      works.add(blocks_work(
          0, d, static_cast<double>(blocks),
          kOutputInstructions + visits * kTapInstructions + products * kProductInstructions,
          products * lines, std::max(visits, products / kBatch), p.least_bytes()));
      break;
    }
    case Pass::kDgrad: {
      const auto channels = static_cast<double>(p.group_K());
      const int64_t stride = p.stride_d * p.stride_h * p.stride_w;
      const double products = taps * channels / static_cast<double>(stride);
      const double lines =
          by_channels ? 1 + lines_of_load(p, p.w_strides[1]) : 1 + lines_of_load(p, p.y_strides[3]);
      // A thread also tries the taps that the stride skips.
      const double visits = std::ceil(channels / kChannelBlock) * taps;
      works.add(
          blocks_work(1, d, static_cast<double>(blocks),
                      kOutputInstructions +
                          visits * (kTapInstructions + (stride > 1 ? kDivisionInstructions : 0)) +
                          products * kProductInstructions,
                      products * lines, std::max(visits, products / kBatch), p.least_bytes()));
      break;
    }
    case Pass::kWgrad: {
      const double threads = by_channels ? kBlock / kWgradChannels : kBlock;
      const double summed = static_cast<double>(wgrad_pixels(p)) / static_cast<double>(plan.splits);
      const double own = std::ceil(summed / threads), halvings = std::log2(threads);
      const double lines = by_channels ? 2
                                       : lines_of_load(p, p.y_strides[3]) +
                                             lines_of_load(p, p.x_strides[3] * p.stride_w);
      works.add(blocks_work(
          2, d, static_cast<double>(blocks * plan.splits),
          kOutputInstructions + own * kPixelInstructions + halvings * kHalvingInstructions,
          own * lines, own + halvings, p.least_bytes()));
      if (plan.splits == 1) break;
      const auto parts = static_cast<double>(plan.splits),
                 weights = static_cast<double>(p.w_count());
      works.add(blocks_work(2, d, std::ceil(weights / kBlock),
                            kOutputInstructions + parts * kProductInstructions, parts, parts,
                            static_cast<double>(plan.workspace_bytes)));
      break;
    }
  }
  return works;
}

// Blocks along the grid's first dimension.
int64_t blocks_of(const ConvProblem& p, Order order) {
  return p.pass == Pass::kWgrad ? wgrad_blocks(p, order) : ceil_divide(p.result_count(), kBlock);
}

LaunchShape shape_of(const ConvProblem& p, Order order, int64_t splits) {
  const int64_t parts = splits > 1 ? splits * p.w_count() * accumulator_size(p.dtype) : 0;
  return {blocks_of(p, order) * splits, kBlock, 0, parts};
}

bool is_wide(const ConvProblem& p) { return p.is_deep() || needs_wide_index(p); }

ConvPlan propose(const ConvProblem& problem, const DeviceProperties& device, const Wanted&) {
  const Order order = choose_order(problem);
  const int64_t blocks = blocks_of(problem, order);
  const int64_t splits = problem.pass == Pass::kWgrad ? wgrad_splits(problem, blocks) : 1;
  ConvPlan plan{shape_of(problem, order, splits)};
  plan.blocks = std::min(blocks, device.max_grid_x) * splits;
  plan.splits = splits;
  plan.payload = DirectPlan{order, is_wide(problem)};
  plan.works = count_work(problem, device, plan, order, blocks);
  plan.predicted_ms = price(plan.works, device);
  return plan;
}

LaunchShape shape(const ConvProblem& p, const DeviceProperties&, const ConvPlan& plan) {
  const auto way = plan.payload.as<DirectPlan>();
  return way.wide == is_wide(p) ? shape_of(p, way.order, plan.splits) : LaunchShape{};
}

// The last resort where bits may not depend on the batch; else PyTorch's kernels are faster.
bool may_choose_volume(const ConvProblem& p) { return !p.is_deep() || is_batch_invariant(p); }

}  // namespace

extern const Family family;
const Family family{"direct", can_implement, propose, shape,   nullptr,
                    false,    nullptr,       nullptr, nullptr, may_choose_volume};

}  // namespace customconv::direct

namespace customconv {

template <>
Fields fields_of<PlanKind::direct>() {
  using direct::DirectPlan;
  return FieldList<DirectPlan>()
      .word("order", &DirectPlan::order, {"pixels", "channels"})
      .flag("wide", &DirectPlan::wide);
}

}  // namespace customconv
