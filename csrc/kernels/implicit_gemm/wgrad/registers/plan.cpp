#include "kernels/implicit_gemm/wgrad/registers/plan.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "kernels/implicit_gemm/wgrad/registers/geometry.h"
#include "kernels/implicit_gemm/wgrad/splits.h"
#include "plan/search.h"

namespace customconv::implicit_gemm::wgrad::registers {

namespace {

constexpr double kEfficiency = 0.88;       // of the tensor cores' rate
constexpr double kSharedBytes = 128;       // a clock
constexpr double kL2BytesPerClock = 33.4;  // to a multiprocessor, while all load
constexpr double kMostL2Bytes = 54.9;      // a clock, to one
constexpr double kWaitClocks = 232;        // of a warpgroup, between groups of products
constexpr double kRowClocks = 107;         // of it, from a row to the next
constexpr double kTransposedBytes = 26.5;  // a clock, of dy
constexpr double kCopyClocks = 671;        // until a copy begins to arrive
constexpr double kTileClocks = 92.8;       // to change stages
constexpr double kBeginClocks = 4040;      // until the first products
constexpr double kStoreBytesPerClock = 10.9;
constexpr double kPartsBytesPerClock = 3400;  // of the whole GPU, read and added up
constexpr double kLaunchMs = 0.00592;
constexpr double kNextMs = 0.00253;  // of the kernel that adds up parts
constexpr double kBandwidthShare = 0.715;

constexpr int kMostPixels = 512;  // of a tile
constexpr int kLeastStages = 2;
constexpr int kCuts = 4;  // of an image, in each dimension
constexpr int kMostImages = 16;
constexpr int64_t kMostSums = INT32_MAX / 2;  // also of what does not exist
constexpr size_t kWeighed = 4;                // tiles of each kernel that are listed

int whole(int64_t count, int unit) { return static_cast<int>(ceil_divide(count, unit) * unit); }

struct Choice {
  Tile tile;
  int variant;
  double ms;
};

// Pixels of x that a stride passes over are not read.
double least_bytes(const ConvProblem& p) {
  const auto met = [](int64_t taps, int64_t stride) {
    return static_cast<double>(std::min(taps, stride)) / static_cast<double>(stride);
  };
  const double passed = 1 - met(p.R, p.stride_h) * met(p.S, p.stride_w);
  const auto x_bytes = static_cast<double>(p.x_count() * element_size(p.dtype));
  return p.least_bytes() - passed * x_bytes;
}

double price(const ConvProblem& p, const DeviceProperties& d, const Tile& t) {
  const Kernel& kind = t.kind();
  const auto blocks = [](int64_t channels) {
    return static_cast<int>(ceil_divide(channels, kBlock));
  };
  const int y_boxes = std::min(t.y_boxes(), blocks(p.group_K()));
  // Warpgroups that have channels, or rows of the filter.
  const double busy = t.along_k > 1   ? static_cast<double>(ceil_divide(y_boxes, kind.blocks))
                      : t.along_c > 1 ? std::min(t.along_c, blocks(product_rows(p, kind)))
                                      : t.filter_rows;
  // Steps go along rows, some in a group. At a row's beginning a warpgroup reads what it has not
  // kept; a single tap takes the tile's longest dimension for rows.
  const int lines = (t.by_images ? t.images : t.rows) / t.lines();
  const int pairs = t.columns / kPair, others = t.by_images ? t.rows : t.images;
  const int steps = lines * pairs * others;
  const int in_row = kind.taps > 1 ? pairs : std::max({lines, pairs, others});
  const int rows = steps / in_row;
  const double groups = rows * (in_row / kind.batch() + in_row % kind.batch());
  const double clocks = 32.0 * kind.products();
  // What a warpgroup reads of x and dy, the boxes that are copied, and float32 dy once more both
  // ways.
  const double x_bytes = kUnitBytes * (t.element_bytes == 2 ? 2 : 1) * t.conflicts;
  const double read = (steps * kind.fresh() + rows * kind.kept()) * x_bytes +
                      steps * kind.products() * 1.0 * kPair * kUnitBytes;
  const double copied = static_cast<double>(t.x_boxes() * t.x_box_bytes + y_boxes * t.y_box_bytes);
  const double transposed =
      t.element_bytes == 4 ? 2.0 * static_cast<double>(y_boxes * t.y_box_bytes) : 0;
  const double shared = (busy * read + copied + transposed) / kSharedBytes;
  const double waits = groups * kWaitClocks;
  const double math =
      std::max({steps * busy * clocks, steps * clocks + waits, shared}) / kEfficiency +
      rows * kRowClocks;
  const auto active =
      static_cast<double>(std::min<int64_t>(blocks_of(p, t) * t.splits, d.sm_count));
  const double l2_bytes = std::min(kMostL2Bytes, kL2BytesPerClock * d.sm_count / active);
  const double turn = transposed / 2 / kTransposedBytes;
  // A stage is copied, or filled, transposed and multiplied, while the others are.
  const auto fill = [&](bool fills, int64_t pixels, int64_t channels, int boxes, int block) {
    return fills ? fill_clocks(pixels, channels, boxes, block, 4, /*threads=*/32) : 0;
  };
  const int64_t x_pixels = int64_t{t.images} * t.x_rows * t.x_columns;
  const double copy = copied / l2_bytes +
                      fill(t.fills_y, t.pixels(), p.group_K(), t.y_boxes(), kBlock) +
                      fill(t.fills_x, x_pixels, p.group_C(), t.x_boxes(), kXBlock);
  const double chain = (kCopyClocks + copy + turn + math) / t.stages;
  const double tile = std::max({math, copy, turn, chain}) + kTileClocks;
  const double sums = busy * kind.products() * kBlock * kBlock;
  double store = sums * 4 / kStoreBytesPerClock;
  int64_t reached = d.sm_count;
  if (t.clustered) {
    store = store / static_cast<double>(t.splits) + exchange_clocks(sums, t.splits);
    reached = reached_by_clusters(d.sm_count, t.splits);
  }
  const auto turns = static_cast<double>(ceil_divide(blocks_of(p, t) * t.splits, reached));
  const double block = static_cast<double>(ceil_divide(t.tiles(), t.splits)) * tile;
  double ms = turns * (kBeginClocks + block + store) / (d.clock_ghz * 1e6);
  const double bytes_ms = 1e-6 * least_bytes(p) / (kBandwidthShare * d.bandwidth_gb_s);
  ms = std::sqrt(std::hypot(ms * ms, bytes_ms * bytes_ms));
  if (!t.clustered) {
    const double parts = 4.0 * static_cast<double>(blocks_of(p, t) * t.splits) * sums;
    ms += kNextMs + parts / kPartsBytesPerClock / (d.clock_ghz * 1e6);
  }
  if (t.clustered && t.splits > 1) ms += kClusterMs * static_cast<double>(t.splits);
  return ms + kLaunchMs;
}

class Search {
 public:
  Search(const ConvProblem& p, const DeviceProperties& d, std::vector<ConvPlan>* all = nullptr)
      : p_(as_columns(p)), d_(d), all_(all) {}

  ConvPlan best() {
    for (int kernel = 0; kernel < kKernelCount; ++kernel) {
      if (kKernels[kernel].taps > 1 && p_.S == 1) continue;
      for (const int along : {0, kAlongK, kAlongC}) {
        if (along == 0 && p_.R == 1) continue;
        choices_.clear();
        for (const int lines : {0, kByImages}) try_columns(kernel | along | lines);
        list();
      }
    }
    return plan_of(best_);
  }

 private:
  // The cheapest of a kernel.
  void list() {
    std::sort(choices_.begin(), choices_.end(),
              [](const Choice& a, const Choice& b) { return a.ms < b.ms; });
    if (choices_.empty()) return;
    if (best_.ms == 0 || choices_[0].ms < best_.ms) best_ = choices_[0];
    if (all_ == nullptr) return;
    for (size_t i = 0; i < std::min(kWeighed, choices_.size()); ++i) {
      all_->push_back(plan_of(choices_[i]));
    }
  }

  // As an image's width divides evenly, and what fits whatever the strides.
  void try_columns(int variant) {
    const int unit = column_unit(p_, kKernels[variant % kVariantKernels]);
    std::vector<int> widths;
    for (int64_t cuts = 1; cuts <= kCuts; ++cuts) {
      const int64_t columns = ceil_divide(p_.Q, cuts);
      if (columns <= kMostBox) widths.push_back(whole(columns, unit));
    }
    for (int columns = unit; columns <= kMostBox && columns < p_.Q; columns *= 2) {
      widths.push_back(columns);
    }
    std::sort(widths.begin(), widths.end());
    widths.erase(std::unique(widths.begin(), widths.end()), widths.end());
    for (const int columns : widths) {
      if (columns <= kMostBox) try_rows(variant, columns);
    }
  }

  void try_rows(int variant, int columns) {
    const bool by_images = (variant & kByImages) != 0;
    const auto lines = static_cast<int>(16 / element_size(p_.dtype));
    const int unit = by_images ? 1 : lines, least_images = by_images ? lines : 1;
    const int64_t most = kMostPixels / (columns * least_images);
    for (int64_t rows = std::min<int64_t>(whole(p_.P, unit), most / unit * unit); rows > 0;
         rows -= unit) {
      // As an image's height divides evenly.
      const int64_t cuts = ceil_divide(p_.P, rows);
      if (whole(ceil_divide(p_.P, cuts), unit) != rows) continue;
      const int64_t fits = std::min<int64_t>(kMostPixels / (columns * rows), kMostImages);
      for (int images = least_images; images <= fits; images += least_images) {
        if (images > least_images && (cuts > 1 || images >= p_.N + least_images)) break;
        try_tile(variant, {static_cast<int>(rows), columns, images});
      }
    }
  }

  void try_tile(int variant, const int (&pixels)[3]) {
    const int64_t shared = d_.shared_bytes_block - 1024;
    const Tile one = make_tile(p_, variant, pixels, 1, shared);
    const int64_t blocks = blocks_of(p_, one);
    if (one.stages < kLeastStages || blocks > kMostSums / one.sums()) return;
    const auto weigh = [&](int64_t splits, bool clustered) {
      Choice choice{one, clustered ? variant | kClustered : variant, 0};
      choice.tile.splits = splits;
      choice.tile.clustered = clustered;
      if (!clustered || one.holds_sums()) choice.ms = price(p_, d_, choice.tile);
      return choice;
    };
    choose_splits(one.tiles(), one.pixels(), blocks, d_.sm_count, weigh, choices_);
  }

  ConvPlan plan_of(const Choice& choice) const {
    const Tile& t = choice.tile;
    ConvPlan plan;
    plan.variant = t.kind().name;
    plan.variant_index = choice.variant | kRegisters;
    plan.tile[0] = t.rows;
    plan.tile[1] = t.columns;
    plan.tile[2] = t.images;
    plan.splits = t.splits;
    plan.block = t.kind().threads();
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

}  // namespace

bool has_few(const ConvProblem& p, const DeviceProperties& d) {
  if (!is_few(p)) return false;
  const auto lines = static_cast<int>(16 / element_size(p.dtype));
  for (const Kernel& kind : kKernels) {
    const int kernel = static_cast<int>(&kind - kKernels), columns = column_unit(p, kind);
    if (!kind.few) continue;
    const int64_t shared = d.shared_bytes_block - 1024;
    for (const auto& [lines_are, rows, images] : {std::tuple(0, lines, 1), {kByImages, 1, lines}}) {
      const Tile least =
          make_tile(p, kernel | kAlongC | lines_are, {rows, columns, images}, 1, shared);
      if (least.stages >= kLeastStages) return true;
    }
  }
  return false;
}

ConvPlan propose(const ConvProblem& p, const DeviceProperties& d) {
  return cheapest_of<Search>(p, d);
}

std::vector<ConvPlan> variants(const ConvProblem& p, const DeviceProperties& d) {
  return all_of<Search>(p, d);
}

}  // namespace customconv::implicit_gemm::wgrad::registers
