#include "kernels/implicit_gemm/sm90/plan.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/common/parts.h"
#include "kernels/implicit_gemm/moving.h"
#include "kernels/implicit_gemm/sm90/payload.h"
#include "kernels/implicit_gemm/tile.h"
#include "plan/fields.h"
#include "plan/hardware.h"
#include "plan/price.h"
#include "plan/search.h"

namespace customconv::implicit_gemm::sm90 {

namespace {

// A plan's variant: the loader, the tile's shape, rows of so many times 32 bytes, strips, how its
// input is packed, and whether phases are joined.
constexpr int kShapeShift = 4, kRowShift = 8, kStripShift = 12, kPackingShift = 21;
constexpr int kPackingMask = 3;
constexpr int kPlanFlag = 1 << 20, kJoinedFlag = 1 << 23, kHalvesFlag = 1 << 24;
constexpr const char* kJoinedLoaderNames[] = {"im2col joined", "halo joined", "planes joined"};
constexpr const char* kHalvesLoaderNames[] = {"3xTF32 im2col", "3xTF32 halo", "3xTF32 planes"};
constexpr const char* kJoinedHalvesLoaderNames[] = {"3xTF32 im2col joined", "3xTF32 halo joined",
                                                    "3xTF32 planes joined"};
constexpr int kMostStrips = 255;
constexpr int64_t kMostFlattened = 32;  // bytes of channels up to which taps may be channels

constexpr double kProductBytes = 4096;  // a clock: channels of a tile times bytes of its pixels
// Accesses of shared memory for each byte of planes: written by copies, read in words of two
// pixels, and written in another order.
constexpr double kTurnAccesses = 7;

// Shared memory that a block may ask for.
int block_bytes(const DeviceProperties& d, const Tile& t) {
  constexpr int kReserved = 1024;  // of each block
  return (d.shared_bytes_block + kReserved) / t.kind().occupancy - kReserved;
}

int64_t blocks_at_once(const DeviceProperties& d, const Tile& t) {
  const double share = t.splits > 2 ? hardware::kClusterReach : 1;
  const auto clusters = static_cast<int64_t>(share * d.sm_count * t.kind().occupancy / t.splits);
  return std::max<int64_t>(clusters, 1) * t.splits;
}

// Bytes that a tile stores. What is stored by single elements takes as long as more bytes.
double stored_bytes(const Packed& p, const Tile& t) {
  const int64_t channels = p.K / t.tiles_k;  // of the average tile, that exist
  const double results = static_cast<double>(t.kind().pixels * channels);
  const auto size = static_cast<double>(element_size(p.dtype));
  if (t.store == Store::kCluster) return results * 4;
  double slower = 1;
  if (t.store == Store::kPlanes && p.y_strides[3] != 1) {
    slower = 8 / size;  // a warp's elements lie in as many lines as twice as many would
  } else if (t.store == Store::kPlanes && (p.Q % 2 != 0 || t.pitch % 2 != 0)) {
    slower = 4 / size;  // a warp stores 32 elements at a time, not 128 bytes
  }
  return results * size * slower;
}

// The price of a tile's stores. Pixels that are stored element by element have the last one.
int store_row(const Packed& p, const Tile& t) {
  const bool by_elements = t.store == Store::kPixels && p.K * element_size(p.dtype) % 16 != 0;
  return by_elements ? kStoreCount : static_cast<int>(t.store);
}

// Clocks of the units of a multiprocessor, while it sums a tile of a phase of so many taps.
double busy_clocks(const Packed& p, const Tile& t, double taps) {
  const TileShape& kind = t.kind();
  const int64_t size = element_size(p.dtype);
  const double product =
      static_cast<double>(kind.pixels) * kind.channels * t.row_bytes / kProductBytes;
  const double copied_rows = t.loader == Loader::kPlanes
                                 ? static_cast<double>(t.plane_boxes * (t.row_bytes / size))
                                 : static_cast<double>(t.copies) * t.copy_rows;
  const auto copy = [](double bytes, double rows) {
    return std::max(bytes / hardware::kL2BytesPerClock, rows * hardware::kCopyRowClocks);
  };
  // Groups are side by side: behind one there is another, and not the end of the tensor.
  const int64_t channels = t.halves_pixels ? p.channels : p.group_C();
  const bool ends = p.groups == 1;
  const double x_pieces =
      ends && t.loader != Loader::kPlanes ? copied_pieces(channels * size, t.pixel_row_bytes()) : 1;
  const double w_pieces =
      ends && !t.weights_as_stored ? copied_pieces(p.group_C() * size, t.row_bytes) : 1;
  const double x_copy = copy(t.halves_pixels ? t.x_bytes / 2 : t.x_bytes, copied_rows * x_pieces);
  // Weights that stay are copied once.
  const int w_bytes = t.keeps_weights ? 0 : t.w_bytes;
  const double w_copy = t.keeps_weights ? 0 : copy(w_bytes, kind.channels * w_pieces);
  // An instruction reads 64 channels and its columns, the positions of a tile or a part of them.
  // Boxes of planes are written, read, and written again in another order.
  const double spans = kind.pixels / kind.columns(has_planes(t.loader, t.store, kind));
  const double operands = kind.channels * t.row_bytes * (spans + kind.pixels / 64.0) + w_bytes;
  const double filled = t.loader == Loader::kPlanes
                            ? kTurnAccesses * t.plane_boxes * kBoxPixels * t.row_bytes
                            : t.x_bytes * (t.halves_pixels ? 2.0 : 1.0);
  const double fills = t.loader == Loader::kIm2col ? taps : 1;  // of pixels, for a stage's channels
  if (kind.halves) {
    // Six products for what four multiply otherwise, the operands of each, and promotion.
    constexpr double kMore = 1.5, kLanes = 128;
    const double promoted = static_cast<double>(kind.pixels) * kind.channels / kLanes;
    return t.chunks / static_cast<double>(t.splits) *
           busiest({taps * kMore * product, fills * x_copy + taps * w_copy,
                    (taps * kMore * operands + fills * filled) / hardware::kSharedBytesPerClock,
                    taps * promoted});
  }
  return t.chunks / static_cast<double>(t.splits) *
         busiest({taps * product, fills * x_copy + taps * w_copy,
                  (taps * operands + fills * filled) / hardware::kSharedBytesPerClock});
}

// How pixels are packed: from planes that begin at multiples of 16 bytes or not, from pixels whose
// channels are side by side, or with what their taps meet.
int packing_row(const Packed& p) {
  if (p.packing == Packing::kImages) return 4;
  if (p.packing == Packing::kPatches) return 3;
  const Shape4& strides = p.source.x_strides;
  if (strides[3] != 1) return 2;
  return p.source.x_aligned && strides[1] * element_size(p.dtype) % 16 == 0 ? 0 : 1;
}

// The work of a problem whose `parts` are about as large as `p`.
WorkList count_work(const ConvProblem& asked, const Packed& p, int64_t parts,
                    const DeviceProperties& d, const Tile& t) {
  const auto size = static_cast<double>(element_size(p.dtype));
  const int wide = size == 2 ? 0 : 1;
  double busy = 0, taps = 0;  // of all phases
  for (int i = 0; i < p.phases; ++i) {
    const double own = static_cast<double>(p.phase[i].R) * p.phase[i].S;
    busy += busy_clocks(p, t, own);
    taps += own;
  }
  Work loop;
  loop.row = price_row(PriceKind::kMainLoop,
                       (static_cast<int>(t.loader) * kTileShapeCount + t.shape) * 2 + wide);
  loop.store_row = price_row(PriceKind::kStore, store_row(p, t) * 2 + wide);
  const auto launches = static_cast<double>(parts);
  loop.repeats = static_cast<float>(launches);
  loop.blocks = static_cast<float>(t.items() * t.splits);
  loop.sms = static_cast<float>(d.sm_count * (t.splits > 2 ? hardware::kClusterReach : 1));
  loop.resident = static_cast<float>(t.kind().occupancy);
  loop.busy = static_cast<float>(busy / p.phases);
  loop.waits = 1;
  loop.stored = static_cast<float>(stored_bytes(p, t));
  loop.bytes = static_cast<float>(asked.least_bytes() / launches);
  WorkList works;
  works.add(loop);
  if (p.packing != Packing::kNone) {
    const double bytes = 2 * static_cast<double>(p.packed()) * size;
    works.add(moving(PriceKind::kPackPixels, packing_row(p), bytes, launches));
  }
  if (p.packing == Packing::kImages) {
    const auto gradient = static_cast<double>(p.K * p.taps_h * p.taps_w * p.group_C());
    works.add(moving(PriceKind::kPackPixels, packing_row(p), 2 * gradient * size));
    if (p.groups > 1) works.add(adding_up(asked.w_count(), p.groups, d));
    return works;
  }
  if (p.woven > 0) works.add(moving(PriceKind::kWeave, 0, weave_bytes(p), launches));
  const PackedWeight weight = weight_of(p, t);
  if (!weight.in_place) {
    works.add(
        packing(p, weight,
                p.joins_phases ? WeightPacking::kJoined : matrix_packing(p, t.weights_as_stored)));
  }
  return works;
}

// Whether kernels do the epilogue of an input gradient.
bool fuses_gradient(const Packed& p) {
  if (p.woven == 0) return true;
  // A residual lies as the result does, not as phases that are stored apart.
  if (p.has_residual) return false;
  // Pixels that no tap meets are written when phases are woven, without an epilogue.
  return p.joins_phases || p.phases == p.step_h * p.step_w;
}

class Search : public PlanSearch {
 public:
  using PlanSearch::PlanSearch;

  ConvPlan best() {
    if (p_.pass == Pass::kWgrad) return best_exchanged();
    const bool halves = p_.is_strict_float32();
    for (const bool joins_phases : {false, true}) {
      if (joins_phases ? !can_join_phases(p_) : count_phases(p_) > kMostPhases) continue;
      try_form({Packing::kNone, joins_phases, halves});
      try_form({Packing::kPixels, joins_phases, halves});
    }
    const int64_t channels = p_.pass == Pass::kDgrad ? p_.K : p_.C;
    const bool few = channels * element_size(p_.dtype) <= kMostFlattened;
    const bool far = std::max(p_.stride_h, p_.stride_w) > kMostStride;
    if (count_phases(p_) == 1 && (few || far)) try_form({Packing::kPatches, false, halves});
    return best_;
  }

 private:
  // Weight gradients: pieces of images fill rows of stages, and groups of them the GPU.
  ConvPlan best_exchanged() {
    constexpr int64_t kMostGroups = 32, kMostBands = 32, kLeastImages = 16, kEnoughImages = 512;
    constexpr int64_t kMostTerms = 1 << 14;  // of a sum
    form_ = {Packing::kImages, false, /*halves=*/true};
    for (int64_t bands = 1; bands <= std::min(kMostBands, p_.P); bands *= 2) {
      const Pieces pieces = pieces_of(p_, {1, bands});
      const int64_t images = p_.N * pieces.bands * pieces.columns;
      for (int64_t groups = 1; groups <= kMostGroups; groups *= 2) {
        const int64_t of_group = ceil_divide(images, groups);
        if (groups > 1 && of_group < kLeastImages) break;
        if (of_group * pieces.P * pieces.Q > kMostTerms) continue;
        f_ = exchanged_of(p_, {groups, bands});
        const int64_t partial = groups > 1 ? groups * p_.w_count() * element_size(p_.dtype) : 0;
        bytes_ = packed_bytes(f_) + round_up(partial, kAlignment);
        chunk_ = {groups, bands};
        try_tiles(Loader::kIm2col);
      }
      if (images >= kEnoughImages) break;
    }
    return best_;
  }

  void try_form(Form form) {
    if (!choose_chunk(p_, form, chunk_)) return;
    parts_ = count_parts(p_, chunk_);
    bytes_ = sm90::workspace_bytes(p_, chunk_, form);
    f_ = sm90::forward_of(part_of(p_, chunk_, widest_part(p_, chunk_)).problem, form);
    if (f_.packing != form.packing) return;
    form_ = form;
    ends_.clear();
    if (chunk_.pixels > 0) {
      for (const int64_t i : {int64_t{0}, parts_ / p_.N - 1}) {
        ends_.push_back(sm90::forward_of(part_of(p_, chunk_, i).problem, form));
      }
    }
    if (input_is_legal(f_)) {
      try_tiles(Loader::kIm2col);
      try_strips(Loader::kHalo);
    } else if (planes_are_legal(f_)) {
      try_strips(Loader::kPlanes);
    }
  }

  // Images as they are, and cut into strips.
  void try_strips(Loader loader) {
    try_tiles(loader);
    int64_t last = 1;
    for (const int64_t columns : {128, 64, 32}) {
      const int64_t strips = std::min<int64_t>(ceil_divide(f_.Q, columns), kMostStrips);
      if (f_.Q < 2 * columns || f_.R == 1 || strips == last) continue;
      last = strips;
      try_tiles(loader, strips);
    }
  }

  void try_tiles(Loader loader, int64_t strips = 1) {
    for (int shape = 0; shape < kTileShapeCount; ++shape) {
      if (is_over()) return;
      const TileShape& kind = kTileShapes[shape];
      if (!has_tile(loader, kind) || is_too_wide(kind.channels)) continue;
      for (int row = kMostRowBytes; row >= kLeastRowBytes; row /= 2) {
        // A stage of fewer channels than there are is for what else has no room.
        if (!weigh(loader, shape, row, strips)) continue;
        if (f_.group_C() * element_size(f_.dtype) > row / 2) break;
      }
    }
  }

  // Twice as wide a tile as there are channels is never better than the next one.
  bool is_too_wide(int channels) const { return channels > 64 && f_.group_K() <= channels / 2; }

  bool weigh(Loader loader, int shape, int row_bytes, int64_t strips) {
    const Tile whole = make_tile(f_, loader, shape, row_bytes, 1, strips);
    if (!add_tile(whole)) return false;
    if (loader != Loader::kIm2col) return true;  // others' sums are not split
    for (int64_t splits = 2; splits <= kMostSplits; splits *= 2) {
      const Tile tile = make_tile(f_, loader, shape, row_bytes, splits);
      if (whole.items() * splits > blocks_at_once(d_, tile)) break;
      add_tile(tile);
    }
    return true;
  }

  bool add_tile(Tile t) {
    if (!is_legal(f_, t) || !choose_stages(block_bytes(d_, t), t)) return false;
    if (!is_legal_at_ends(t)) return false;
    ConvPlan plan;
    plan.works = count_work(p_, f_, parts_, d_, t);
    if (!is_wanted(plan)) return true;
    const auto& names = form_.joins_phases ? kJoinedLoaderNames : kLoaderNames;
    plan.variant = names[static_cast<int>(t.loader)];
    if (form_.halves) {
      const auto& own = form_.joins_phases ? kJoinedHalvesLoaderNames : kHalvesLoaderNames;
      plan.variant = own[static_cast<int>(t.loader)];
    }
    plan.variant_index = kPlanFlag | static_cast<int>(t.loader) | t.shape << kShapeShift |
                         t.row_bytes / kLeastRowBytes << kRowShift |
                         static_cast<int>(t.strips) << kStripShift |
                         static_cast<int>(form_.packing) << kPackingShift |
                         (form_.joins_phases ? kJoinedFlag : 0) | (form_.halves ? kHalvesFlag : 0);
    plan.chunk_images = chunk_.images;
    plan.chunk_pixels = chunk_.pixels;
    plan.tile[0] = t.kind().pixels;
    plan.tile[1] = t.kind().channels;
    plan.tile[2] = t.row_bytes / static_cast<int>(element_size(f_.dtype));
    plan.splits = t.splits;
    plan.block = t.threads();
    plan.wide_index = needs_wide_index(p_);
    plan.shared_bytes = shared_bytes(t);
    plan.grid[0] = std::min<int64_t>(t.items() * t.splits, blocks_at_once(d_, t));
    if (t.splits > 1) plan.grid[0] = t.items() * t.splits;
    plan.workspace_bytes = packed_weight_bytes(f_, t) + bytes_;
    plan.fuses = p_.pass == Pass::kDgrad && fuses_gradient(f_);
    plan.payload = payload_of(t);
    keep(plan);
    return true;
  }

  MainLoopPlan payload_of(const Tile& t) const {
    MainLoopPlan payload;
    payload.loader = t.loader;
    payload.packing = form_.packing;
    payload.tile = static_cast<uint8_t>(t.shape);
    payload.joined = form_.joins_phases;
    payload.row = static_cast<int16_t>(t.row_bytes);
    payload.strips = static_cast<int16_t>(t.strips);
    if (form_.packing == Packing::kImages) {
      payload.groups = static_cast<int32_t>(chunk_.images);
      payload.bands = static_cast<int32_t>(chunk_.pixels);
    } else {
      payload.images = chunk_.images;
      payload.pixels = chunk_.pixels;
    }
    payload.stages[0] = static_cast<int16_t>(t.x_stages);
    payload.stages[1] = static_cast<int16_t>(t.w_stages);
    payload.slots = static_cast<int16_t>(t.plane_slots);
    return payload;
  }

  // Whether an image's first part and its last can be computed by such tiles, too.
  bool is_legal_at_ends(const Tile& t) const {
    for (const Packed& end : ends_) {
      const Tile own = make_tile(end, t.loader, t.shape, t.row_bytes, t.splits, t.strips);
      if (!is_legal(end, own) || own.store != t.store || own.x_bytes != t.x_bytes) return false;
    }
    return true;
  }

  Chunk chunk_;  // what is computed at a time,
  int64_t parts_ = 1;
  int64_t bytes_ = 0;  // of the workspace that they share
  Form form_;
  Packed f_;                  // of so many parts, the widest
  std::vector<Packed> ends_;  // of an image in parts, the first and the last
};

// Pixels by channels.
std::vector<std::string> tile_words() {
  std::vector<std::string> words;
  for (const TileShape& t : kTileShapes) {
    const std::string size = std::to_string(t.pixels) + 'x' + std::to_string(t.channels);
    words.push_back(t.halves ? "3xTF32-" + size : size);
  }
  return words;
}

}  // namespace

ConvPlan best_plan(const ConvProblem& asked, const DeviceProperties& d, std::vector<ConvPlan>* all,
                   const Wanted& wanted) {
  return Search(asked, d, all, wanted).best();
}

Exchange exchange_of(const ConvPlan& plan) { return {plan.chunk_images, plan.chunk_pixels}; }
Chunk chunk_of(const ConvPlan& plan) { return {plan.chunk_images, plan.chunk_pixels}; }

Packed forward_of(const ConvProblem& part, const ConvPlan& plan) {
  const auto packing = static_cast<Packing>(plan.variant_index >> kPackingShift & kPackingMask);
  return forward_of(part, Form{packing, (plan.variant_index & kJoinedFlag) != 0,
                               (plan.variant_index & kHalvesFlag) != 0});
}

bool is_plan(const ConvPlan& plan) { return (plan.variant_index & kPlanFlag) != 0; }

int64_t sum_order(const ConvPlan& plan, bool has_epilogue) {
  constexpr int kShapes = (1 << kRowShift) - (1 << kShapeShift);
  constexpr int kStrips = kMostStrips << kStripShift;
  return plan.variant_index & ~(kStrips | (has_epilogue ? 0 : kShapes));
}

Tile tile_of(const Packed& p, const ConvPlan& plan) {
  const int variant = plan.variant_index & (kPlanFlag - 1);
  const auto loader = static_cast<Loader>(variant & ((1 << kShapeShift) - 1));
  const int shape = variant >> kShapeShift & ((1 << (kRowShift - kShapeShift)) - 1);
  const int row = variant >> kRowShift & ((1 << (kStripShift - kRowShift)) - 1);
  Tile t = make_tile(p, loader, shape, row * kLeastRowBytes, plan.splits, variant >> kStripShift);
  choose_stages(plan.shared_bytes, t);
  return t;
}

int64_t statistics_parts(const ConvProblem& asked, const ConvPlan& plan) {
  if (!is_plan(plan) || asked.pass != Pass::kFprop) return 0;
  const Chunk chunk = chunk_of(plan);
  if (count_parts(asked, chunk) > 1) return 0;
  const Tile tile = tile_of(forward_of(part_of(asked, chunk, 0).problem, plan), plan);
  if (tile.store == Store::kCluster) return 0;
  const TileShape& kind = tile.kind();
  return tile.tiles_m * (kind.pixels / kind.columns(has_planes(tile.loader, tile.store, kind)));
}

}  // namespace customconv::implicit_gemm::sm90

namespace customconv {

template <>
Fields fields_of<PlanKind::implicit_gemm_main_loop>() {
  using implicit_gemm::sm90::MainLoopPlan, implicit_gemm::sm90::kLoaderNames;
  return FieldList<MainLoopPlan>()
      .word("loader", &MainLoopPlan::loader, {std::begin(kLoaderNames), std::end(kLoaderNames)})
      .word("packing", &MainLoopPlan::packing, {"none", "pixels", "patches", "images"})
      .word("tile", &MainLoopPlan::tile, implicit_gemm::sm90::tile_words())
      .flag("joined", &MainLoopPlan::joined)
      .number("row", &MainLoopPlan::row)
      .number("strips", &MainLoopPlan::strips)
      .size("images", &MainLoopPlan::images)
      .size("pixels", &MainLoopPlan::pixels)
      .size("groups", &MainLoopPlan::groups)
      .size("bands", &MainLoopPlan::bands)
      .size("stages", &MainLoopPlan::stages)
      .size("slots", &MainLoopPlan::slots);
}

}  // namespace customconv
