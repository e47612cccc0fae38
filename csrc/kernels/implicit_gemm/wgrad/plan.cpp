#include "kernels/implicit_gemm/wgrad/registers/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/implicit_gemm/wgrad/geometry.h"
#include "kernels/implicit_gemm/wgrad/registers/geometry.h"
#include "kernels/implicit_gemm/wgrad/splits.h"
#include "kernels/implicit_gemm/wgrad/wgrad.h"
#include "plan/search.h"

namespace customconv::implicit_gemm::wgrad {

namespace {

constexpr double kEfficiency = 0.94;     // of the tensor cores' rate
constexpr double kSharedBytes = 128;     // a clock
constexpr double kL2BytesPerClock = 57;  // to a multiprocessor
constexpr double kCopyClocks = 1160;     // until a copy begins to arrive
constexpr double kStepClocks = 24;       // of a warpgroup, from a product to the next
constexpr double kTileClocks = 229;      // to change stages
constexpr double kBeginClocks = 5230;    // until the first products
constexpr double kStoreBytesPerClock = 8.52;
constexpr double kPartsBytesPerClock = 3070;  // of the whole GPU, read and added up
constexpr double kLaunchMs = 0.005;
constexpr double kNextMs = 0.00178;  // of the kernel that adds up parts
constexpr double kBandwidthShare = 0.7;
constexpr double kTurnedBandwidth = 0.4;  // the share where threads load

constexpr double kRoundClocks = 840;   // until what threads load of planes arrives
constexpr double kPairsClocks = 600;   // of a warp's words, to be loaded and stored
constexpr double kPixelsClocks = 360;  // the same of single pixels
constexpr double kBothShare = 0.3;     // of what is shorter, turning or products, that adds up
constexpr double kApartClocks = 3;     // of a result that has no neighbours in the weight
constexpr double kApartParts = 1.5;    // as many times as long parts of those take

constexpr int kMostPixels = 512;  // of a tile
constexpr int kLeastStages = 2;
constexpr int kCuts = 4;                      // of an image, in each dimension
constexpr int64_t kMostSums = INT32_MAX / 2;  // also of what does not exist
constexpr size_t kWeighed = 4;                // tiles of each kernel that are listed

// The matrix instruction's clocks, and the bytes of shared memory that it reads.
constexpr double instruction_clocks(int blocks) { return 32.0 * blocks; }
constexpr double instruction_bytes(int blocks) {
  return blocks == 0 ? 0 : 2.0 * kRun * kRowBytes * (1 + blocks);
}

// That threads turn planes into boxes.
double turn_clocks(Fill fill, int columns, int64_t rows, int64_t channels) {
  const int64_t places = row_places(fill, columns) * rows;
  const double box = static_cast<double>(ceil_divide(places, kFillers)) * kRoundClocks +
                     static_cast<double>(ceil_divide(places, 32)) *
                         (fill == Fill::kPairs ? kPairsClocks : kPixelsClocks);
  return static_cast<double>(ceil_divide(channels, kBlock)) * box;
}

struct Choice {
  Tile tile;
  int variant;
  double ms;
};

// Warpgroups that have channels, or rows of the filter.
int busy_warpgroups(const ConvProblem& p, const Tile& t) {
  return t.along_k > 1 ? std::min(t.along_k, static_cast<int>(ceil_divide(p.group_K(), kBlock)))
                       : t.filter_rows;
}

// Of a tile, however many there are.
double tile_clocks(const ConvProblem& p, const Tile& t) {
  const Kernel& kind = t.kind();
  const double busy = busy_warpgroups(p, t);
  const double products = t.pixels() / (2.0 * kRun) * busy;
  const double clocks = instruction_clocks(kind.first) + instruction_clocks(kind.second);
  const double bytes = instruction_bytes(kind.first) + instruction_bytes(kind.second);
  const auto stage = static_cast<double>(t.stage_bytes);
  const double step = std::max(clocks, (clocks + kStepClocks) / busy);
  const double math =
      std::max(products * step, (products * bytes + stage) / kSharedBytes) / kEfficiency;
  // A stage is copied, or filled, and multiplied, while the others are.
  const int64_t x_rows = int64_t{t.images} * t.x_rows, y_rows = int64_t{t.images} * t.rows;
  const int64_t c = std::min<int64_t>(p.group_C(), int64_t{t.channel_blocks} * kBlock);
  const int64_t k = std::min<int64_t>(p.group_K(), int64_t{t.along_k} * kBlock);
  double filled = 0, copy = 0, both = 0;
  const int chunks = kind.second > 0 ? 2 : 1;
  if (t.turns()) {
    filled = turn_clocks(t.fill_y, t.columns, y_rows, k) +
             turn_clocks(t.fill_x, t.x_columns, x_rows, c) * chunks;
    both = kBothShare * std::min(math, filled);
  } else {
    const auto fill = [&](Fill how, int64_t pixels, int64_t channels, int boxes) {
      if (how == Fill::kNone) return 0.0;
      return fill_clocks(pixels, channels, boxes, kBlock, kRowBytes / 16, kFillers);
    };
    filled = fill(t.fill_y, t.pixels(), p.group_K(), t.along_k) +
             fill(t.fill_x, x_rows * t.x_columns, p.group_C(), t.channel_blocks) * chunks;
    copy = stage / kL2BytesPerClock;
  }
  const double load = copy + filled, chain = (kCopyClocks + load + math) / t.stages;
  return std::max({math, load, chain}) + both + kTileClocks;
}

// `clocks`: of a tile.
double price(const ConvProblem& p, const DeviceProperties& d, const Tile& t, double clocks) {
  const double sums =
      static_cast<double>(busy_warpgroups(p, t)) * t.kind().blocks() * kBlock * kBlock;
  const bool apart = p.w_strides[1] != 1;
  double store = sums * (t.clustered ? 2 : 4) / kStoreBytesPerClock;
  int64_t reached = d.sm_count;
  if (t.clustered) {
    if (apart) store += sums * kApartClocks;
    store = store / static_cast<double>(t.splits) + exchange_clocks(sums, t.splits);
    reached = reached_by_clusters(d.sm_count, t.splits);
  }
  const auto turns = static_cast<double>(ceil_divide(blocks_of(p, t) * t.splits, reached));
  const double block = static_cast<double>(ceil_divide(t.tiles(), t.splits)) * clocks;
  double ms = turns * (kBeginClocks + block + store) / (d.clock_ghz * 1e6);
  const double bandwidth = (t.turns() ? kTurnedBandwidth : kBandwidthShare) * d.bandwidth_gb_s;
  const double bytes_ms = 1e-6 * p.least_bytes() / bandwidth;
  ms = std::sqrt(std::hypot(ms * ms, bytes_ms * bytes_ms));
  if (!t.clustered) {
    const double parts = 4.0 * static_cast<double>(blocks_of(p, t) * t.splits) * sums;
    ms += kNextMs + (apart ? kApartParts : 1) * parts / kPartsBytesPerClock / (d.clock_ghz * 1e6);
  }
  if (t.clustered && t.splits > 1) ms += kClusterMs * static_cast<double>(t.splits);
  return ms + kLaunchMs;
}

class Search {
 public:
  Search(const ConvProblem& p, const DeviceProperties& d, std::vector<ConvPlan>* all = nullptr)
      : p_(as_one_row(p)), d_(d), all_(all) {}

  ConvPlan best() {
    for (int kernel = 0; kernel < kKernelCount; ++kernel) {
      for (const int flags : {0, kByTaps, kAlongK, kByTaps | kAlongK}) try_variant(kernel | flags);
    }
    return plan_of(best_);
  }

 private:
  void try_variant(int variant) {
    choices_.clear();
    // As an image's width divides evenly, and what fits whatever the strides.
    std::vector<int64_t> widths;
    for (int i = 1; i <= kCuts; ++i) widths.push_back(ceil_divide(ceil_divide(p_.Q, i), kRun));
    for (int64_t runs = 1; runs * kRun < p_.Q; runs *= 2) widths.push_back(runs);
    std::sort(widths.begin(), widths.end());
    widths.erase(std::unique(widths.begin(), widths.end()), widths.end());
    for (const int64_t runs : widths) {
      if (runs <= kMostBox / kRun) try_rows(variant, static_cast<int>(runs * kRun));
    }
    std::sort(choices_.begin(), choices_.end(),
              [](const Choice& a, const Choice& b) { return a.ms < b.ms; });
    if (choices_.empty()) return;
    if (best_.ms == 0 || choices_[0].ms < best_.ms) best_ = choices_[0];
    if (all_ == nullptr) return;
    for (size_t i = 0; i < std::min(kWeighed, choices_.size()); ++i) {
      all_->push_back(plan_of(choices_[i]));
    }
  }

  void try_rows(int variant, int columns) {
    const auto most = std::min<int64_t>(p_.P, kMostPixels / columns);
    for (int64_t rows = std::max<int64_t>(most, 1); rows > 0; --rows) {
      // As an image's height divides evenly.
      const int64_t cuts = ceil_divide(p_.P, rows);
      if (ceil_divide(p_.P, cuts) != rows) continue;
      const int64_t fits = cuts > 1 ? 1 : std::min<int64_t>(kMostPixels / (columns * rows), p_.N);
      for (int images = 1; images <= fits; ++images) {
        try_tile(variant, {static_cast<int>(rows), columns, images});
      }
      if (rows % 2 != 0) try_tile(variant, {static_cast<int>(rows + 1), columns, 1});
    }
  }

  void try_tile(int variant, const int (&pixels)[3]) {
    const int64_t shared = d_.shared_bytes_block - 1024;
    const Tile one = make_tile(p_, variant, pixels, 1, shared);
    const int64_t blocks = blocks_of(p_, one);
    if (one.stages < kLeastStages || blocks > kMostSums / one.sums()) return;
    const double clocks = tile_clocks(p_, one);
    const auto weigh = [&](int64_t splits, bool clustered) {
      Choice choice{one, clustered ? variant | kClustered : variant, 0};
      choice.tile.splits = splits;
      choice.tile.clustered = clustered;
      if (!clustered || one.holds_sums()) choice.ms = price(p_, d_, choice.tile, clocks);
      return choice;
    };
    choose_splits(one.tiles(), one.pixels(), blocks, d_.sm_count, weigh, choices_);
  }

  ConvPlan plan_of(const Choice& choice) const {
    const Tile& t = choice.tile;
    ConvPlan plan;
    plan.variant = t.kind().name;
    plan.variant_index = choice.variant;
    plan.tile[0] = t.rows;
    plan.tile[1] = t.columns;
    plan.tile[2] = t.images;
    plan.splits = t.splits;
    plan.block = t.threads();
    plan.wide_index = needs_wide_index(p_);
    plan.shared_bytes = shared_bytes(t);
    plan.grid[0] = blocks_of(p_, t) * t.splits;
    plan.workspace_bytes =
        t.clustered ? 0 : plan.grid[0] * t.sums() * static_cast<int64_t>(sizeof(float));
    plan.predicted_ms = choice.ms;
    return plan;
  }

  const ConvProblem p_;
  const DeviceProperties& d_;
  std::vector<ConvPlan>* all_;
  std::vector<Choice> choices_;
  Choice best_{};
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
  // Of the narrowest kernel, half of which may be idle.
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

ConvPlan propose(const ConvProblem& p, const DeviceProperties& d) {
  const bool possible = why_not(p, d) == nullptr;
  ConvPlan best;
  const auto weigh = [&](bool takes, const auto& propose_one) {
    if (!takes) return;
    const ConvPlan plan = propose_one(p, d);
    if (best.predicted_ms == 0 || plan.predicted_ms < best.predicted_ms) best = plan;
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

}  // namespace customconv::implicit_gemm::wgrad
