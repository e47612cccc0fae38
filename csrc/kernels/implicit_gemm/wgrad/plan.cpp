#include "kernels/implicit_gemm/wgrad/registers/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/implicit_gemm/wgrad/geometry.h"
#include "kernels/implicit_gemm/wgrad/registers/geometry.h"
#include "kernels/implicit_gemm/wgrad/search.h"
#include "kernels/implicit_gemm/wgrad/wgrad.h"
#include "plan/fields.h"
#include "plan/hardware.h"
#include "plan/price.h"
#include "plan/search.h"

namespace customconv::implicit_gemm::wgrad {

namespace {

constexpr int kElementBytes = 2;
constexpr int kMostPixels = 512;  // of a tile
constexpr int kCuts = 4;          // of an image, in each dimension

// Rows of prices: kernels whose boxes come by copies, and those that threads fill or transpose.
constexpr int kFilledRow = kKernelCount, kTransposedRow = kFilledRow + 1;

// Warpgroups that have channels, or rows of the filter.
int busy_warpgroups(const ConvProblem& p, const Tile& t) {
  return t.along_k > 1 ? std::min(t.along_k, static_cast<int>(ceil_divide(p.group_K(), kBlock)))
                       : t.filter_rows;
}

// Clocks until threads have filled a stage: until what they ask for arrives, and their
// instructions.
double fill_clocks(const ConvProblem& p, const Tile& t) {
  const int64_t x_rows = int64_t{t.images} * t.x_rows, y_rows = int64_t{t.images} * t.rows;
  const auto clocks = [&](Fill fill, int64_t rows, int columns, int64_t step, int64_t channels,
                          int boxes) {
    const int64_t places = rows * row_places(fill, columns);
    double all = 0;
    for (int i = 0; i < boxes && channels > 0; ++i, channels -= kBlock) {
      const auto own = std::min<int64_t>(channels, kBlock);
      if (fill == Fill::kUnits) {
        all += filled_clocks(places, own, 16 / kElementBytes, kFillers);
      } else if (fill != Fill::kNone) {
        // A thread has 64 words under way: of 64 channels, or of 32 channels of two places. A row
        // of a plane arrives in whole sectors.
        const int64_t together = own <= kBlock / 2 ? 2 : 1;
        const auto words = static_cast<double>(kBlock) / static_cast<double>(together);
        // Instructions of a warp: to find a place; to load a word, which depends on no other load;
        // to put a unit together and store it.
        constexpr double kPlace = 40, kLoad = 3, kStore = 7;
        const double pixels = fill == Fill::kPairs ? 2 : 1;  // of a place
        const auto warps = static_cast<double>(ceil_divide(places, 32));
        const double stores = words / 8 * pixels * kStore;
        const double issue =
            warps * (words * kLoad + (kPlace + stores) * hardware::kDependentClocks);
        const auto row_bytes = static_cast<double>(columns * step * kElementBytes);
        const double sectors = std::ceil(row_bytes / hardware::kSectorBytes) + 1;
        const double bytes = static_cast<double>(rows * own) * sectors * hardware::kSectorBytes;
        all += static_cast<double>(ceil_divide(places, kFillers * together)) *
                   hardware::kMemoryClocks +
               busiest({issue / hardware::kSchedulers, bytes / hardware::kL2BytesPerClock});
      }
    }
    return all;
  };
  return clocks(t.fill_y, y_rows, t.columns, 1, p.group_K(), t.along_k) +
         clocks(t.fill_x, x_rows, t.x_columns, p.stride_w, p.group_C(), t.channel_blocks);
}

// What a thread block does, but for how tiles are shared.
Counted count_tile(const ConvProblem& p, const Tile& t) {
  const Kernel& kind = t.kind();
  const double busy = busy_warpgroups(p, t);
  constexpr double kProductClocks = 32;  // of 64 by 64 channels and two runs
  constexpr double kOperand = 2.0 * kRun * kRowBytes;
  const double products = t.pixels() / (2.0 * kRun) * busy;
  const double read = products * kOperand * (kind.blocks + 1);
  const auto stage = static_cast<double>(t.stage_bytes);
  const double math = products * kProductClocks * kind.blocks;
  const double shared = (read + stage) / hardware::kSharedBytesPerClock;
  const double load =
      t.transposes() ? fill_clocks(p, t) : stage / hardware::kL2BytesPerClock + fill_clocks(p, t);
  // A stage is filled and multiplied while the others are.
  const double chain = (hardware::kMemoryClocks + load + math) / t.stages;
  Counted c;
  c.row = price_row(PriceKind::kWgradBoxes, t.transposes() ? kTransposedRow
                                            : t.fills()    ? kFilledRow
                                                           : t.kernel);
  c.sort = Sort::kBoxes;
  c.products = math / t.pixels();
  c.busy = busiest({math, shared, std::max(load, chain)});
  c.alone = load + std::max(math, shared);
  c.waits = 1;
  c.bytes = p.least_bytes();
  c.sums = busy * kind.blocks * kBlock * kBlock;
  c.all_sums = t.sums();
  c.result_bytes = p.w_strides[1] == 1 ? kElementBytes : hardware::kSectorBytes;
  c.tiles = t.tiles();
  c.blocks = blocks_of(p, t);
  return c;
}

class Search : private TileSearch<Search, Tile, BoxesPlan> {
 public:
  Search(const ConvProblem& p, const DeviceProperties& d, std::vector<ConvPlan>* all = nullptr,
         const Wanted& wanted = {})
      : TileSearch(as_one_row(p), d, all, wanted.enough_ms) {
    // As an image's width divides evenly, and what fits whatever the strides.
    Widths widths;
    for (int i = 1; i <= kCuts; ++i) widths.add(ceil_divide(ceil_divide(p_.Q, i), kRun) * kRun);
    for (int64_t width = kRun; width < std::min<int64_t>(p_.Q, kMostBox); width *= 2) {
      widths.add(width);
    }
    for (const int64_t columns : widths) {
      if (columns > kMostBox) continue;
      const auto most = std::max<int64_t>(std::min<int64_t>(p_.P, kMostPixels / columns), 1);
      // As an image's height divides evenly.
      const auto is_even = [&](int64_t rows) {
        return rows <= most && ceil_divide(p_.P, ceil_divide(p_.P, rows)) == rows;
      };
      for (int64_t rows = most; rows > 0; --rows) {
        if (!is_even(rows)) continue;
        const int64_t cuts = ceil_divide(p_.P, rows);
        const int64_t fits = cuts > 1 ? 1 : std::min<int64_t>(kMostPixels / (columns * rows), p_.N);
        add_shapes(p_, rows, columns, 1, fits, shapes_);
        if (rows % 2 != 0 && !is_even(rows + 1)) add_shapes(p_, rows + 1, columns, 1, 1, shapes_);
      }
    }
    sort_shapes(shapes_);
  }

  ConvPlan best() {
    std::vector<BoxesPlan> variants;
    for (int kernel = 0; kernel < kKernelCount; ++kernel) {
      for (const bool along_k : {false, true}) {
        for (const bool by_taps : {false, true}) {
          const BoxesPlan variant{kernel, by_taps, along_k};
          if (is_variant(p_, variant)) variants.push_back(variant);
        }
      }
    }
    try_variants(variants);
    return found() ? plan_of(best_) : ConvPlan{};
  }

 private:
  friend TileSearch;

  const std::vector<Shape>& shapes_of(const BoxesPlan&) const { return shapes_; }
  Counted count(const Tile& t) const { return count_tile(p_, t); }
  static void split(const Tile& t, Counted& c) { split_by_cluster(t, c); }

  template <typename Weigh>
  void weigh_splits(const BoxesPlan& plan, const Tile& t, const Counted& c, const Weigh& weigh) {
    weigh_clusters(plan, t, c, kMostSummed, weigh);
  }

  std::vector<Shape> shapes_;
};

// Which kernels take a problem: those that read both operands where they lie, or those that read x
// into registers.
bool stays_in_memory(const ConvProblem& p) { return element_size(p.dtype) == 2; }
bool goes_through_registers(const ConvProblem& p, const DeviceProperties& d) {
  return has_pixels(p) && (element_size(p.dtype) == 4 || registers::has_few(p, d));
}

const char* why_not(const ConvProblem& p, const DeviceProperties& d) {
  if (!d.has_hopper_kernels()) return "its weight gradients need Hopper";
  if (!has_pixels(p)) {
    if (!stays_in_memory(p)) return "its weight gradients need tensors of one layout";
    if (std::max(p.x_strides[1], p.y_strides[1]) > INT32_MAX) return "a plane passes 2^31 elements";
  }
  if (p.stride_h > kMostStep || p.stride_w > kMostStep) return "a stride passes 8";
  if (!has_int32_coordinates(p) || p.N > INT32_MAX / 2) return "image coordinates pass 2^31";
  const double blocks = static_cast<double>(p.groups) *
                        static_cast<double>(ceil_divide(p.group_K(), kBlock)) *
                        static_cast<double>(ceil_divide(p.group_C(), kBlock));
  // Sums of the narrowest kernel, half of which may be idle.
  const double sums = blocks * static_cast<double>(p.R * p.S) * 2 * kBlock * kBlock;
  if (sums > static_cast<double>(kMostSums)) return "the weight passes 2^29 elements";
  const double pixels =
      static_cast<double>(p.N) * static_cast<double>(p.P + kRun) * static_cast<double>(p.Q + kRun);
  if (pixels > INT32_MAX) return "the output pixels pass 2^31";
  return nullptr;
}

}  // namespace

const char* can_implement(const ConvProblem& p, const DeviceProperties& d) {
  const char* const reason = why_not(p, d);
  if (reason == nullptr || planes::can_implement(p, d) == nullptr) return nullptr;
  const bool channels_last = dense_layout(p.x_sizes(), p.x_strides) == Layout::kNhwc;
  return channels_last ? reason : planes::can_implement(p, d);
}

ConvPlan propose(const ConvProblem& p, const DeviceProperties& d, const Wanted& wanted) {
  const bool possible = why_not(p, d) == nullptr;
  ConvPlan best;
  const auto weigh = [&](bool takes, const auto& propose_one) {
    if (!takes || (best.threads > 0 && best.predicted_ms <= wanted.enough_ms)) return;
    const ConvPlan plan = propose_one(p, d, wanted);
    if (plan.threads == 0) return;
    if (best.threads == 0 || plan.predicted_ms < best.predicted_ms) best = plan;
  };
  weigh(possible && stays_in_memory(p), cheapest_of<Search>);
  weigh(possible && goes_through_registers(p, d), registers::propose);
  weigh(planes::can_implement(p, d) == nullptr, planes::propose);
  return best;
}

std::vector<ConvPlan> variants(const ConvProblem& p, const DeviceProperties& d) {
  std::vector<ConvPlan> plans;
  const bool possible = why_not(p, d) == nullptr;
  const auto list = [&](bool takes, const auto& list_some) {
    if (!takes) return;
    const std::vector<ConvPlan> more = list_some(p, d);
    plans.insert(plans.end(), more.begin(), more.end());
  };
  list(possible && stays_in_memory(p), all_of<Search>);
  list(possible && goes_through_registers(p, d), registers::variants);
  list(planes::can_implement(p, d) == nullptr, planes::variants);
  return plans;
}

LaunchShape shape(const ConvProblem& p, const ConvPlan& plan) {
  switch (plan.payload.kind()) {
    case PlanKind::implicit_gemm_wgrad_boxes:
      return stays_in_memory(p) ? shape_as<BoxesPlan>(as_one_row(p), plan) : LaunchShape{};
    case PlanKind::implicit_gemm_wgrad_registers:
      return registers::shape(p, plan);
    case PlanKind::implicit_gemm_wgrad_planes:
      return planes::shape(p, plan);
    default:
      return {};
  }
}

}  // namespace customconv::implicit_gemm::wgrad

namespace customconv {

template <>
Fields fields_of<PlanKind::implicit_gemm_wgrad_boxes>() {
  using implicit_gemm::wgrad::BoxesPlan;
  return FieldList<BoxesPlan>()
      .word("kernel", &BoxesPlan::kernel, words_of(implicit_gemm::wgrad::kKernels))
      .word("columns", &BoxesPlan::by_taps, {"channels", "taps"})
      .word("along", &BoxesPlan::along_k, {"rows", "k"})
      .flag("clustered", &BoxesPlan::clustered)
      .size("tile", &BoxesPlan::tile)
      .size("stages", &BoxesPlan::stages);
}

}  // namespace customconv
