#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/implicit_gemm/wgrad/planes/geometry.h"
#include "kernels/implicit_gemm/wgrad/search.h"
#include "kernels/implicit_gemm/wgrad/wgrad.h"
#include "plan/fields.h"
#include "plan/hardware.h"
#include "plan/price.h"
#include "plan/search.h"

namespace customconv::implicit_gemm::wgrad::planes {

namespace {

constexpr int64_t kLoadBatch = 4;  // units of a thread at a time
constexpr int kMostPixels = 512;   // of a tile
constexpr int kCuts = 4;           // of an image, in each dimension
constexpr int kRunCuts = 12;       // of a plane
constexpr int kMostCluster = 8;

// Until a tile is in shared memory: clocks, beside those until what is asked for begins to arrive,
// and bytes that are written there and read.
struct Load {
  double clocks = 0, shared = 0;
};

// Boxes, so many rows.
Load copied(int64_t rows, int64_t bytes) {
  const auto count = static_cast<double>(rows), all = static_cast<double>(rows * bytes);
  return {count * hardware::kCopyRowClocks + all / hardware::kL2BytesPerClock, all};
}

// Clocks of threads that load until they have so many units of each of so many places: until what
// they ask for arrives, some units at a time, and their instructions.
double thread_clocks(int64_t places, int64_t channels, int threads, double instructions) {
  const auto batches = [](int64_t units) { return ceil_divide(units, kLoadBatch); };
  const int64_t rest = places % threads;
  const int64_t more = rest == 0 ? 0 : batches(ceil_divide(channels, threads / rest));
  const auto rounds = static_cast<double>(places / threads * batches(channels) + more);
  const double warps = threads / 32 / hardware::kSchedulers;
  return rounds * (hardware::kMemoryClocks + kLoadBatch * instructions * warps);
}

Load load_of(const ConvProblem& p, const Tile& t) {
  const int64_t bytes = element_size(p.dtype);
  const int64_t channels_c = int64_t{t.channels} * (t.flat ? 1 : t.along_c);
  const int64_t channels_k = int64_t{t.kind().k_blocks} * kBlock;
  const auto both = [](const Load& a, const Load& b) {
    return Load{a.clocks + b.clocks, a.shared + b.shared};
  };
  if (t.boxed) {
    const int64_t across = ceil_divide(t.row_units(), kSlabUnits);
    const int64_t slab = std::min<int64_t>(kSlabUnits * t.unit, p.Q) * bytes;
    const int64_t slabs = t.images * t.rows * across;
    const int64_t x_rows = int64_t{t.images} * t.x_rows;
    return both(copied(channels_k * slabs, slab),
                fetch_of(p, t) == Fetch::kSlabs
                    ? copied(channels_c * slabs, slab)
                    : copied(channels_c * x_rows, std::min<int64_t>(t.x_columns, p.W) * bytes));
  }
  // Instructions: of an entry of a table, of a unit that is loaded and shifted, of one that is put
  // in order, and of a copy of a vector.
  constexpr double kEntry = 100, kLoaded = 60, kOrdered = 25, kVector = 6;
  // What a warp's instructions meet of units, 16 bytes apart, whatever they take of each.
  constexpr double kWarpUnits = 32 * kUnitBytes;
  if (t.runs) {
    const int threads = t.kind().loaders - 32;
    const int64_t entries = t.tiles_q == 1 ? 0 : t.units() * 4 * t.filter_rows;
    const int64_t units = t.orders() ? t.units() * channels_k : 0;
    const double arranging =
        hardware::kDependentClocks * (kEntry * static_cast<double>(ceil_divide(entries, threads)) +
                                      kOrdered * static_cast<double>(ceil_divide(units, threads)));
    Load load = both(copied(channels_c * t.x_runs * t.x_boxes, t.x_columns * bytes),
                     copied(channels_k * t.slabs, int64_t{kSlabUnits} * kUnitBytes));
    load.clocks = std::max(load.clocks, arranging);
    load.shared += static_cast<double>(units) * 3 * kUnitBytes;
    return load;
  }
  const int64_t x_places = int64_t{t.images} * t.inside_rows.count * t.inside_units.count;
  const int64_t y_places = t.steps() * 2;
  const int threads = t.kind().loaders;
  const auto x_units = static_cast<double>(x_places * channels_c);
  const auto y_units = static_cast<double>(y_places * channels_k);
  if (t.vector > 0) {
    // Copies are read and written; dy of float32 is rounded, too.
    const double copies = (x_units + y_units) * kUnitBytes / t.vector / 32;
    const double shared = copies * 2 * kWarpUnits + (bytes == 4 ? 2 * y_units * kUnitBytes : 0);
    const double clocks =
        std::max(shared / hardware::kSharedBytesPerClock, copies * kVector / hardware::kSchedulers);
    return {clocks, shared};
  }
  const double words = bytes == 2 ? 5 : 4;
  const double shared = (x_units + y_units) / 32 * (words + 1) * kWarpUnits;
  const double clocks = thread_clocks(x_places, channels_c, threads, kLoaded) +
                        thread_clocks(y_places, channels_k, threads, kLoaded);
  return {std::max(clocks, shared / hardware::kSharedBytesPerClock), shared};
}

// Warpgroups that have channels, or rows of the filter.
int64_t busy_warpgroups(const ConvProblem& p, const Tile& t) {
  if (t.along_p > 1) return t.along_p;
  if (t.along_c == 1) return t.filter_rows;
  return std::min<int64_t>(t.along_c, ceil_divide(rows_of(p, t.flat).group_C(), kBlock));
}

// What a thread block does, but for how tiles are shared.
Counted count_tile(const ConvProblem& p, const Tile& t) {
  const Kernel& kind = t.kind();
  const auto busy = static_cast<double>(busy_warpgroups(p, t));
  const bool narrow = element_size(p.dtype) == 2;
  // A step of a warpgroup: products of 16 pixels, or 8 of TF32, the bytes of shared memory that are
  // read, and a warp's instructions.
  constexpr double kProductClocks = 32, kBlockBytes = kBlock * 2.0 * kUnitBytes, kWarpWord = 128;
  const double times = kind.halves ? 3 : 1;
  const double columns = times * kind.blocks() * kProductClocks;
  const Fetch fetch = fetch_of(p, t);
  const bool in_slabs = fetch == Fetch::kSlabs;  // nothing is fetched
  const double words = fetch == Fetch::kPairs        ? kind.taps / 2 + 1.5
                       : fetch == Fetch::kHalves     ? kind.taps / 2 + 2
                       : fetch == Fetch::kTablePairs ? kind.taps / 2 + 2
                                                     : kind.taps * (narrow ? 2 : 1);
  const auto conflicts = static_cast<double>(std::min<int64_t>(p.stride_w, 4));
  const double entry = has_table(fetch) ? 2 * t.entry_bytes() * 4 * 4 : 0;
  const double bytes =
      times * kind.blocks() * kBlockBytes +
      (in_slabs ? times * kBlockBytes : 16 * words * conflicts * kWarpWord + entry);
  constexpr double kStep = 24, kProduct = 4;
  const double fetched = in_slabs ? 0 : 4 * words * 2 + 4 * kind.taps * (has_table(fetch) ? 2 : 1);
  // Halving a thread's four pixels, and promotion.
  constexpr double kHalving = 20;
  const double halved =
      (in_slabs ? 0 : kHalving) + kind.k_blocks * 32.0 / (in_slabs ? 2 : kind.together());
  const double issued = kStep + kind.taps * kProduct * times + fetched + (kind.halves ? halved : 0);
  const double steps = static_cast<double>(ceil_divide(t.steps(), t.along_p));
  const double math = steps * busy * columns;
  Load loaded = load_of(p, t);
  if (kind.halves) {  // read, and written twice
    const double slabs = in_slabs ? static_cast<double>(t.along_c * t.x_block) : 0;
    loaded.shared += 3 * (static_cast<double>(t.slabs * t.slab_bytes) + slabs);
  }
  const double load = loaded.clocks;
  const double shared = (steps * busy * bytes + loaded.shared) / hardware::kSharedBytesPerClock;
  const double chain = (hardware::kMemoryClocks + load + math) / t.stages;
  Counted c;
  const int loader = t.boxed         ? 0
                     : t.one_class   ? 2
                     : t.runs        ? 1
                     : t.vector == 8 ? 3
                     : t.vector == 4 ? 4
                                     : 5;
  constexpr int kHalvesRow = 11;
  c.row =
      price_row(PriceKind::kWgradPlanes,
                kind.halves ? kHalvesRow + loader : loader * 2 + (narrow || loader == 5 ? 0 : 1));
  c.sort = Sort::kPlanes;
  const double issue = steps * busy * issued;
  c.products = busy / t.along_p * columns / (2 * t.unit);
  c.busy = busiest({math, issue, shared, std::max(load, chain)});
  c.alone = load + std::max({math, issue, shared});
  // While a warpgroup waits for its products, and fetches more, the others' are under way.
  c.waits = 1 + (in_slabs ? 0 : steps / kind.together() / busy);
  c.bytes = p.least_bytes();
  if (t.tiles_q > 1) {
    c.cut = hardware::kSectorBytes / static_cast<double>(t.columns * element_size(p.dtype));
  }
  c.sums = busy * kind.blocks() * kBlock * kBlock;
  c.all_sums = t.sums();
  c.along_p = t.along_p;
  // A warp stores rows of results one after the other, some of each at a time.
  const bool follow = rows_follow(p, t);
  const double row = kind.taps * (t.along_c > 1 || t.along_p > 1 ? 1 : t.filter_rows) *
                     (t.along_c > 1 ? busy : 1) * kBlock;
  const double stores = std::ceil(row / (follow ? 128 : 32));
  const double store_warps = 4 * busy;
  c.end_waits = kind.k_blocks * kBlock / store_warps * stores;
  c.result_bytes = stores * 512 / row;
  c.tiles = t.tiles();
  c.blocks = blocks_of(p, t);
  return c;
}

class Search : private TileSearch<Search, Tile, PlanesPlan> {
 public:
  Search(const ConvProblem& p, const DeviceProperties& d, std::vector<ConvPlan>* all = nullptr,
         const Wanted& wanted = {})
      : TileSearch(as_one_row(p), d, all, wanted.enough_ms) {
    for (const int64_t columns : widths_of(p_.Q, unit(), kCuts)) {
      const auto most = std::min<int64_t>(p_.P, kMostPixels / columns);
      for (int64_t rows = std::max<int64_t>(most, 1); rows > 0; --rows) {
        // As an image's height divides evenly.
        const int64_t cuts = ceil_divide(p_.P, rows);
        if (ceil_divide(p_.P, cuts) != rows) continue;
        const bool whole = cuts == 1 && columns >= p_.Q;
        const int64_t fits = whole ? std::min<int64_t>(kMostPixels / (columns * rows), p_.N) : 1;
        add_shapes(p_, rows, columns, 1, fits, shapes_);
      }
    }
    // For runs, a plane is one row.
    for (const int columns : widths_of(p_.P * p_.Q, 2 * unit(), kRunCuts)) {
      const double pixels = static_cast<double>(p_.N) * static_cast<double>(p_.P * p_.Q);
      runs_.push_back({{1, columns, 1}, pixels});
    }
    sort_shapes(shapes_);
    sort_shapes(runs_);
  }

  ConvPlan best() {
    // Beside boxes and runs the others are seldom the best: they are weighed where there are no
    // boxes, or all are asked for.
    const bool boxed = is_boxed(p_);
    std::vector<PlanesPlan> variants;
    const auto add = [&](Loader loader) {
      for (int kernel = 0; kernel < kKernelCount; ++kernel) {
        for (const Along along : {Along::kRows, Along::kC, Along::kP}) {
          for (const bool flat : {false, true}) {
            const PlanesPlan variant{kernel, loader, along, flat};
            if (is_variant(p_, variant)) variants.push_back(variant);
          }
        }
      }
    };
    if (boxed) add(Loader::kBoxes);
    add(Loader::kRuns);
    add(Loader::kClassRuns);
    if (!boxed || all_ != nullptr) add(Loader::kThreads);
    try_variants(variants);
    if (!found()) {
      variants.clear();
      add(Loader::kThreads);
      try_variants(variants);
    }
    return found() ? plan_of(best_) : ConvPlan{};
  }

 private:
  friend TileSearch;

  int unit() const { return static_cast<int>(kUnitBytes / element_size(p_.dtype)); }

  // As a row of pixels divides evenly, and what fits whatever the strides.
  Widths widths_of(int64_t pixels, int64_t whole, int cuts) const {
    Widths widths;
    const int64_t most = std::min<int64_t>(pixels + unit() - 1, kMostPixels);
    const auto add = [&](int64_t width) { widths.add(ceil_divide(width, whole) * whole); };
    const int64_t first = ceil_divide(pixels, most);
    for (int64_t i = first; i < first + cuts; ++i) add(ceil_divide(pixels, i));
    for (int64_t width = unit(); width < most; width *= 2) add(width);
    return widths;
  }

  const std::vector<Shape>& shapes_of(const PlanesPlan& plan) const {
    const bool runs = plan.loader == Loader::kRuns || plan.loader == Loader::kClassRuns;
    return runs ? runs_ : shapes_;
  }
  Counted count(const Tile& t) const { return count_tile(p_, t); }
  static void split(const Tile& t, Counted& c) {
    c.splits = t.splits;
    c.cluster = t.cluster;
    c.stores_parts = !t.is_direct();
  }

  // Clusters of splits, whose sums one part holds.
  template <typename Weigh>
  void weigh_splits(PlanesPlan plan, Tile t, Counted c, const Weigh& weigh) const {
    for (int cluster = 1; cluster <= std::min<int64_t>(kMostCluster, c.tiles); cluster *= 2) {
      t.cluster = plan.cluster = cluster;
      const auto reached = static_cast<int64_t>(reached_by(d_, cluster));
      wgrad::weigh_splits(ceil_divide(c.tiles, cluster), t.units() * t.unit / t.along_p, c.blocks,
                          reached / cluster, t.kind().halves ? kMostHalvesSummed : kMostSummed,
                          [&](int64_t parts, bool clustered) {
                            if (clustered) return;
                            t.splits = parts * cluster;
                            split(t, c);
                            if (memory_bytes(t) + kBarrierBytes > d_.shared_bytes_block - 1024) {
                              return;
                            }
                            weigh(plan, t, c);
                          });
    }
  }

  std::vector<Shape> shapes_, runs_;
};

bool has_rows(const Shape5& sizes, const Shape5& strides) {
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
  // Sums of the narrowest kernel, half of which may be idle.
  const double sums = blocks * static_cast<double>(p.R * p.S) * 2 * kBlock * kBlock;
  if (sums > static_cast<double>(kMostSums)) return "the weight passes 2^29 elements";
  constexpr int kUnit = 8;
  const double pixels =
      static_cast<double>(p.N) * static_cast<double>(p.P) * static_cast<double>(p.Q + kUnit);
  if (pixels > INT32_MAX) return "the output pixels pass 2^31";
  // The least tile: a unit of a row.
  const ConvProblem row = as_one_row(p);
  const int kernel = p.is_strict_float32() ? kLeastHalves : kLeastKernel;
  for (const Along along : {Along::kRows, Along::kC}) {
    PlanesPlan plan{kernel, Loader::kThreads, along};
    plan.tile[0] = plan.tile[2] = 1;
    plan.tile[1] = static_cast<int>(kUnitBytes / element_size(p.dtype));
    Tile t = make_tile(row, plan, 1);
    choose_stages(d.shared_bytes_block - 1024, t);
    if (t.stages >= kLeastStages) return nullptr;
  }
  return "a tile's pixels do not fit shared memory";
}

ConvPlan propose(const ConvProblem& p, const DeviceProperties& d, const Wanted& wanted) {
  return cheapest_of<Search>(p, d, wanted);
}

std::vector<ConvPlan> variants(const ConvProblem& p, const DeviceProperties& d) {
  return all_of<Search>(p, d);
}

LaunchShape shape(const ConvProblem& p, const ConvPlan& plan) {
  const bool planes = has_rows(p.x_sizes(), p.x_strides) && has_rows(p.y_sizes(), p.y_strides);
  return planes ? shape_as<PlanesPlan>(as_one_row(p), plan) : LaunchShape{};
}

}  // namespace customconv::implicit_gemm::wgrad::planes

namespace customconv {

template <>
Fields fields_of<PlanKind::implicit_gemm_wgrad_planes>() {
  using implicit_gemm::wgrad::planes::PlanesPlan;
  return FieldList<PlanesPlan>()
      .word("kernel", &PlanesPlan::kernel, words_of(implicit_gemm::wgrad::planes::kKernels))
      .word("loader", &PlanesPlan::loader, {"threads", "boxes", "runs", "class-runs"})
      .word("along", &PlanesPlan::along, {"rows", "c", "p"})
      .flag("flat", &PlanesPlan::flat)
      .number("cluster", &PlanesPlan::cluster)
      .size("tile", &PlanesPlan::tile)
      .size("stages", &PlanesPlan::stages);
}

}  // namespace customconv
