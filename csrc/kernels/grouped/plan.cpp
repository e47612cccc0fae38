// grouped: groups on the tensor cores, thin ones several to a block.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/grouped/geometry.h"
#include "kernels/grouped/price.h"
#include "plan/search.h"

namespace customconv::grouped {

namespace {

constexpr int kGradientPixels[] = {64, 128, 256};  // of a tile
constexpr int kGradientTurns[] = {2, 4};           // blocks for each multiprocessor
constexpr int64_t kMostPartBytes = 64 << 20;

// The variants whose smallest tile decides whether there is a plan.
constexpr Variant kLeast{1, 0, 0};
constexpr Variant kLeastGradient{0, 0, 0};

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
  const bool fits =
      p.pass == Pass::kWgrad
          ? gradient_work_of(g, kLeastGradient, least, size, d.shared_bytes_block).fits
          : work_of(g, kLeast, least, size, d.shared_bytes_block).fits;
  return fits ? nullptr : "its halo fits no shared memory";
}

int64_t even_piece(int64_t size, int64_t most) {
  return ceil_divide(size, ceil_divide(size, most));
}

class Search : public PlanSearch {
 public:
  using PlanSearch::PlanSearch;

  ConvPlan best() {
    const bool gradient = p_.pass == Pass::kWgrad;
    const int kernels = gradient ? kGradientKernelCount : kKernelCount;
    for (int kernel = 0; kernel < kernels; ++kernel) {
      for (int warps = 0; warps < 4; ++warps) {
        if (gradient) {
          for (const int pixels : kGradientPixels) try_tiles({kernel, warps, 0}, pixels);
          continue;
        }
        for (int passes = 0; passes < kPassChoices; ++passes) {
          const Variant v{kernel, warps, passes};
          try_tiles(v, v.pixels());
        }
      }
    }
    if (!has_box_kernels()) return best_;
    for (int warps = 0; warps < 4; ++warps) {
      if (gradient) {
        for (int kernel = 0; kernel < kGradientBoxKernelCount; ++kernel) {
          for (const int pixels : kGradientPixels) {
            for (const bool by_threads : loadings()) {
              try_boxes({kGradientKernelCount + kernel, warps, 0, by_threads}, pixels);
            }
          }
        }
      } else {
        for (int kernel = 0; kernel < kBoxKernelCount; ++kernel) {
          for (const bool by_threads : loadings()) {
            const Variant v{kKernelCount + kernel, warps, 0, by_threads};
            try_boxes(v, v.pixels());
          }
        }
      }
    }
    return best_;
  }

 private:
  // How variants bring boxes (Variant::by_threads): planes by strips where that is possible, and by
  // threads.
  std::vector<bool> loadings() const {
    const bool gradient = p_.pass == Pass::kWgrad;
    if (g_.in_boxed && (!gradient || g_.out_boxed)) return {false};
    if (g_.in_planes && (!gradient || g_.out_planes)) return {false, true};
    return {true};
  }

  bool has_box_kernels() const {
    return d_.has_hopper_kernels() && (p_.pass != Pass::kWgrad || size_ == 2);
  }

  // Tiles of at most so many pixels, from wide ones to narrow ones. Of eight neighbours, or whole
  // rows: those of an operand then lie in banks of their own.
  void try_boxes(const Variant& v, int64_t pixels) {
    constexpr int64_t kNarrow = 4, kUnit = 8;
    const int64_t width = g_.w.positions;
    std::vector<int64_t> tried;
    for (int64_t most = pixels; most >= kNarrow; most /= 2) {
      const int64_t even = even_piece(width, most);
      for (const int64_t columns : {even, std::min(ceil_divide(even, kUnit) * kUnit, most)}) {
        const bool is_new = std::find(tried.begin(), tried.end(), columns) == tried.end();
        if (!is_new || columns > pixels) continue;
        tried.push_back(columns);
        int64_t rows = even_piece(g_.h.positions, pixels / columns);
        const bool whole = rows == g_.h.positions && columns >= width;
        int64_t images = whole ? even_piece(p_.N, pixels / (rows * columns)) : 1;
        while (!consider_boxes(v, images, rows, columns)) {
          int64_t& most_of = images > 1 ? images : rows;
          if (most_of == 1) break;
          most_of = (most_of + 1) / 2;
        }
      }
    }
  }

  // How often shared memory is asked for eight rows of an operand, once if all lie in banks of
  // their own.
  double conflicts(const Tile& tile) const {
    int64_t asked = 0, eights = 0;
    const int step_h = g_.h.step / g_.h.class_step;
    for (int first = 0; first < tile.pixels(); first += 8, ++eights) {
      int found[8] = {}, most = 0;
      for (int i = first; i < std::min(first + 8, tile.pixels()); ++i) {
        const int column = i % tile.columns, row = i / tile.columns;
        const int h = row / tile.rows * tile.kept_rows + row % tile.rows * step_h;
        most = std::max(most, ++found[(h * tile.pitch + column) % 8]);
      }
      asked += most;
    }
    return static_cast<double>(asked) / static_cast<double>(eights);
  }

  bool consider_boxes(const Variant& v, int64_t images, int64_t rows, int64_t columns) {
    if (images > kMostBox || rows > kMostBox || columns > kMostBox) return false;
    const Tile tile =
        box_of(g_, static_cast<int>(images), static_cast<int>(rows), static_cast<int>(columns));
    if (p_.pass == Pass::kWgrad) return consider_gradient_boxes(v, tile);
    const BoxKernel& kernel = v.box_kernel();
    bool fits = false;
    int last = 0;
    double asked = 0;
    for (const int blocks : {kernel.blocks(), 1}) {
      const BoxWork w = box_work_of(g_, v, tile, size_, shared_bytes_of(blocks));
      if (!w.fits || w.bytes == last) continue;
      last = w.bytes;
      fits = true;
      if (asked == 0) asked = conflicts(tile);
      price_boxes(v, w, std::min(kernel.blocks(), blocks), asked);
    }
    return fits;
  }

  // `asked`: see conflicts.
  void price_boxes(const Variant& v, const BoxWork& w, int resident, double asked) {
    const BoxKernel& kernel = v.box_kernel();
    const int64_t tiles = w.tiles.all();
    int64_t tile_blocks = std::clamp<int64_t>(int64_t{resident} * d_.sm_count / w.slices, 1, tiles);
    tile_blocks = ceil_divide(tiles, ceil_divide(tiles, tile_blocks));
    const double own = static_cast<double>(ceil_divide(tiles, tile_blocks));
    const double warps = w.warps, pixels = kernel.pixels, channels = kernel.channels;
    const double phases = g_.h.phases * g_.w.phases, steps = warps * w.steps;
    const double issues =
        steps * (kBoxInstructionsPerStep + channels +
                 pixels * (kBoxInstructionsPerOperand + channels)) +
        warps * phases *
            (kBoxInstructionsPerTile + 2 * pixels * (kBoxInstructionsPerOutput + 2 * channels));
    const double shared = steps * (1 + 2 * channels + 4 * pixels * asked) +
                          w.brought_bytes() / 128.0 + warps * phases * pixels * 2;
    const double products = steps * pixels * channels * kProductClocks;
    const double brought = w.brought_bytes() / kBoxBytesPerClock;
    double waits = w.stages > 1 ? kBoxTileClocks : kBoxTurnClocks + brought;
    double alone = 0;
    ByThreads threads;
    if (w.loading == Loading::kStrips) {
      waits = kBoxTileClocks + count_strips(threads, w.strips, w.tile.images);
      if (resident == 1) alone = kAloneClocks;
    } else if (w.loading == Loading::kThreads) {
      const Tile& t = w.tile;
      count_boxes(threads, size_, g_.in, t.images * t.kept_rows, t.kept_columns * g_.w.classes,
                  int64_t{w.sets} * w.pieces);
      waits = std::max(waits, threads.waits);
    }
    if (w.out_pitch > 0) {
      int vector = g_.w.phases > 1 ? 1 : 16 / size_;
      while (w.tile.columns % vector != 0 || g_.w.out % vector != 0) vector /= 2;
      threads.issues +=
          phases * w.stored * w.tile.pixels() / (32.0 * vector) * kInstructionsPerPlaneVector;
      count_rows(threads, size_, phases * w.tile.images * w.tile.rows, w.tile.columns, w.stored,
                 g_.out[3] * g_.w.phases);
    }
    const double clocks = std::max({threads.clocks(issues, shared), products, brought});
    ConvPlan plan{};
    plan.variant = kernel.name;
    plan.grid[0] = w.slices * tile_blocks;
    plan.block = w.threads;
    plan.shared_bytes = w.bytes;
    const double filling = w.sets * w.column_warps * w.weight_bytes / 128.0 *
                           kBoxInstructionsPerWeight / (4 * kIssueEfficiency);
    plan.predicted_ms =
        kLaunchMs + total_ms(d_, kBoxOverlap, static_cast<double>(plan.grid[0]),
                             own * (clocks + alone) + filling, kBoxBlockClocks + own * waits,
                             d_.sm_count, resident, p_.least_bytes() + part_bytes());
    take(plan, v, w.tile);
  }

  // Tiles of about so many pixels, from wide ones to narrow ones.
  void try_tiles(const Variant& v, int64_t pixels) {
    constexpr int64_t kNarrow = 6;
    int64_t last = 0;
    for (int64_t most = pixels; most >= std::min<int64_t>(kNarrow, pixels); most /= 2) {
      const int64_t columns = even_piece(g_.w.positions, most);
      if (columns == last) continue;
      last = columns;
      const int64_t rows = even_piece(g_.h.positions, pixels / columns);
      const bool whole = rows == g_.h.positions && columns == g_.w.positions;
      const int64_t images = whole ? even_piece(p_.N, pixels / (rows * columns)) : 1;
      fit(v, images, rows, columns);
    }
  }

  // Takes the tile, or of one that is too large a part.
  void fit(const Variant& v, int64_t images, int64_t rows, int64_t columns) {
    for (;;) {
      const Tile tile =
          tile_of(g_, static_cast<int>(images), static_cast<int>(rows), static_cast<int>(columns));
      if (p_.pass == Pass::kWgrad ? consider_gradient(v, tile) : consider(v, tile)) return;
      int64_t& most = images > 1 ? images : rows >= columns ? rows : columns;
      if (most == 1) return;
      most = (most + 1) / 2;
    }
  }

  bool consider(const Variant& v, const Tile& tile) {
    const Work w = work_of(g_, v, tile, size_, d_.shared_bytes_block);
    if (!w.fits) return v.passes > 0 && !w.resident;
    const Kernel& kernel = kKernels[v.kernel];
    const double passes = 1 << v.passes;
    const int64_t tiles = w.tiles.all();
    const double resident = std::min<double>(kernel.blocks(), resident_of(w.bytes));
    // All blocks at once, or of each slice one.
    const auto room = static_cast<int64_t>(resident) * d_.sm_count;
    int64_t tile_blocks = std::clamp<int64_t>(room / w.slices, 1, tiles);
    tile_blocks = ceil_divide(tiles, ceil_divide(tiles, tile_blocks));
    const double own = static_cast<double>(ceil_divide(tiles, tile_blocks));
    const double slots = tile.slots, warps = w.threads / 32.0;
    const double steps = static_cast<double>(w.packed_steps);
    const double pixels = kernel.pixels, channels = kernel.channels;
    const double units = slots * w.groups * w.units * w.chunks;
    const double weights = steps * w.groups * w.channel_tiles * kInstructionsPerVector;
    double issues = slots / 32 * kInstructionsPerSlot + units / 32 * bring(in_vectors_);
    if (!w.resident) issues += weights;
    issues += warps * passes * steps *
              (kInstructionsPerStep + channels + pixels * (kInstructionsPerOperand + channels));
    const double phases = g_.h.phases * g_.w.phases;
    const double outputs =
        phases * tile.pixels() * w.groups *
        static_cast<double>(std::min<int64_t>(g_.K, w.channel_tiles * kChannelTile));
    issues += outputs / 32 * kInstructionsPerOutput / (out_vectors_ ? 16 / size_ : 1) +
              warps * phases *
                  (kInstructionsPerTile +
                   passes * (kInstructionsPerPass + pixels * channels * kInstructionsPerSum));
    // Of units that are single ones, four taps are read at a time, of two rows of the tile: of
    // filters three wide these lie in banks of their own where rows are so far apart.
    const int turn = tile.pitch % 16;
    const double operand =
        w.units > 1 || (turn >= 6 && turn <= 12) ? kOperandClocks : 1.7 * kOperandClocks;
    const double operands = warps * passes * steps * (1 + 4 * channels + operand * pixels);
    const double products = warps * passes * steps * pixels * channels * kProductClocks;
    const double stages = phases > 1 && w.chunks > 1 ? phases * w.chunks : w.chunks;
    const double once = w.resident ? weights / (4 * kIssueEfficiency) : 0;
    ConvPlan plan{};
    plan.variant = kernel.name;
    plan.grid[0] = w.slices * tile_blocks;
    plan.block = w.threads + (w.resident ? kProducers : 0);
    plan.shared_bytes = w.bytes;
    plan.workspace_bytes = packed_bytes(w);
    const double bytes =
        p_.least_bytes() + part_bytes() + 2.0 * static_cast<double>(plan.workspace_bytes);
    const double clocks = std::max({issues / (4 * kIssueEfficiency), operands, products});
    plan.predicted_ms =
        kLaunchMs + kPackMs +
        total_ms(d_, kSlotOverlap, static_cast<double>(plan.grid[0]), own * clocks + once,
                 kBlockClocks + own * stages * (w.resident ? kTileClocks : kTurnClocks),
                 d_.sm_count, resident, bytes);
    take(plan, v, tile);
    return true;
  }

  bool consider_gradient(const Variant& v, const Tile& tile) {
    const GradientWork w = gradient_work_of(g_, v, tile, size_, d_.shared_bytes_block);
    if (!w.fits) return false;
    const GradientKernel& kernel = v.gradient_kernel();
    const double warps = w.cut.threads / 32.0, pairs = kernel.pairs, channels = kernel.channels;
    const double steps = std::ceil(tile.pixels() / (32.0 / size_) / v.pixel_warps());
    const double units = kOctet * size_ / kUnitBytes;
    double issues = (tile.slots + tile.pixels()) / 32.0 * kInstructionsPerSlot;
    issues += tile.slots * w.cut.sets * w.cut.octets * units / 32 * bring(in_vectors_);
    issues += tile.pixels() * w.cut.sets * w.cut.columns * units / 32 * bring(out_vectors_);
    const double loads = size_ == 2 ? 1 : 4;
    issues += warps * steps * (kInstructionsPerStep + pairs * (3 * loads + channels));
    const double operands = warps * steps * (2 + 2 * channels + kOperandClocks * pairs);
    const double products = warps * steps * pairs * channels * kProductClocks;
    const double clocks = std::max({issues / (4 * kIssueEfficiency), operands, products});
    const double resident = std::min<double>(kernel.blocks(), resident_of(w.bytes));
    split_gradient(
        v, tile, w.cut, v.pixel_warps(), w.bytes, [&](double blocks, double own, double bytes) {
          const double sums = warps * pairs * channels * 4 * 8 / (4 * kIssueEfficiency);
          return total_ms(d_, kSlotOverlap, blocks, clocks * own + sums,
                          kBlockClocks + own * kTurnClocks, d_.sm_count, resident, bytes);
        });
    return true;
  }

  bool consider_gradient_boxes(const Variant& v, const Tile& tile) {
    // Parts of steps are looked at pixel by pixel; a tile of whole ones is never far.
    if (tile.pixels() > kStepPixels && tile.pixels() % kStepPixels != 0) return false;
    const GradientKernel& kernel = v.gradient_kernel();
    bool fits = false;
    int last = 0;
    double asked = 0;
    for (const int blocks : {kernel.box_blocks(), 1}) {
      const GradientBoxWork w = gradient_box_work_of(g_, v, tile, shared_bytes_of(blocks));
      if (!w.fits || w.bytes == last) continue;
      last = w.bytes;
      fits = true;
      if (asked == 0) asked = conflicts(tile);
      price_gradient_boxes(v, w, blocks, asked);
    }
    return fits;
  }

  void price_gradient_boxes(const Variant& v, const GradientBoxWork& w, int resident,
                            double asked) {
    const GradientKernel& kernel = v.gradient_kernel();
    const Tile& tile = w.tile;
    const double warps = w.cut.threads / 32.0, pairs = kernel.pairs, channels = kernel.channels;
    const double own_steps =
        std::ceil(static_cast<double>(ceil_divide(tile.pixels(), kStepPixels)) / v.pixel_warps());
    const double steps = warps * own_steps;
    const bool checks = tile.pixels() % kStepPixels != 0 || g_.w.positions % tile.columns != 0 ||
                        g_.h.positions % tile.rows != 0;
    const double issues =
        warps * kBoxInstructionsPerTile + steps * ((checks ? 2 : 1) * 8 + 2 * channels +
                                                   pairs * (kBoxInstructionsPerOperand + channels));
    const double shared =
        steps * (1 + 2 * channels + 4 * pairs * asked) + w.brought_bytes() / 128.0;
    const double products = steps * pairs * channels * kProductClocks;
    const double brought = w.brought_bytes() / kBoxBytesPerClock;
    double waits = w.stages > 1 ? kBoxTileClocks : kBoxTurnClocks + brought;
    waits = std::max(waits, own_steps * pairs * (kOperandLatency + channels * kProductLatency));
    ByThreads threads;
    if (w.loading == Loading::kStrips) {
      waits += count_strips(threads, w.strips, tile.images) +
               count_strips(threads, w.out_strips, tile.images);
    } else if (w.loading == Loading::kThreads) {
      count_boxes(threads, size_, g_.in, tile.images * tile.kept_rows,
                  tile.kept_columns * g_.w.classes, int64_t{w.cut.sets} * w.cut.octets);
      count_boxes(threads, size_, g_.out, tile.images * tile.rows, tile.columns,
                  int64_t{w.cut.sets} * w.cut.columns);
      waits = std::max(waits, threads.waits);
    }
    const double clocks = std::max({threads.clocks(issues, shared), products, brought});
    const double sums = warps * pairs * channels / (4 * kIssueEfficiency);
    for (int log = 0; 1 << log <= kMostClustered; ++log) {
      cluster_gradient({v.kernel, v.warps, log, v.by_threads}, w, resident, clocks, waits, sums);
    }
  }

  // Gives blocks shares of the tiles, and each plan its price: `ms` of so many blocks, of a block's
  // tiles, and of bytes. `parts`: that a block leaves.
  template <typename Ms>
  void split_gradient(const Variant& v, const Tile& tile, const GradientCut& cut, int parts,
                      int shared_bytes, const Ms& ms) {
    const int64_t tiles = cut.tiles.all();
    int64_t last = 0;
    for (const int turns : kGradientTurns) {
      int64_t splits = std::clamp<int64_t>(turns * d_.sm_count / cut.slices, 1, tiles);
      splits = std::min(splits, std::max<int64_t>(kMostPartBytes / (4 * p_.w_count() * parts), 1));
      if (splits == last) break;
      last = splits;
      ConvPlan plan{};
      plan.variant = v.gradient_kernel().name;
      plan.grid[0] = cut.slices * splits;
      plan.block = cut.threads;
      plan.shared_bytes = shared_bytes;
      plan.splits = splits * parts;
      plan.workspace_bytes = plan.splits * p_.w_count() * 4;
      plan.predicted_ms =
          kLaunchMs + kNextMs +
          ms(static_cast<double>(plan.grid[0]), static_cast<double>(ceil_divide(tiles, splits)),
             p_.least_bytes() + 2.0 * static_cast<double>(plan.workspace_bytes));
      take(plan, v, tile);
    }
  }

  // The same of clusters of blocks: one stores the result, or some leave parts. `clocks`, `waits`:
  // of a tile; `sums`: an instruction for each four.
  void cluster_gradient(const Variant& v, const GradientBoxWork& w, int resident, double clocks,
                        double waits, double sums) {
    const GradientCut& cut = w.cut;
    const GradientKernel& kernel = v.gradient_kernel();
    const int64_t tiles = cut.tiles.all(), cluster = v.cluster();
    const double sums_bytes = cut.threads / v.pixel_warps() * kernel.pairs * kernel.channels * 16.0;
    const double others = static_cast<double>(cluster - 1) / static_cast<double>(cluster);
    const double exchange = sums_bytes * others / kClusterBytesPerClock;
    const double share = cluster > 2 ? kClusterShare : 1;
    const auto clusters = static_cast<int64_t>(share * d_.sm_count * resident) / cluster;
    int64_t last = 0;
    for (const int turns : {0, 1, 2, 4}) {
      int64_t parts = std::max<int64_t>(turns * d_.sm_count / (cut.slices * cluster), 1);
      const int64_t part_bytes = w.part * 16;
      parts = std::min({parts, std::max<int64_t>(kMostPartBytes / part_bytes, 1), tiles / cluster});
      if (parts <= last) continue;
      last = parts;
      const int64_t splits = parts * cluster, own = ceil_divide(tiles, splits);
      if (clusters == 0 || ceil_divide(tiles, own) <= splits - cluster)
        continue;  // fewer do as well
      ConvPlan plan{};
      plan.variant = kernel.name;
      plan.grid[0] = cut.slices * splits;
      plan.block = w.threads;
      plan.shared_bytes = w.bytes;
      plan.splits = splits;
      plan.workspace_bytes = parts > 1 ? parts * part_bytes : 0;
      const double stored = parts == 1                      ? kInstructionsPerStoredSum
                            : cluster * v.pixel_warps() > 1 ? kInstructionsPerExchangedSum
                                                            : kInstructionsPerLeftSum;
      const double bytes = p_.least_bytes() + 2.0 * static_cast<double>(plan.workspace_bytes);
      plan.predicted_ms =
          kLaunchMs + (cluster > 1 ? cluster * kClusterMs : 0) + (parts > 1 ? kNextMs : 0) +
          total_ms(d_, kBoxOverlap, static_cast<double>(plan.grid[0]),
                   own * clocks + sums * stored + exchange, kGradientBlockClocks + own * waits,
                   static_cast<double>(clusters * cluster) / resident, resident, bytes);
      take(plan, v, w.tile);
    }
  }

  // Of planes each phase of columns writes parts of all sectors.
  double part_bytes() const {
    const int parts = is_planar(g_) ? g_.w.phases - 1 : 0;
    return static_cast<double>(parts) * size_ * static_cast<double>(p_.x_count());
  }

  // A warp's instructions for a unit of 32 pixels.
  double bring(bool vectors) const {
    return vectors ? kInstructionsPerVector / 2 : kInstructionsPerElement * kUnitBytes / size_;
  }
  double resident_of(double bytes) const {
    return std::max(std::floor(d_.shared_bytes_block / (bytes + 1024)), 1.0);
  }

  // What each of so many blocks of a multiprocessor may have.
  int shared_bytes_of(int blocks) const {
    constexpr int kReserved = 1024;
    return (d_.shared_bytes_block + kReserved) / blocks - kReserved;
  }

  void take(ConvPlan& plan, const Variant& v, const Tile& tile) {
    plan.variant_index = v.index();
    plan.tile[0] = tile.rows;
    plan.tile[1] = tile.columns;
    plan.tile[2] = tile.images;
    plan.wide_index = needs_wide_index(p_);
    add(plan);
  }

  const Geometry g_ = geometry_of(p_);
  const int size_ = static_cast<int>(element_size(p_.dtype));
  const bool in_vectors_ = g_.in[1] == 1 && g_.C * size_ % kUnitBytes == 0;
  const bool out_vectors_ = g_.out[1] == 1 && g_.K * size_ % kUnitBytes == 0;
};

// Of boxes by who brings them, else by the channels that are multiplied at a time; and by the
// kernel where it has an epilogue, in which compilers may join a product and a sum.
int64_t sum_order(const ConvProblem& p, const ConvPlan& plan) {
  const Variant v = Variant::at(plan.variant_index);
  int64_t order = v.by_threads ? -1 : -2;
  if (!v.has_boxes()) {
    const Geometry g = geometry_of(p);
    order = work_of(g, v, tile_of(g, 1, 1, 1), element_size(p.dtype), plan.shared_bytes).units;
  }
  return p.epilogue_passes > 0 ? order * (kKernelCount + kBoxKernelCount) + v.kernel : order;
}

}  // namespace

extern const Family family;
const Family family{"grouped",      can_implement,  cheapest_of<Search>,
                    all_of<Search>, /*fuses=*/true, sum_order};

}  // namespace customconv::grouped
