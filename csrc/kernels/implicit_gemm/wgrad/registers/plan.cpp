#include "kernels/implicit_gemm/wgrad/registers/plan.h"

#include <algorithm>
#include <vector>

#include "kernels/implicit_gemm/wgrad/registers/geometry.h"
#include "kernels/implicit_gemm/wgrad/search.h"
#include "plan/fields.h"
#include "plan/hardware.h"
#include "plan/price.h"
#include "plan/search.h"

namespace customconv::implicit_gemm::wgrad::registers {

namespace {

constexpr int kMostPixels = 512;  // of a tile
constexpr int kCuts = 4;          // of an image, in each dimension
constexpr int kMostImages = 16;

int whole(int64_t count, int unit) { return static_cast<int>(ceil_divide(count, unit) * unit); }

// Pixels of x that a stride passes over are not read.
double least_bytes(const ConvProblem& p) {
  const auto met = [](int64_t taps, int64_t stride) {
    return static_cast<double>(std::min(taps, stride)) / static_cast<double>(stride);
  };
  const double passed = 1 - met(p.R, p.stride_h) * met(p.S, p.stride_w);
  const auto x_bytes = static_cast<double>(p.x_count() * element_size(p.dtype));
  return p.least_bytes() - passed * x_bytes;
}

// What a thread block does, but for how tiles are shared.
Counted count_tile(const ConvProblem& p, const Tile& t) {
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
  constexpr double kProductClocks = 32;  // of 64 by 64 channels and 32 bytes of pixels
  const double times = kind.halves ? 3 : 1;
  const double math = steps * kProductClocks * kind.products() * times;
  // What a warpgroup reads of x and dy, the boxes that are copied, and float32 dy once more both
  // ways.
  const double x_bytes = kUnitBytes * (t.element_bytes == 2 ? 2 : 1) * t.conflicts;
  const double read = (steps * kind.fresh() + rows * kind.kept()) * x_bytes +
                      steps * kind.products() * times * kPair * kUnitBytes;
  const auto y_bytes = static_cast<double>(y_boxes * t.y_box_bytes);
  const double copied = static_cast<double>(t.x_boxes() * t.x_box_bytes) + y_bytes;
  const double transposed = t.element_bytes == 4 ? (kind.halves ? 3.0 : 2.0) * y_bytes : 0;
  const double shared = (busy * read + copied + transposed) / hardware::kSharedBytesPerClock;
  // A stage is copied, or filled, transposed and multiplied, while the others are.
  const auto fill = [&](bool fills, int64_t pixels, int64_t channels, int boxes, int block) {
    double clocks = 0;
    for (int i = 0; fills && i < boxes && channels > 0; ++i, channels -= block) {
      clocks += filled_clocks(pixels, std::min<int64_t>(channels, block), 4, /*threads=*/32);
    }
    return clocks;
  };
  const int64_t x_rows = int64_t{t.images} * t.x_rows;
  constexpr double kCopy = 6;  // instructions of a warp, for 32 elements of a row
  const auto copies = static_cast<double>(x_rows * ceil_divide(t.x_columns, 32));
  const double copied_rows = t.fills_x ? copies * kCopy * hardware::kDependentClocks : 0;
  const double filled_x =
      kind.few ? copied_rows
               : fill(t.fills_x, x_rows * t.x_columns, p.group_C(), t.x_boxes(), kXBlock);
  const double load = copied / hardware::kL2BytesPerClock +
                      fill(t.fills_y, t.pixels(), p.group_K(), t.y_boxes(), kBlock) + filled_x;
  const double turn = transposed / hardware::kSharedBytesPerClock;
  const double chain = (hardware::kMemoryClocks + load + turn + math * busy) / t.stages;
  Counted c;
  // The kernel of few channels has a row of each size of elements. Those of halves follow.
  const bool is_later = kind.halves || (kind.few && t.element_bytes == 2);
  c.row = price_row(PriceKind::kWgradRegisters, t.kernel + (is_later ? 1 : 0));
  c.sort = Sort::kRegisters;
  c.products = math * busy / t.pixels();
  c.busy = busiest({math * busy, shared, std::max(load, chain)});
  c.alone = load + turn + std::max(math * busy, shared);
  // While a warpgroup waits for its products, and reads more of x, the others' are under way.
  c.waits = 1 + groups / busy;
  c.bytes = least_bytes(p);
  c.sums = busy * kind.products() * kBlock * kBlock;
  c.all_sums = t.sums();
  c.result_bytes = p.w_strides[1] == 1 ? t.element_bytes : hardware::kSectorBytes;
  c.tiles = t.tiles();
  c.blocks = blocks_of(p, t);
  return c;
}

class Search : private TileSearch<Search, Tile, RegistersPlan> {
 public:
  Search(const ConvProblem& p, const DeviceProperties& d, std::vector<ConvPlan>* all = nullptr,
         const Wanted& wanted = {})
      : TileSearch(as_columns(p), d, all, wanted.enough_ms) {
    for (const bool few : {false, true}) {
      if (few && !is_few(p_)) continue;
      for (const bool by_images : {false, true}) {
        add_all(few, by_images);
        sort_shapes(shapes_[few ? 1 : 0][by_images ? 1 : 0]);
      }
    }
  }

  ConvPlan best() {
    std::vector<RegistersPlan> variants;
    for (int kernel = 0; kernel < kKernelCount; ++kernel) {
      if (kKernels[kernel].taps > 1 && p_.S == 1) continue;
      for (const Along along : {Along::kRows, Along::kK, Along::kC}) {
        if (along == Along::kRows && p_.R == 1) continue;
        for (const bool by_images : {false, true}) {
          const RegistersPlan variant{kernel, by_images, /*clustered=*/false, along};
          if (is_variant(p_, variant)) variants.push_back(variant);
        }
      }
    }
    try_variants(variants);
    return found() ? plan_of(best_) : ConvPlan{};
  }

 private:
  friend TileSearch;

  // As an image's width divides evenly, and what fits whatever the strides.
  void add_all(bool few, bool by_images) {
    const int unit = column_unit(p_, kKernels[few ? kFewKernel : 0]);
    Widths widths;
    for (int64_t cuts = 1; cuts <= kCuts; ++cuts) {
      const int64_t columns = ceil_divide(p_.Q, cuts);
      if (columns <= kMostBox) widths.add(whole(columns, unit));
    }
    for (int columns = unit; columns <= kMostBox && columns < p_.Q; columns *= 2) {
      widths.add(columns);
    }
    const auto lines = static_cast<int>(16 / element_size(p_.dtype));
    const int row_unit = by_images ? 1 : lines, least_images = by_images ? lines : 1;
    for (const int columns : widths) {
      if (columns > kMostBox) continue;
      const int64_t most = kMostPixels / (columns * least_images) / row_unit * row_unit;
      for (int64_t rows = std::min<int64_t>(whole(p_.P, row_unit), most); rows > 0;
           rows -= row_unit) {
        // As an image's height divides evenly.
        const int64_t cuts = ceil_divide(p_.P, rows);
        if (whole(ceil_divide(p_.P, cuts), row_unit) != rows) continue;
        const int64_t room = std::min<int64_t>(kMostPixels / (columns * rows), kMostImages);
        const int64_t some = std::min<int64_t>(room, p_.N + least_images - 1);
        add_shapes(p_, rows, columns, least_images, cuts > 1 ? least_images : some,
                   shapes_[few ? 1 : 0][by_images ? 1 : 0]);
      }
    }
  }

  const std::vector<Shape>& shapes_of(const RegistersPlan& plan) const {
    return shapes_[kKernels[plan.kernel].few ? 1 : 0][plan.by_images ? 1 : 0];
  }
  Counted count(const Tile& t) const { return count_tile(p_, t); }
  static void split(const Tile& t, Counted& c) { split_by_cluster(t, c); }

  template <typename Weigh>
  void weigh_splits(const RegistersPlan& plan, const Tile& t, const Counted& c,
                    const Weigh& weigh) {
    weigh_clusters(plan, t, c, t.kind().halves ? kMostHalvesSummed : kMostSummed, weigh);
  }

  std::vector<Shape> shapes_[2][2];  // of few channels; of lines that are images
};

}  // namespace

bool has_few(const ConvProblem& p, const DeviceProperties& d) {
  if (!is_few(p)) return false;
  const auto lines = static_cast<int>(16 / element_size(p.dtype));
  for (int kernel = 0; kernel < kKernelCount; ++kernel) {
    RegistersPlan plan{kernel, /*by_images=*/false, /*clustered=*/false, Along::kC};
    if (!kKernels[kernel].few || !is_variant(p, plan)) continue;
    const int columns = column_unit(p, kKernels[kernel]);
    for (const bool by_images : {false, true}) {
      plan.by_images = by_images;
      plan.tile[0] = by_images ? 1 : lines;
      plan.tile[1] = columns;
      plan.tile[2] = by_images ? lines : 1;
      Tile least = make_tile(p, plan, 1);
      choose_stages(d.shared_bytes_block - 1024, least);
      if (least.stages >= kLeastStages) return true;
    }
  }
  return false;
}

ConvPlan propose(const ConvProblem& p, const DeviceProperties& d, const Wanted& wanted) {
  return cheapest_of<Search>(p, d, wanted);
}

std::vector<ConvPlan> variants(const ConvProblem& p, const DeviceProperties& d) {
  return all_of<Search>(p, d);
}

LaunchShape shape(const ConvProblem& p, const ConvPlan& plan) {
  return has_pixels(p) ? shape_as<RegistersPlan>(as_columns(p), plan) : LaunchShape{};
}

}  // namespace customconv::implicit_gemm::wgrad::registers

namespace customconv {

template <>
Fields fields_of<PlanKind::implicit_gemm_wgrad_registers>() {
  using implicit_gemm::wgrad::registers::RegistersPlan;
  return FieldList<RegistersPlan>()
      .word("kernel", &RegistersPlan::kernel, words_of(implicit_gemm::wgrad::registers::kKernels))
      .word("lines", &RegistersPlan::by_images, {"rows", "images"})
      .word("along", &RegistersPlan::along, {"rows", "k", "c"})
      .flag("clustered", &RegistersPlan::clustered)
      .size("tile", &RegistersPlan::tile)
      .size("stages", &RegistersPlan::stages);
}

}  // namespace customconv
