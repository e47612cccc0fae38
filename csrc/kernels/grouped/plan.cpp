// grouped: groups on the tensor cores, thin ones several to a block.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/common/parts.h"
#include "kernels/grouped/geometry.h"
#include "kernels/grouped/price.h"
#include "plan/fields.h"
#include "plan/hardware.h"
#include "plan/price.h"
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

  // How often shared memory is asked for eight rows of an operand, once if all lie in banks of
  // their own. Many variants have the same tile.
  double conflicts(const Tile& tile) {
    if (tile.columns % 8 == 0) return 1;
    const TileSizes sizes{tile.images, tile.rows, tile.columns};
    const auto known = std::find_if(conflicts_.begin(), conflicts_.end(),
                                    [&](const auto& each) { return each.first == sizes; });
    if (known != conflicts_.end()) return known->second;
    conflicts_.emplace_back(sizes, count_conflicts(tile));
    return conflicts_.back().second;
  }

  double count_conflicts(const Tile& tile) const {
    const int pixels = tile.pixels(), down = g_.h.step / g_.h.class_step * tile.pitch;
    int asked = 0, eights = 0, column = 0, row = 0, image = 0, slot = 0;
    for (int first = 0; first < pixels; first += 8, ++eights) {
      uint32_t found = 0;  // of each of eight banks so many, four bits each
      int most = 0;
      for (int i = first; i < std::min(first + 8, pixels); ++i) {
        const int bank = (slot + column) % 8 * 4;
        found += 1u << bank;
        most = std::max(most, static_cast<int>(found >> bank & 15));
        if (++column < tile.columns) continue;
        column = 0;
        slot += down;
        if (++row < tile.rows) continue;
        row = 0;
        slot = ++image * tile.kept_rows * tile.pitch;
      }
      asked += most;
    }
    return static_cast<double>(asked) / eights;
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
        [&](const BoxWork& w, int blocks) { price_boxes(v, w, blocks, conflicts(tile)); });
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

  // `asked`: see conflicts.
  void price_boxes(BoxesPlan v, const BoxWork& w, int resident, double asked) {
    const BoxKernel& kernel = kBoxKernels[v.kernel];
    const int64_t tiles = w.tiles.all();
    int64_t tile_blocks = std::clamp<int64_t>(int64_t{resident} * d_.sm_count / w.slices, 1, tiles);
    tile_blocks = ceil_divide(tiles, ceil_divide(tiles, tile_blocks));
    const double own = static_cast<double>(ceil_divide(tiles, tile_blocks));
    const double warps = w.warps, pixels = kernel.pixels, channels = kernel.channels;
    const double phases = g_.h.phases * g_.w.phases, steps = warps * w.steps;
    const double issues =
        steps * (kStepInstructions + channels + pixels * (kBoxOperandInstructions + channels)) +
        warps * phases * (kTileInstructions + 2 * pixels * (kBoxOutputInstructions + 2 * channels));
    // Accesses of shared memory, 128 bytes each.
    const double shared = steps * (1 + 2 * channels + 4 * pixels * asked) +
                          w.brought_bytes() / hardware::kSharedBytesPerClock +
                          warps * phases * pixels * 2;
    const double products = steps * pixels * channels * hardware::kWarpProductClocks;
    ByThreads threads;
    if (w.loading == Loading::kStrips) {
      count_strips(threads, w.strips, w.tile.images);
    } else if (w.loading == Loading::kThreads) {
      const Tile& t = w.tile;
      count_boxes(threads, size_, g_.in, t.images * t.kept_rows, t.kept_columns * g_.w.classes,
                  int64_t{w.sets} * w.pieces);
    }
    if (w.out_pitch > 0) {
      int vector = g_.w.phases > 1 ? 1 : 16 / size_;
      while (w.tile.columns % vector != 0 || g_.w.out % vector != 0) vector /= 2;
      threads.issues +=
          phases * w.stored * w.tile.pixels() / (32.0 * vector) * kStoredVectorInstructions;
      count_rows(threads, size_, phases * w.tile.images * w.tile.rows, w.tile.columns, w.stored,
                 g_.out[3] * g_.w.phases);
    }
    v.tile_blocks = static_cast<int>(tile_blocks);
    ConvPlan plan{shape_of(w, v)};
    // Weights are brought once, by sixteen bytes, or element by element.
    const bool by_vectors = g_.weight_c == 1 || g_.weight_k == 1;
    const double pieces = w.steps * channels * kStepWeights / (32.0 * kPieceBytes);  // of a lane
    const double filling =
        w.sets * w.column_warps * pieces *
        (kWeightInstructions + (by_vectors ? 0 : kPieceBytes / size_ * kElementInstructions));
    const double fills = std::ceil(pieces / v.pixel_warps / (by_vectors ? 8 : 2));
    customconv::Work work =
        work_of(PriceKind::kGroupedBoxes, static_cast<int>(w.loading) * 2 + (size_ == 2 ? 0 : 1),
                plan, resident);
    const double tile = busiest(
        {(issues + threads.issues) / hardware::kSchedulers, shared + threads.lines, products,
         std::max<double>(w.brought_bytes(), threads.bytes) / hardware::kL2BytesPerClock});
    work.busy = static_cast<float>(own * tile + filling / hardware::kSchedulers);
    work.waits =
        static_cast<float>(2 + fills + tile_waits(work, own, w.brought_bytes(), w.stages) +
                           own * (threads.waits + phases + w.steps / hardware::kStepsOfWait));
    work.bytes = static_cast<float>(p_.least_bytes() + part_bytes());
    plan.works.add(work);
    take(plan, v, w.tile);
  }

  // For blocks that share a multiprocessor.
  customconv::Work work_of(PriceKind kind, int row, const ConvPlan& plan, double resident) const {
    customconv::Work work;
    work.row = price_row(kind, row);
    work.blocks = static_cast<float>(plan.blocks);
    work.sms = static_cast<float>(d_.sm_count);
    work.resident = static_cast<float>(resident);
    return work;
  }

  // How often a block waits for its own tiles of so many bytes: for the first one of all blocks,
  // and for others, of which some come meanwhile.
  static double tile_waits(const customconv::Work& work, double own, double bytes, int stages) {
    const double together = std::min<double>(work.resident, std::ceil(work.blocks / work.sms));
    const double whole = 1 + together * bytes / hardware::kBroughtBytes;
    return stages > 1 ? whole + (own - 1) / stages : own * whole;
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
    const Kernel& kernel = kKernels[v.kernel];
    const double passes = v.passes;
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
    const double weights = steps * w.groups * w.channel_tiles * kVectorInstructions;
    double issues = slots / 32 * kSlotInstructions + units / 32 * bring(in_vectors_);
    if (!w.resident) issues += weights;
    issues += warps * passes * steps *
              (kStepInstructions + channels + pixels * (kOperandInstructions + channels));
    const double phases = g_.h.phases * g_.w.phases;
    const double outputs =
        phases * tile.pixels() * w.groups *
        static_cast<double>(std::min<int64_t>(g_.K, w.channel_tiles * kChannelTile));
    issues += outputs / 32 * kOutputInstructions / (out_vectors_ ? 16 / size_ : 1) +
              warps * phases * (kTileInstructions + passes * pixels * channels * kSumInstructions);
    // Single units are read for four taps at a time, from two rows of the tile. For filters three
    // wide, they lie in banks of their own where rows are so far apart.
    const int turn = tile.pitch % 16;
    const double operand = w.units > 1 || (turn >= 6 && turn <= 12) ? 2 : 4;
    const double operands = warps * passes * steps * (1 + 4 * channels + operand * pixels);
    const double products =
        warps * passes * steps * pixels * channels * hardware::kWarpProductClocks;
    const double stages = phases > 1 && w.chunks > 1 ? phases * w.chunks : w.chunks;
    const double once = w.resident ? weights / hardware::kSchedulers : 0;
    v.tile_blocks = static_cast<int>(tile_blocks);
    ConvPlan plan{shape_of(w, v)};
    customconv::Work pack;
    pack.row = price_row(PriceKind::kGroupedWeights, 0);
    pack.waits = 2;
    pack.bytes = static_cast<float>(2 * plan.workspace_bytes);
    plan.works.add(pack);
    customconv::Work work = work_of(PriceKind::kGroupedSlots,
                                    (w.resident ? 0 : 2) + (size_ == 2 ? 0 : 1), plan, resident);
    const double clocks = busiest({issues / hardware::kSchedulers, operands, products});
    work.busy = static_cast<float>(own * clocks + once);
    // Whoever brings a tile: the list of its slots, and slots as often as registers have room.
    const int bringing = w.resident ? kProducers : w.threads, at_once = w.resident ? 8 : 4;
    const double brings = bring_waits(in_vectors_, slots, w.groups * w.units, bringing, at_once);
    const double fills = w.resident ? 0 : std::ceil(steps / stages / w.steps);
    work.waits = static_cast<float>(3 + own * (1 + phases + stages * (brings + fills) +
                                               passes * steps / hardware::kStepsOfWait));
    work.bytes = static_cast<float>(p_.least_bytes() + part_bytes());
    plan.works.add(work);
    take(plan, v, tile);
    return true;
  }

  bool consider(const SlotGradientsPlan& v, const Tile& tile) {
    const GradientWork w = gradient_work_of(g_, v, tile, size_);
    if (!w.fits || w.bytes > d_.shared_bytes_block) return false;
    const GradientKernel& kernel = v.own_kernel();
    const double warps = w.cut.threads / 32.0, pairs = kernel.pairs, channels = kernel.channels;
    const double steps = std::ceil(tile.pixels() / (32.0 / size_) / v.pixel_warps);
    const double units = kOctet * size_ / kUnitBytes;
    double issues = (tile.slots + tile.pixels()) / 32.0 * kSlotInstructions;
    issues += tile.slots * w.cut.sets * w.cut.octets * units / 32 * bring(in_vectors_);
    issues += tile.pixels() * w.cut.sets * w.cut.columns * units / 32 * bring(out_vectors_);
    const double loads = size_ == 2 ? 1 : 4;
    issues += warps * steps * (kStepInstructions + pairs * (3 * loads + channels));
    const double operands = warps * steps * (2 + 2 * channels + 4 * pairs);
    const double products = warps * steps * pairs * channels * hardware::kWarpProductClocks;
    const double clocks = busiest({issues / hardware::kSchedulers, operands, products});
    const double resident = std::min<double>(kernel.blocks(), resident_of(w.bytes));
    const double waits =
        1 + steps / hardware::kStepsOfWait +
        bring_waits(in_vectors_, tile.slots, w.cut.sets * w.cut.octets * units, w.cut.threads, 4) +
        bring_waits(out_vectors_, tile.pixels(), w.cut.sets * w.cut.columns * units, w.cut.threads,
                    4);
    const double sums = warps * pairs * channels * 4 * kLeftInstructions / hardware::kSchedulers;
    split_gradient(v, w, resident, clocks, waits, sums);
    return true;
  }

  bool consider_boxes(BoxGradientsPlan v, const Tile& tile) {
    // Parts of steps are looked at pixel by pixel; a tile of whole ones is never far.
    if (tile.pixels() > kStepPixels && tile.pixels() % kStepPixels != 0) return false;
    return each_stages(
        v, v.own_kernel().box_blocks(), [&] { return gradient_box_work_of(g_, v, tile); },
        [&](const GradientBoxWork& w, int blocks) {
          price_gradient_boxes(v, w, blocks, conflicts(tile));
        });
  }

  void price_gradient_boxes(BoxGradientsPlan v, const GradientBoxWork& w, int resident,
                            double asked) {
    const GradientKernel& kernel = v.own_kernel();
    const Tile& tile = w.tile;
    const double warps = w.cut.threads / 32.0, pairs = kernel.pairs, channels = kernel.channels;
    const double own_steps =
        std::ceil(static_cast<double>(ceil_divide(tile.pixels(), kStepPixels)) / v.pixel_warps);
    const double steps = warps * own_steps;
    const bool checks = tile.pixels() % kStepPixels != 0 || g_.w.positions % tile.columns != 0 ||
                        g_.h.positions % tile.rows != 0;
    const double issues =
        warps * kTileInstructions + steps * ((checks ? 2 : 1) * 8 + 2 * channels +
                                             pairs * (kBoxOperandInstructions + channels));
    const double shared = steps * (1 + 2 * channels + 4 * pairs * asked) +
                          w.brought_bytes() / hardware::kSharedBytesPerClock;
    const double products = steps * pairs * channels * hardware::kWarpProductClocks;
    ByThreads threads;
    if (w.loading == Loading::kStrips) {
      count_strips(threads, w.strips, tile.images);
      count_strips(threads, w.out_strips, tile.images);
    } else if (w.loading == Loading::kThreads) {
      count_boxes(threads, size_, g_.in, tile.images * tile.kept_rows,
                  tile.kept_columns * g_.w.classes, int64_t{w.cut.sets} * w.cut.octets);
      count_boxes(threads, size_, g_.out, tile.images * tile.rows, tile.columns,
                  int64_t{w.cut.sets} * w.cut.columns);
    }
    const double clocks = busiest(
        {(issues + threads.issues) / hardware::kSchedulers, shared + threads.lines, products,
         std::max<double>(w.brought_bytes(), threads.bytes) / hardware::kL2BytesPerClock});
    // Operands are loaded some at a time.
    const double waits = threads.waits + own_steps * std::ceil(pairs / 3) / hardware::kStepsOfWait;
    const double sums = warps * pairs * channels / hardware::kSchedulers;
    for (v.cluster = 1; v.cluster <= kMostClustered; v.cluster *= 2) {
      cluster_gradient(v, w, resident, clocks, waits, sums);
    }
  }

  // Gives blocks shares of the tiles. `clocks`, `waits`: of a tile; `sums`: clocks at a block's
  // end.
  void split_gradient(const SlotGradientsPlan& v, const GradientWork& w, double resident,
                      double clocks, double waits, double sums) {
    const GradientCut& cut = w.cut;
    const int64_t tiles = cut.tiles.all(), parts = v.pixel_warps;  // that a block leaves
    int64_t last = 0;
    for (const int turns : kGradientTurns) {
      int64_t splits = std::clamp<int64_t>(turns * d_.sm_count / cut.slices, 1, tiles);
      splits = std::min(splits, std::max<int64_t>(kMostPartBytes / (4 * p_.w_count() * parts), 1));
      if (splits == last) break;
      last = splits;
      ConvPlan plan{shape_of(p_, w, v, splits * parts)};
      plan.splits = splits * parts;
      const double own = static_cast<double>(ceil_divide(tiles, splits));
      customconv::Work work =
          work_of(PriceKind::kGroupedSlotGradients, size_ == 2 ? 0 : 1, plan, resident);
      work.busy = static_cast<float>(own * clocks + sums);
      work.waits = static_cast<float>(3 + own * waits);
      work.bytes = static_cast<float>(p_.least_bytes());
      plan.works.add(work);
      plan.works.add(adding_up(p_.w_count(), plan.splits, d_));
      take(plan, v, w.tile);
    }
  }

  // The same of clusters of blocks: one stores the result, or some leave parts. `clocks`, `waits`:
  // of a tile; `sums`: an instruction for each four.
  void cluster_gradient(const BoxGradientsPlan& v, const GradientBoxWork& w, int resident,
                        double clocks, double waits, double sums) {
    const GradientCut& cut = w.cut;
    const GradientKernel& kernel = v.own_kernel();
    const int64_t tiles = cut.tiles.all(), cluster = v.cluster;
    const double sums_bytes = cut.threads / v.pixel_warps * kernel.pairs * kernel.channels * 16.0;
    const double others = static_cast<double>(cluster - 1) / static_cast<double>(cluster);
    const double exchange = sums_bytes * others / hardware::kL2BytesPerClock;
    int64_t last = 0;
    for (const int turns : {0, 1, 2, 4}) {
      int64_t parts = std::max<int64_t>(turns * d_.sm_count / (cut.slices * cluster), 1);
      const int64_t part_bytes = w.part * 16;
      parts = std::min({parts, std::max<int64_t>(kMostPartBytes / part_bytes, 1), tiles / cluster});
      if (parts <= last) continue;
      last = parts;
      const int64_t splits = parts * cluster, own = ceil_divide(tiles, splits);
      if (ceil_divide(tiles, own) <= splits - cluster) continue;  // fewer do as well
      ConvPlan plan{shape_of(w, v, splits)};
      plan.splits = splits;
      const double stored = parts == 1                    ? kStoredInstructions
                            : cluster * v.pixel_warps > 1 ? kExchangedInstructions
                                                          : kLeftInstructions;
      customconv::Work work =
          work_of(PriceKind::kGroupedBoxGradients, static_cast<int>(w.loading), plan, resident);
      work.busy = static_cast<float>(own * clocks + sums * stored + exchange);
      const double exchanges = std::ceil(sums * hardware::kSchedulers / (w.cut.threads / 32.0) /
                                         static_cast<double>(v.pixel_warps * cluster)) *
                               (parts == 1 || cluster * v.pixel_warps > 1 ? 1 : 0);
      work.waits = static_cast<float>(
          3 + tile_waits(work, static_cast<double>(own), w.brought_bytes(), w.stages) +
          static_cast<double>(own) * waits + exchanges + (cluster > 1 ? kClusterWaits : 0));
      work.bytes = static_cast<float>(p_.least_bytes());
      plan.works.add(work);
      if (parts > 1) plan.works.add(adding_up(w.part * 4, parts, d_));
      take(plan, v, w.tile);
    }
  }

  // Bytes beyond the least: each phase of a plane's columns writes parts of all sectors.
  double part_bytes() const {
    const int parts = is_planar(g_) ? g_.w.phases - 1 : 0;
    return static_cast<double>(parts) * size_ * static_cast<double>(p_.x_count());
  }

  // A warp's instructions for a unit of 32 pixels.
  double bring(bool vectors) const {
    return vectors ? kVectorInstructions : kElementInstructions * kUnitBytes / size_;
  }
  // How often threads wait that bring so many units of each of some pixels.
  static double bring_waits(bool vectors, double pixels, double units, double threads,
                            double at_once) {
    if (vectors) return std::ceil(pixels * units / 2 / (threads * at_once));
    return std::ceil(units / (threads / 32)) * std::ceil(pixels / (32 * at_once));
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
  using TileSizes = std::tuple<int64_t, int64_t, int64_t>;  // images, rows and columns
  Tried<TileSizes> tried_;                                  // of a variant
  std::vector<std::pair<TileSizes, double>> conflicts_;
  const bool in_vectors_ = g_.in[1] == 1 && g_.C * size_ % kUnitBytes == 0;
  const bool out_vectors_ = g_.out[1] == 1 && g_.K * size_ % kUnitBytes == 0;
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
