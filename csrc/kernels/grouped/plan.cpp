// grouped: groups on the tensor cores, thin ones several to a block.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/grouped/geometry.h"
#include "kernels/grouped/price.h"
#include "plan/fields.h"
#include "plan/search.h"

namespace customconv::grouped {

namespace {

constexpr int kGradientPixels[] = {64, 128, 256};  // of a tile
constexpr int kGradientTurns[] = {2, 4};           // blocks for each multiprocessor
constexpr int kPixelWarps[] = {1, 2, 4, 8}, kPasses[] = {1, 2, 4};
constexpr int64_t kMostPartBytes = 64 << 20;

// The plans whose smallest tile decides whether there is one.
constexpr SlotsPlan kLeast{1};
constexpr SlotGradientsPlan kLeastGradient{0};

const char* can_implement(const ConvProblem& p, const DeviceProperties& d) {
  if (p.groups == 1) return "it has one group";
  if (p.group_C() == 1) return "a group has one input channel";
  if (p.dtype == DType::kFloat64) return "tensor cores would round float64";
  if (p.dtype == DType::kFloat32 && !p.tf32) return "TF32 is off, and tensor cores would round";
  if (d.capability_major < 8) return "it needs compute capability 8.0";
  if (!has_int32_coordinates(p)) return "image coordinates pass 2^31";
  if (!has_phases(p)) return "the input gradient of a stride above 8";
  if (p.w_count() > INT32_MAX / 2 || std::max(p.C, p.K) > INT32_MAX / 2) {
    return "the weight passes 2^30 elements";
  }
  const Geometry g = geometry_of(p);
  const double tiles = static_cast<double>(p.N) * g.h.positions * g.w.positions;
  if (tiles * static_cast<double>(p.groups + p.K) > INT32_MAX) {
    return "it has too many output pixels for one grid";
  }
  const Tile least = tile_of(g, 1, 1, 1);
  const int64_t size = element_size(p.dtype);
  const auto fits = [&d](const auto& work) {
    return work.fits && work.bytes <= d.shared_bytes_block;
  };
  const bool possible = p.pass == Pass::kWgrad
                            ? fits(gradient_work_of(g, kLeastGradient, least, size))
                            : fits(grouped::work_of(g, kLeast, least, size));
  return possible ? nullptr : "its halo fits no shared memory";
}

// How boxes may be brought: planes by strips where that is possible, and by threads.
std::vector<Loading> loadings(const Geometry& g, bool gradient) {
  if (g.in_boxed && (!gradient || g.out_boxed)) return {Loading::kBoxes};
  if (g.in_planes && (!gradient || g.out_planes)) return {Loading::kStrips, Loading::kThreads};
  return {Loading::kThreads};
}

int64_t even_piece(int64_t size, int64_t most) {
  return ceil_divide(size, ceil_divide(size, most));
}

class Search : public PlanSearch {
 public:
  using PlanSearch::PlanSearch;

  ConvPlan best() {
    if (p_.pass == Pass::kWgrad) return best_gradient();
    for (int kernel = 0; kernel < kKernelCount; ++kernel) {
      for (const int warps : kPixelWarps) {
        for (const int passes : kPasses) {
          const SlotsPlan v{kernel, warps, passes};
          tried_.clear();
          try_tiles(v, v.pixels());
        }
      }
    }
    if (!has_box_kernels()) return best_;
    for (const int warps : kPixelWarps) {
      for (int kernel = 0; kernel < kBoxKernelCount; ++kernel) {
        for (const Loading loading : loadings(g_, false)) {
          const BoxesPlan v{kernel, warps, loading};
          tried_.clear();
          try_boxes(v, v.pixels());
        }
      }
    }
    return best_;
  }

 private:
  ConvPlan best_gradient() {
    for (int kernel = 0; kernel < kGradientKernelCount; ++kernel) {
      for (const int warps : kPixelWarps) {
        tried_.clear();
        for (const int pixels : kGradientPixels) {
          try_tiles(SlotGradientsPlan{kernel, warps}, pixels);
        }
      }
    }
    if (!has_box_kernels()) return best_;
    for (const int warps : kPixelWarps) {
      for (int kernel = 0; kernel < kGradientBoxKernelCount; ++kernel) {
        for (const Loading loading : loadings(g_, true)) {
          tried_.clear();
          for (const int pixels : kGradientPixels) {
            try_boxes(BoxGradientsPlan{kernel, warps, loading}, pixels);
          }
        }
      }
    }
    return best_;
  }

  bool has_box_kernels() const {
    return d_.has_hopper_kernels() && (p_.pass != Pass::kWgrad || size_ == 2);
  }

  // Tries tiles of at most so many pixels, from wide to narrow. If rows are multiples of eight
  // pixels, or the image's, the rows of an operand lie in banks of their own.
  template <typename V>
  void try_boxes(const V& v, int64_t pixels) {
    constexpr int64_t kNarrow = 4, kUnit = 8;
    if (is_over()) return;
    const int64_t width = g_.w.positions;
    for (int64_t most = pixels; most >= kNarrow; most /= 2) {
      const int64_t even = even_piece(width, most);
      for (const int64_t columns : {even, std::min(ceil_divide(even, kUnit) * kUnit, most)}) {
        if (columns > pixels) continue;
        int64_t rows = even_piece(g_.h.positions, pixels / columns);
        const bool whole = rows == g_.h.positions && columns >= width;
        int64_t images = whole ? even_piece(p_.N, pixels / (rows * columns)) : 1;
        while (tried_.add({images, rows, columns}) && !consider_box(v, images, rows, columns)) {
          int64_t& most_of = images > 1 ? images : rows;
          if (most_of == 1) break;
          most_of = (most_of + 1) / 2;
        }
      }
    }
  }

  // See count_conflicts; many variants have the same tile.
  double conflicts(const Tile& tile) {
    if (tile.columns % 8 == 0) return 1;
    const TileSizes sizes{tile.images, tile.rows, tile.columns};
    const auto known = std::find_if(conflicts_.begin(), conflicts_.end(),
                                    [&](const auto& each) { return each.first == sizes; });
    if (known != conflicts_.end()) return known->second;
    conflicts_.emplace_back(sizes, count_conflicts(g_, tile));
    return conflicts_.back().second;
  }

  template <typename V>
  bool consider_box(const V& v, int64_t images, int64_t rows, int64_t columns) {
    if (images > kMostBox || rows > kMostBox || columns > kMostBox) return false;
    return consider_boxes(
        v, box_of(g_, static_cast<int>(images), static_cast<int>(rows), static_cast<int>(columns)));
  }

  bool consider_boxes(BoxesPlan v, const Tile& tile) {
    return each_stages(
        v, kBoxKernels[v.kernel].blocks(), [&] { return box_work_of(g_, v, tile, size_); },
        [&](const BoxWork& w, int blocks) { share_boxes(v, w, blocks, conflicts(tile)); });
  }

  // `asked`: see count_conflicts.
  void share_boxes(BoxesPlan v, const BoxWork& w, int resident, double asked) {
    v.tile_blocks = tile_blocks(w.tiles.all(), w.slices, resident);
    ConvPlan plan{shape_of(w, v)};
    plan.works = counter_.count(v, w, plan, resident, asked);
    take(plan, v, w.tile);
  }

  // Blocks that share the tiles of a slice: all blocks at once, or of each slice one.
  int tile_blocks(int64_t tiles, int64_t slices, int64_t resident) const {
    const int64_t blocks = std::clamp<int64_t>(resident * d_.sm_count / slices, 1, tiles);
    return static_cast<int>(ceil_divide(tiles, ceil_divide(tiles, blocks)));
  }

  // Calls `use` with the work of as many stages as there is room for, where so many blocks share a
  // multiprocessor, and where fewer have it. Whether any fit.
  template <typename Plan, typename WorkOf, typename Use>
  bool each_stages(Plan& plan, int most_blocks, const WorkOf& work, const Use& use) {
    plan.stages = kMostStages;
    auto w = work();
    if (!w.fits) {
      plan.stages = 1;
      w = work();
    }
    int last = 0;
    for (int blocks = most_blocks; w.fits && blocks > 0 && last < kMostStages; --blocks) {
      const int shared = shared_bytes_of(blocks);
      const int stages = std::min((shared - w.fixed_bytes()) / w.stage_bytes(), kMostStages);
      if (stages < 1 || stages == last) continue;
      if (stages != w.stages) {
        plan.stages = stages;
        w = work();
      }
      if (w.bytes > shared) continue;
      last = stages;
      use(w, blocks);
    }
    return last > 0;
  }

  // Tiles of about so many pixels, from wide ones to narrow ones.
  template <typename V>
  void try_tiles(const V& v, int64_t pixels) {
    constexpr int64_t kNarrow = 6;
    if (is_over()) return;
    for (int64_t most = pixels; most >= std::min<int64_t>(kNarrow, pixels); most /= 2) {
      const int64_t columns = even_piece(g_.w.positions, most);
      const int64_t rows = even_piece(g_.h.positions, pixels / columns);
      const bool whole = rows == g_.h.positions && columns == g_.w.positions;
      const int64_t images = whole ? even_piece(p_.N, pixels / (rows * columns)) : 1;
      fit(v, images, rows, columns);
    }
  }

  // Takes the tile, or of one that is too large a part.
  template <typename V>
  void fit(const V& v, int64_t images, int64_t rows, int64_t columns) {
    while (tried_.add({images, rows, columns})) {
      const Tile tile =
          tile_of(g_, static_cast<int>(images), static_cast<int>(rows), static_cast<int>(columns));
      if (consider(v, tile)) return;
      int64_t& most = images > 1 ? images : rows >= columns ? rows : columns;
      if (most == 1) return;
      most = (most + 1) / 2;
    }
  }

  bool consider(SlotsPlan v, const Tile& tile) {
    const Work w = grouped::work_of(g_, v, tile, size_);
    if (!w.fits || w.bytes > d_.shared_bytes_block) return v.passes > 1 && !w.resident;
    const double resident = std::min<double>(kKernels[v.kernel].blocks(), resident_of(w.bytes));
    v.tile_blocks = tile_blocks(w.tiles.all(), w.slices, static_cast<int64_t>(resident));
    ConvPlan plan{shape_of(w, v)};
    plan.works = counter_.count(v, w, plan, resident);
    take(plan, v, tile);
    return true;
  }

  bool consider(const SlotGradientsPlan& v, const Tile& tile) {
    const GradientWork w = gradient_work_of(g_, v, tile, size_);
    if (!w.fits || w.bytes > d_.shared_bytes_block) return false;
    split_gradient(v, w);
    return true;
  }

  bool consider_boxes(BoxGradientsPlan v, const Tile& tile) {
    // Parts of steps are looked at pixel by pixel; a tile of whole ones is never far.
    if (tile.pixels() > kStepPixels && tile.pixels() % kStepPixels != 0) return false;
    return each_stages(
        v, v.own_kernel().box_blocks(), [&] { return gradient_box_work_of(g_, v, tile); },
        [&](const GradientBoxWork& w, int blocks) {
          cluster_gradient(v, w, blocks, conflicts(tile));
        });
  }

  // Gives blocks shares of the tiles.
  void split_gradient(const SlotGradientsPlan& v, const GradientWork& w) {
    const GradientClocks clocks = counter_.count_tile(v, w);
    const double resident = std::min<double>(v.own_kernel().blocks(), resident_of(w.bytes));
    const int64_t parts = v.pixel_warps;  // that a block leaves
    int64_t last = 0;
    for (const int turns : kGradientTurns) {
      int64_t splits =
          std::clamp<int64_t>(turns * d_.sm_count / w.cut.slices, 1, w.cut.tiles.all());
      splits = std::min(splits, std::max<int64_t>(kMostPartBytes / (4 * p_.w_count() * parts), 1));
      if (splits == last) break;
      last = splits;
      ConvPlan plan{shape_of(p_, w, v, splits * parts)};
      plan.splits = splits * parts;
      plan.works = counter_.count(v, w, plan, resident, clocks);
      take(plan, v, w.tile);
    }
  }

  // The same of clusters of blocks: one stores the result, or some leave parts. `asked`: see
  // count_conflicts.
  void cluster_gradient(BoxGradientsPlan v, const GradientBoxWork& w, int resident, double asked) {
    const GradientClocks clocks = counter_.count_tile(v, w, asked);
    const int64_t tiles = w.cut.tiles.all();
    for (v.cluster = 1; v.cluster <= kMostClustered; v.cluster *= 2) {
      const int64_t cluster = v.cluster;
      int64_t last = 0;
      for (const int turns : {0, 1, 2, 4}) {
        int64_t parts = std::max<int64_t>(turns * d_.sm_count / (w.cut.slices * cluster), 1);
        const int64_t part_bytes = w.part * 16;
        parts =
            std::min({parts, std::max<int64_t>(kMostPartBytes / part_bytes, 1), tiles / cluster});
        if (parts <= last) continue;
        last = parts;
        const int64_t splits = parts * cluster, own = ceil_divide(tiles, splits);
        if (ceil_divide(tiles, own) <= splits - cluster) continue;  // fewer do as well
        ConvPlan plan{shape_of(w, v, splits)};
        plan.splits = splits;
        plan.works = counter_.count(v, w, plan, resident, clocks);
        take(plan, v, w.tile);
      }
    }
  }

  double resident_of(double bytes) const {
    return std::max(std::floor(d_.shared_bytes_block / (bytes + 1024)), 1.0);
  }

  // What each of so many blocks of a multiprocessor may have.
  int shared_bytes_of(int blocks) const {
    constexpr int kReserved = 1024;
    return (d_.shared_bytes_block + kReserved) / blocks - kReserved;
  }

  template <typename V>
  void take(ConvPlan& plan, V v, const Tile& tile) {
    v.tile[0] = tile.rows;
    v.tile[1] = tile.columns;
    v.tile[2] = tile.images;
    plan.payload = v;
    add(plan);
  }

  const Geometry g_ = geometry_of(p_);
  const int size_ = static_cast<int>(element_size(p_.dtype));
  const Counter counter_{p_, d_, g_};
  using TileSizes = std::tuple<int64_t, int64_t, int64_t>;  // images, rows and columns
  Tried<TileSizes> tried_;                                  // of a variant
  std::vector<std::pair<TileSizes, double>> conflicts_;
};

// See Family: by who brings boxes, or without boxes by the channels that are multiplied at a time;
// with an epilogue also by the kernel, as compilers may join a product and a sum there.
int64_t sum_order(const ConvProblem& p, const ConvPlan& plan) {
  if (p.pass == Pass::kWgrad) return 0;  // its sums run over the batch
  int64_t order = 0, kernel = 0;
  if (plan.payload.kind() == PlanKind::grouped_boxes) {
    const auto v = plan.payload.as<BoxesPlan>();
    order = v.loading == Loading::kThreads ? -1 : -2;
    kernel = kKernelCount + v.kernel;
  } else {
    const auto v = plan.payload.as<SlotsPlan>();
    const Geometry g = geometry_of(p);
    order = work_of(g, v, tile_of(g, 1, 1, 1), element_size(p.dtype)).units;
    kernel = v.kernel;
  }
  return p.epilogue_passes > 0 ? order * (kKernelCount + kBoxKernelCount) + kernel : order;
}

LaunchShape shape(const ConvProblem& p, const DeviceProperties& d, const ConvPlan& plan) {
  const bool gradient = p.pass == Pass::kWgrad;
  const Geometry g = geometry_of(p);
  const int64_t size = element_size(p.dtype);
  const auto brings = [&](Loading loading) {
    const std::vector<Loading> all = loadings(g, gradient);
    return d.has_hopper_kernels() && std::find(all.begin(), all.end(), loading) != all.end();
  };
  const auto tile = [&g](const auto& make, const auto& v) {
    return make(g, v.tile[2], v.tile[0], v.tile[1]);
  };
  switch (plan.payload.kind()) {
    case PlanKind::grouped_slots: {
      const auto v = plan.payload.as<SlotsPlan>();
      const Work w = work_of(g, v, tile(tile_of, v), size);
      return !gradient && w.fits ? shape_of(w, v) : LaunchShape{};
    }
    case PlanKind::grouped_boxes: {
      const auto v = plan.payload.as<BoxesPlan>();
      const BoxWork w = box_work_of(g, v, tile(box_of, v), size);
      return !gradient && w.fits && brings(v.loading) ? shape_of(w, v) : LaunchShape{};
    }
    case PlanKind::grouped_slot_gradients: {
      const auto v = plan.payload.as<SlotGradientsPlan>();
      const GradientWork w = gradient_work_of(g, v, tile(tile_of, v), size);
      return gradient && w.fits ? shape_of(p, w, v, plan.splits) : LaunchShape{};
    }
    default: {
      const auto v = plan.payload.as<BoxGradientsPlan>();
      const GradientBoxWork w = gradient_box_work_of(g, v, tile(box_of, v));
      const bool fits = gradient && size == 2 && w.fits && brings(v.loading);
      return fits ? shape_of(w, v, plan.splits) : LaunchShape{};
    }
  }
}

}  // namespace

extern const Family family;
const Family family{"grouped",      can_implement, cheapest_of<Search>, shape, all_of<Search>,
                    /*fuses=*/true, sum_order};

}  // namespace customconv::grouped

namespace customconv {

template <>
Fields fields_of<PlanKind::grouped_slots>() {
  using grouped::SlotsPlan;
  return FieldList<SlotsPlan>()
      .word("kernel", &SlotsPlan::kernel, words_of(grouped::kKernels))
      .number("pixel_warps", &SlotsPlan::pixel_warps)
      .number("passes", &SlotsPlan::passes)
      .size("tile", &SlotsPlan::tile)
      .size("tile_blocks", &SlotsPlan::tile_blocks);
}

template <>
Fields fields_of<PlanKind::grouped_slot_gradients>() {
  using grouped::SlotGradientsPlan;
  return FieldList<SlotGradientsPlan>()
      .word("kernel", &SlotGradientsPlan::kernel, words_of(grouped::kGradientKernels))
      .number("pixel_warps", &SlotGradientsPlan::pixel_warps)
      .size("tile", &SlotGradientsPlan::tile);
}

template <>
Fields fields_of<PlanKind::grouped_boxes>() {
  using grouped::BoxesPlan;
  return FieldList<BoxesPlan>()
      .word("kernel", &BoxesPlan::kernel, words_of(grouped::kBoxKernels))
      .number("pixel_warps", &BoxesPlan::pixel_warps)
      .word("loading", &BoxesPlan::loading, {"boxes", "strips", "threads"})
      .size("tile", &BoxesPlan::tile)
      .size("stages", &BoxesPlan::stages)
      .size("tile_blocks", &BoxesPlan::tile_blocks);
}

template <>
Fields fields_of<PlanKind::grouped_box_gradients>() {
  using grouped::BoxGradientsPlan;
  return FieldList<BoxGradientsPlan>()
      .word("kernel", &BoxGradientsPlan::kernel, words_of(grouped::kGradientBoxKernels))
      .number("pixel_warps", &BoxGradientsPlan::pixel_warps)
      .word("loading", &BoxGradientsPlan::loading, {"boxes", "strips", "threads"})
      .number("cluster", &BoxGradientsPlan::cluster)
      .size("tile", &BoxGradientsPlan::tile)
      .size("stages", &BoxGradientsPlan::stages);
}

}  // namespace customconv
