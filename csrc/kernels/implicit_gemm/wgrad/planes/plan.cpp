#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/implicit_gemm/wgrad/planes/geometry.h"
#include "kernels/implicit_gemm/wgrad/splits.h"
#include "kernels/implicit_gemm/wgrad/wgrad.h"
#include "plan/search.h"

namespace customconv::implicit_gemm::wgrad::planes {

namespace {

constexpr double kEfficiency = 0.919;    // of the tensor cores' rate
constexpr double kSharedBytes = 128;     // a clock
constexpr double kProductClocks = 24.3;  // of each, beside its columns
constexpr double kFetchClocks = 243;     // of a warpgroup, from a step's products to the next
constexpr double kLineClocks = 2.2;      // of copies, for a row of a box,
constexpr double kL2BytesPerClock = 37;  // and its bytes, while all multiprocessors ask for some
constexpr double kClassCopies = 1.5;     // as many times as long take those of a class's channels
constexpr double kWaitClocks = 2980;     // of threads that load, until a tile's are there
constexpr double kCopyClocks = 3.64;     // of threads that load, for a copy
constexpr double kOrderClocks = 90;      // to put a unit in order
constexpr double kLoadClocks = 376;      // to load one through registers
constexpr double kTableClocks = 408;     // to fill in an entry of a table
constexpr double kClassClocks = 130;     // to put a unit of a class in order
constexpr double kRunClocks = 2700;      // of threads beside runs' copies, until a tile is there
constexpr double kPlaceClocks = 13.6;    // of a step, to look up places
constexpr double kElementClocks = 3.78;  // of a product, whose operands are fetched one by one
constexpr double kTileClocks = 149;      // to change stages
constexpr double kBeginClocks = 3000;    // until the first products
constexpr double kStoreBytesPerClock = 15;
constexpr double kRowClocks = 850;            // of a warp, to store a row of results
constexpr double kApartClocks = 1.0;          // more for each, where others lie between them
constexpr double kPartsBytesPerClock = 1190;  // of the whole GPU, read and added up
constexpr double kLaunchMs = 0.00722;
constexpr double kNextMs = 0.00392;  // of the kernel that adds up parts
constexpr double kBothMs = 0.004;    // where clusters add up too
constexpr double kCutBytes = 9.62;
constexpr double kBandwidthShare = 0.753;

constexpr int64_t kLoadBatch = 4;  // units of a thread at a time
constexpr int kMostPixels = 512;   // of a tile
constexpr int kLeastStages = 2;
constexpr int kCuts = 4;                      // of an image, in each dimension
constexpr int kRunCuts = 12;                  // of a plane
constexpr int64_t kMostSums = INT32_MAX / 2;  // also of what does not exist
constexpr size_t kWeighed = 4;                // tiles of each kernel that are listed

struct Choice {
  Tile tile;
  int variant;
  double ms;
};

// Clocks until so many rows of a box are there.
double copy_clocks(int64_t rows, int64_t bytes) {
  return static_cast<double>(rows) * (kLineClocks + static_cast<double>(bytes) / kL2BytesPerClock);
}

// Units that the busiest of the threads that load has, of so many places and channels.
double rounds_of(int64_t places, int64_t channels, int64_t threads) {
  const auto in_batches = [](int64_t units) { return ceil_divide(units, kLoadBatch) * kLoadBatch; };
  const int64_t rest = places % threads;
  const int64_t more = rest == 0 ? 0 : in_batches(ceil_divide(channels, threads / rest));
  return static_cast<double>(places / threads * in_batches(channels) + more);
}

// Clocks until a tile is in shared memory.
double load_clocks(const ConvProblem& p, const Tile& t) {
  const int64_t bytes = element_size(p.dtype);
  const int64_t channels_c = int64_t{t.channels} * (t.flat ? 1 : t.along_c);
  const int64_t channels_k = int64_t{t.kind().k_blocks} * kBlock;
  const int64_t x_rows = int64_t{t.images} * t.x_rows;
  if (t.boxed) {
    const int64_t across = ceil_divide(t.row_units(), kSlabUnits);
    const int64_t slab = std::min<int64_t>(kSlabUnits * t.unit, p.Q) * bytes;
    const int64_t slabs = t.images * t.rows * across;
    const double x =
        fetch_of(p, t) == Fetch::kSlabs
            ? copy_clocks(channels_c * slabs, slab)
            : copy_clocks(channels_c * x_rows, std::min<int64_t>(t.x_columns, p.W) * bytes);
    return x + copy_clocks(channels_k * slabs, slab);
  }
  if (t.runs) {
    const int64_t threads = t.kind().loaders - 32;
    const int64_t entries = t.tiles_q == 1 ? 0 : t.units() * 4 * t.filter_rows;
    const int64_t units = t.orders() ? t.units() * channels_k : 0;
    const double arranging =
        kRunClocks + kTableClocks * static_cast<double>(ceil_divide(entries, threads)) +
        kClassClocks * static_cast<double>(units) / static_cast<double>(threads);
    const double copies = copy_clocks(channels_c * t.x_runs * t.x_boxes, t.x_columns * bytes) +
                          copy_clocks(channels_k * t.slabs, int64_t{kSlabUnits} * kUnitBytes);
    return std::max(copies * (t.one_class ? kClassCopies : 1), arranging);
  }
  const int64_t x_places = int64_t{t.images} * t.inside_rows.count * t.inside_units.count;
  const int64_t y_places = t.steps() * 2;
  if (t.vector > 0) {
    const auto units = static_cast<double>(x_places * channels_c + y_places * channels_k);
    // More threads wait less.
    const double clocks = kCopyClocks / std::sqrt(t.kind().loaders);
    return kWaitClocks + units * kUnitBytes / t.vector * clocks;
  }
  const int threads = t.kind().loaders;
  const double rounds =
      rounds_of(x_places, channels_c, threads) + rounds_of(y_places, channels_k, threads);
  return kWaitClocks + rounds * (t.staged ? kOrderClocks : kLoadClocks);
}

// Warpgroups that have channels, or rows of the filter.
int64_t busy_warpgroups(const ConvProblem& p, const Tile& t) {
  if (t.along_p > 1) return t.along_p;
  if (t.along_c == 1) return t.filter_rows;
  return std::min<int64_t>(t.along_c, ceil_divide(rows_of(p, t.flat).group_C(), kBlock));
}

// Of a tile, however many there are.
double tile_clocks(const ConvProblem& p, const Tile& t) {
  const Kernel& kind = t.kind();
  const auto busy = static_cast<double>(busy_warpgroups(p, t));
  // A step of a warpgroup: products of 16 pixels, or 8 of TF32, and the bytes of shared memory.
  constexpr double kBlockClocks = 32, kBlockBytes = kBlock * 2.0 * kUnitBytes, kWarpWord = 128;
  const double columns = kind.blocks() * kBlockClocks;
  const Fetch fetch = fetch_of(p, t);
  const bool by_elements = fetch == Fetch::kTableElements;
  const bool in_slabs = fetch == Fetch::kSlabs;  // nothing is fetched
  const double others = kind.taps * (kProductClocks + (by_elements ? kElementClocks : 0)) +
                        (t.runs ? kPlaceClocks : 0);
  const double words = fetch == Fetch::kPairs || fetch == Fetch::kTablePairs ? kind.taps / 2 + 1.5
                       : fetch == Fetch::kHalves ? kind.taps / 2 + 2
                                                 : kind.taps * (element_size(p.dtype) == 2 ? 2 : 1);
  const auto conflicts = static_cast<double>(std::min<int64_t>(p.stride_w, 4));
  const double bytes =
      kind.blocks() * kBlockBytes + (in_slabs ? kBlockBytes : 16 * words * conflicts * kWarpWord);
  const double clocks =
      std::max({(columns / kEfficiency + others) * busy, bytes * busy / kSharedBytes,
                columns + others + (in_slabs ? 0 : kFetchClocks)});
  const double steps = static_cast<double>(ceil_divide(t.steps(), t.along_p));
  const double math = steps * clocks, load = load_clocks(p, t);
  // Threads that load slow down those that multiply; the copy engine does not.
  return (t.boxed || t.runs ? std::sqrt(std::hypot(math * math, load * load))
                            : std::hypot(math, load)) +
         kTileClocks;
}

// `clocks`: of a tile.
double price(const ConvProblem& p, const DeviceProperties& d, const Tile& t, double clocks) {
  const auto busy = static_cast<double>(busy_warpgroups(p, t));
  const double sums = busy * t.kind().blocks() * kBlock * kBlock;
  const double own = sums / t.cluster;  // stored
  const bool direct = t.is_direct();
  double store = own * 4 / kStoreBytesPerClock;
  if (direct) {
    constexpr int kWarps = 4;  // of a warpgroup
    const double rows = t.kind().k_blocks * kBlock / (busy * kWarps * t.cluster);
    store = rows * kRowClocks + (rows_follow(p, t) ? 0 : own * kApartClocks);
  }
  int64_t reached = d.sm_count;
  if (t.cluster > 1) {
    store += exchange_clocks(sums, t.cluster);
    reached = reached_by_clusters(d.sm_count, t.cluster);
  }
  const auto turns = static_cast<double>(ceil_divide(blocks_of(p, t) * t.splits, reached));
  const double block = static_cast<double>(ceil_divide(t.tiles(), t.splits)) * clocks;
  double ms = turns * (kBeginClocks + block + store) / (d.clock_ghz * 1e6);
  // What is cut out of a row begins and ends within what memory brings.
  const double cut =
      t.tiles_q > 1 ? kCutBytes / static_cast<double>(t.columns * element_size(p.dtype)) : 0;
  const double bytes_ms = 1e-6 * p.least_bytes() * (1 + cut) / (kBandwidthShare * d.bandwidth_gb_s);
  ms = std::sqrt(std::hypot(ms * ms, bytes_ms * bytes_ms));
  if (!direct) {
    const double parts = 4.0 * static_cast<double>(blocks_of(p, t) * t.splits) * own;
    ms += kNextMs + parts / kPartsBytesPerClock / (d.clock_ghz * 1e6);
  }
  if (t.cluster > 1 && !direct) ms += kBothMs;
  return ms + kLaunchMs;
}

class Search {
 public:
  Search(const ConvProblem& p, const DeviceProperties& d, std::vector<ConvPlan>* all = nullptr)
      : p_(as_one_row(p)), d_(d), all_(all) {}

  ConvPlan best() {
    // Beside boxes and runs the others are seldom the best: they are weighed where there are no
    // boxes, or all are asked for.
    const bool boxed = is_boxed(p_);
    if (boxed) try_loader(kBoxed);
    try_loader(kRuns);
    try_loader(kRuns | kOneClass);
    if (!boxed || all_ != nullptr || best_.ms == 0) {
      try_loader(kStaged);
      try_loader(0);
    }
    return plan_of(best_);
  }

 private:
  void try_loader(int loader) {
    for (int kernel = 0; kernel < kKernelCount; ++kernel) {
      for (const int along : {0, kAlongC, kAlongP}) {
        for (const int flat : {0, kFlat}) try_variant(kernel | along | loader | flat);
      }
    }
  }

  void try_variant(int variant) {
    choices_.clear();
    // Of runs a plane is one row.
    const bool runs = (variant & kRuns) != 0;
    const int64_t pixels = runs ? p_.P * p_.Q : p_.Q;
    const int unit = static_cast<int>(kUnitBytes / element_size(p_.dtype));
    // As an image's width divides evenly, and what fits whatever the strides.
    const int64_t most = std::min<int64_t>(pixels + unit - 1, kMostPixels);
    std::vector<int64_t> widths;
    for (int64_t i = ceil_divide(pixels, most), last = i + (runs ? kRunCuts : kCuts); i < last;
         ++i) {
      widths.push_back(ceil_divide(pixels, i));
    }
    for (int64_t width = unit; width < most; width *= 2) widths.push_back(width);
    const int64_t whole = runs ? 2 * unit : unit;
    for (int64_t& width : widths) width = ceil_divide(width, whole) * whole;
    std::sort(widths.begin(), widths.end());
    widths.erase(std::unique(widths.begin(), widths.end()), widths.end());
    for (const int64_t width : widths) {
      if (runs) {
        try_tile(variant, {1, static_cast<int>(width), 1});
      } else {
        try_rows(variant, static_cast<int>(width));
      }
    }
    std::sort(choices_.begin(), choices_.end(),
              [](const Choice& a, const Choice& b) { return a.ms < b.ms; });
    if (choices_.empty()) return;
    if (best_.ms == 0 || choices_[0].ms < best_.ms) best_ = choices_[0];
    if (all_ == nullptr) return;
    size_t listed[kMostClusterLog + 1] = {};
    for (const Choice& choice : choices_) {
      size_t& count = listed[choice.variant >> kClusterShift & kMostClusterLog];
      if (count++ < kWeighed) all_->push_back(plan_of(choice));
    }
  }

  void try_rows(int variant, int columns) {
    const auto most = std::min<int64_t>(p_.P, kMostPixels / columns);
    for (int64_t rows = std::max<int64_t>(most, 1); rows > 0; --rows) {
      // As an image's height divides evenly.
      const int64_t cuts = ceil_divide(p_.P, rows);
      if (ceil_divide(p_.P, cuts) != rows) continue;
      const bool whole = cuts == 1 && columns >= p_.Q;
      const int64_t fits = whole ? std::min<int64_t>(kMostPixels / (columns * rows), p_.N) : 1;
      for (int images = 1; images <= fits; ++images) {
        try_tile(variant, {static_cast<int>(rows), columns, images});
      }
    }
  }

  void try_tile(int variant, const int (&pixels)[3]) {
    const int64_t shared = d_.shared_bytes_block - 1024;
    const Tile one = make_tile(p_, variant, pixels, 1, shared);
    const int64_t tiles = one.tiles(), blocks = blocks_of(p_, one);
    if (one.stages < kLeastStages || blocks > kMostSums / one.sums()) return;
    const double clocks = tile_clocks(p_, one);
    // Clusters of splits, whose sums one part holds.
    for (int log = 0; log <= kMostClusterLog && 1 << log <= tiles; ++log) {
      const int64_t cluster = 1 << log;
      const int64_t reached = log > 0 ? reached_by_clusters(d_.sm_count, cluster) : d_.sm_count;
      Choice best{};
      weigh_splits(ceil_divide(tiles, cluster), one.units() * one.unit / one.along_p, blocks,
                   reached / cluster, [&](int64_t parts, bool clustered) {
                     if (clustered) return;
                     Tile t = one;
                     t.splits = parts * cluster;
                     t.cluster = static_cast<int>(cluster);
                     if (shared_bytes(t) > shared) return;
                     const double ms = price(p_, d_, t, clocks);
                     if (best.ms == 0 || ms < best.ms) {
                       best = {t, variant | log << kClusterShift, ms};
                     }
                   });
      if (best.ms > 0) choices_.push_back(best);
    }
  }

  ConvPlan plan_of(const Choice& choice) const {
    const Tile& t = choice.tile;
    ConvPlan plan;
    plan.variant = t.kind().name;
    plan.variant_index = choice.variant | kPlanes;
    plan.tile[0] = t.rows;
    plan.tile[1] = t.columns;
    plan.tile[2] = t.images;
    plan.splits = t.splits;
    plan.block = t.kind().threads();
    plan.wide_index = needs_wide_index(p_);
    plan.shared_bytes = shared_bytes(t);
    plan.grid[0] = blocks_of(p_, t) * t.splits;
    plan.workspace_bytes =
        t.is_direct() ? 0
                      : plan.grid[0] / t.cluster * t.sums() * static_cast<int64_t>(sizeof(float));
    plan.predicted_ms = choice.ms;
    return plan;
  }

  const ConvProblem p_;
  const DeviceProperties& d_;
  std::vector<ConvPlan>* all_;
  std::vector<Choice> choices_;
  Choice best_{};
};

bool has_rows(const Shape4& sizes, const Shape4& strides) {
  return sizes[3] == 1 || strides[3] == 1;
}

}  // namespace

const char* can_implement(const ConvProblem& p, const DeviceProperties& d) {
  if (!d.has_hopper_kernels()) return "its weight gradients need Hopper";
  if (!has_rows(p.x_sizes(), p.x_strides) || !has_rows(p.y_sizes(), p.y_strides)) {
    return "its weight gradients need tensors of one layout";
  }
  if (!has_int32_coordinates(p) || p.N > INT32_MAX / 2) return "image coordinates pass 2^31";
  if (p.K > INT32_MAX / 2 || p.C > INT32_MAX / 2) return "channels pass 2^30";
  const double blocks = static_cast<double>(p.groups) *
                        static_cast<double>(ceil_divide(p.group_K(), kBlock)) *
                        static_cast<double>(ceil_divide(p.group_C(), kBlock));
  // Of the narrowest kernel, half of which may be idle.
  const double sums = blocks * static_cast<double>(p.R * p.S) * 2 * kBlock * kBlock;
  if (sums > static_cast<double>(kMostSums)) return "the weight passes 2^29 elements";
  constexpr int kUnit = 8;
  const double pixels =
      static_cast<double>(p.N) * static_cast<double>(p.P) * static_cast<double>(p.Q + kUnit);
  if (pixels > INT32_MAX) return "the output pixels pass 2^31";
  // The least tile: a unit of a row.
  ConvProblem row = as_one_row(p);
  for (const int along : {0, kAlongC}) {
    const int unit = static_cast<int>(kUnitBytes / element_size(p.dtype));
    const Tile t =
        make_tile(row, (kKernelCount - 1) | along, {1, unit, 1}, 1, d.shared_bytes_block - 1024);
    if (t.stages >= kLeastStages) return nullptr;
  }
  return "a tile's pixels do not fit shared memory";
}

ConvPlan propose(const ConvProblem& p, const DeviceProperties& d) {
  return cheapest_of<Search>(p, d);
}

std::vector<ConvPlan> variants(const ConvProblem& p, const DeviceProperties& d) {
  return all_of<Search>(p, d);
}

}  // namespace customconv::implicit_gemm::wgrad::planes
