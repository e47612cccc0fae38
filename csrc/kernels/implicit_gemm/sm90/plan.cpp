#include "kernels/implicit_gemm/sm90/plan.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/common/parts.h"
#include "kernels/implicit_gemm/moving.h"
#include "kernels/implicit_gemm/sm90/payload.h"
#include "plan/fields.h"
#include "plan/hardware.h"
#include "plan/price.h"
#include "plan/search.h"

namespace customconv::implicit_gemm::sm90 {

namespace {

constexpr int64_t kMostStrips = 255;
constexpr int64_t kMostFlattened = 32;  // bytes of channels up to which taps may be channels

constexpr int64_t kMostPeers = 8;  // blocks that share a tile: one of them adds what others store
// What it takes to share tiles, beside moving the sums: measured.
constexpr double kStreamKClocks = 10000;

constexpr int64_t kStreamKSplits = 2;  // not the same for all tiles, but more than one

constexpr double kProductBytes = 4096;  // a clock: channels of a tile times bytes of its pixels
// Accesses of shared memory for each byte of planes: written by copies, read in words of two
// pixels, and written in another order.
constexpr double kTransposeAccesses = 7;
// Clocks of loads that are on their way together, and of each for a warp's 32 positions: measured.
constexpr double kGatherWait = 700;
constexpr double kGatherClocks = 6.5;

// Shared memory that a block may ask for: all of a multiprocessor's where no other block would run
// beside it.
int block_bytes(const DeviceProperties& d, const Tile& t) {
  constexpr int kReserved = 1024;  // of each block
  const bool is_alone = !t.stream_k && t.items() * t.splits <= d.sm_count;
  return (d.shared_bytes_block + kReserved) / (is_alone ? 1 : t.kind().occupancy) - kReserved;
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
  const double strip_copies = t.copies_strips ? t.copies * hardware::kStripCopyClocks : 0;
  const double x_copy = std::max(
      copy(t.halves_pixels ? t.x_bytes / 2 : t.x_bytes, copied_rows * x_pieces), strip_copies);
  // Weights that stay are copied once. Of the last channels there may be few.
  const double copied = static_cast<double>(copied_channels(p, t)) / static_cast<double>(t.tiles_k);
  const double w_bytes = t.keeps_weights ? 0 : copied * t.row_bytes;
  const double w_copy = t.keeps_weights ? 0 : copy(w_bytes, copied * w_pieces);
  // An instruction reads 64 channels and its columns, the positions of a tile or a part of them.
  // Boxes of planes are written, read, and written again in another order.
  const double spans = kind.pixels / kind.columns(writes_stages(t.loader, t.store, kind));
  const double rows = kInstructionRows;
  const double read = kind.has_pixel_rows()
                          ? kind.pixels + kind.pixels / rows * kind.channels
                          : kind.channels * spans + kind.channels / rows * kind.pixels;
  const double operands = read * t.row_bytes + w_bytes;
  if (t.loader == Loader::kGather) {
    // A warp's pixels lie in so many lines of 128 bytes, each of which takes a clock.
    const ConvProblem& source = p.source;
    const auto step = static_cast<double>(source.x_strides[3] * source.stride_w * size);
    const double lines = std::clamp(step * 32 / 128, 1.0, 32.0);
    const double loads = kind.pixels / 32.0 * (t.row_bytes / static_cast<double>(size));
    const double own_loads = loads / (4 * kind.loaders(true));  // of a warp
    const double fetched =
        std::ceil(own_loads / kGatherLoads) * kGatherWait + loads * std::max(kGatherClocks, lines);
    return t.chunks * busiest({product, w_copy, fetched,
                               (operands + t.x_bytes) / hardware::kSharedBytesPerClock});
  }
  const double filled = t.loader == Loader::kPlanes
                            ? kTransposeAccesses * t.plane_boxes * kBoxPixels * t.row_bytes
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

// Blocks that share the steps of tiles, of those that run at once: each has a step or more.
int64_t stream_k_blocks(const Tile& t, int64_t at_once) {
  return std::min(at_once, t.items() * std::min<int64_t>(t.chunks, kMostPeers));
}

// Tiles that a block computes at most: whole ones and parts.
double tiles_of_block(const Tile& t, int64_t blocks) {
  const int64_t shared = t.shared_tiles(blocks);
  return static_cast<double>(ceil_divide(t.items() - shared, blocks)) +
         static_cast<double>(t.shared_steps(blocks)) / t.chunks;
}

// A block stores the sums of one tile and adds those of others to another one.
void share_tiles(Work& loop, const Tile& t, int64_t blocks) {
  const auto tiles = static_cast<float>(tiles_of_block(t, blocks));
  const auto sums = static_cast<float>(t.kind().pixels * t.kind().channels * sizeof(float));
  loop.blocks = static_cast<float>(blocks);
  loop.busy = loop.busy * tiles + static_cast<float>(kStreamKClocks);
  loop.waits = std::max(tiles, 1.0F);
  loop.stored = loop.stored * loop.waits + sums + sums * std::ceil(std::max(1 / tiles - 1, 1.0F));
}

// How pixels are packed: from planes that begin at multiples of 16 bytes or not, from pixels whose
// channels are side by side, or with what their taps meet.
int packing_row(const Packed& p) {
  if (p.packing == Packing::kImages) return 4;
  if (p.packing == Packing::kPatches) return 3;
  const Shape5& strides = p.source.x_strides;
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
    const double met = leaves_out_slices(p, t) ? met_slices(p) : 1;
    const double own = met * p.phase[i].R * p.phase[i].S;
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
  if (t.stream_k) share_tiles(loop, t, stream_k_blocks(t, blocks_at_once(d, t)));
  const int64_t rows = t.strips > 1 ? p.N * p.P * t.strips : 0;  // each of them a run
  const double split = split_sector_bytes(p, t.tiles_m + rows);
  loop.bytes = static_cast<float>(asked.least_bytes() / launches + split);
  WorkList works;
  works.add(loop);
  if (p.is_packed()) {
    const double bytes = 2 * static_cast<double>(p.packed()) * size;
    works.add(moving(PriceKind::kPackPixels, packing_row(p), bytes, launches));
  }
  if (p.packing == Packing::kImages) {
    const auto gradient = static_cast<double>(p.K * p.taps_h * p.taps_w * p.group_C());
    works.add(moving(PriceKind::kPackPixels, packing_row(p), 2 * gradient * size));
    if (p.groups > 1) works.add(adding_up(asked.w_count(), p.groups, d));
    return works;
  }
  if (p.woven > 0) {
    works.add(weaving(p, asked.C > 1 && asked.x_strides[1] != 1, launches));
  }
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

// Bytes of the workspace beside the packed weight, of `p` where it is a weight gradient's.
int64_t part_bytes(const ConvProblem& asked, const MainLoopPlan& plan, const Packed& p) {
  if (asked.pass != Pass::kWgrad) return workspace_bytes(asked, plan.chunk(), plan.form());
  const int64_t partial = p.groups > 1 ? p.groups * asked.w_count() * element_size(p.dtype) : 0;
  return packed_bytes(p) + round_up(partial, kAlignment);
}

// The part of a problem that computes most.
Packed widest_of(const ConvProblem& asked, const MainLoopPlan& plan) {
  if (asked.pass == Pass::kWgrad) return exchanged_of(asked, plan.exchange());
  const Chunk chunk = plan.chunk();
  return forward_of(part_of(asked, chunk, widest_part(asked, chunk)).problem, plan.form());
}

// `blocks`: how many share tiles, if they do.
LaunchShape shape_of(const Packed& p, const Tile& t, int64_t bytes, int64_t blocks) {
  return {t.stream_k ? stream_k_blocks(t, blocks) : t.items() * t.splits, t.threads(),
          shared_bytes(t), packed_weight_bytes(p, t) + bytes + partial_bytes(t, blocks)};
}

class Search : public PlanSearch {
 public:
  using PlanSearch::PlanSearch;

  ConvPlan best() {
    if (p_.pass == Pass::kWgrad) return best_exchanged();
    const bool halves = p_.is_strict_float32();
    if (p_.is_deep()) {
      try_form({Packing::kNone, false, halves});
      try_form({Packing::kPixels, false, halves});
      return best_;
    }
    for (const bool joins_phases : {false, true}) {
      if (joins_phases ? !can_join_phases(p_) : count_phases(p_) > kMostPhases) continue;
      try_form({Packing::kNone, joins_phases, halves});
      try_form({Packing::kPixels, joins_phases, halves});
    }
    const int64_t channels = p_.pass == Pass::kDgrad ? p_.K : p_.C;
    const bool few = channels * element_size(p_.dtype) <= kMostFlattened;
    const bool far = std::max(p_.stride_h, p_.stride_w) > kMostStride;
    if (count_phases(p_) == 1 && (few || far)) try_form({Packing::kPatches, false, halves});
    if (count_phases(p_) == 1 && few && !halves) try_form({Packing::kGathered, false, halves});
    return best_;
  }

 private:
  // Weight gradients: pieces of images fill rows of stages, and groups of them the GPU.
  ConvPlan best_exchanged() {
    constexpr int64_t kMostGroups = 32, kMostBands = 32, kLeastImages = 16, kEnoughImages = 512;
    constexpr int64_t kMostTerms = 1 << 14;  // of a sum
    way_.packing = Packing::kImages;
    for (int64_t bands = 1; bands <= std::min(kMostBands, p_.P); bands *= 2) {
      const Pieces pieces = pieces_of(p_, {1, bands});
      const int64_t images = p_.N * pieces.bands * pieces.columns;
      for (int64_t groups = 1; groups <= kMostGroups; groups *= 2) {
        const int64_t of_group = ceil_divide(images, groups);
        if (groups > 1 && of_group < kLeastImages) break;
        if (of_group * pieces.P * pieces.Q > kMostTerms) continue;
        way_.groups = static_cast<int32_t>(groups);
        way_.bands = static_cast<int32_t>(bands);
        f_ = widest_of(p_, way_);
        bytes_ = part_bytes(p_, way_, f_);
        try_tiles(Loader::kIm2col);
      }
      if (images >= kEnoughImages) break;
    }
    return best_;
  }

  void try_form(Form form) {
    Chunk chunk;
    if (!choose_chunk(p_, form, chunk)) return;
    const bool gathers = form.packing == Packing::kGathered;
    way_.packing = gathers ? Packing::kNone : form.packing;
    way_.joined = form.joins_phases;
    way_.images = chunk.images;
    way_.pixels = chunk.pixels;
    parts_ = count_parts(p_, chunk);
    bytes_ = workspace_bytes(p_, chunk, form);
    f_ = forward_of(part_of(p_, chunk, widest_part(p_, chunk)).problem, form);
    if (f_.packing != form.packing) return;
    ends_.clear();
    if (chunk.pixels > 0) {
      for (const int64_t i : {int64_t{0}, parts_ / p_.N - 1}) {
        ends_.push_back(forward_of(part_of(p_, chunk, i).problem, form));
      }
    }
    if (gathers) {
      try_tiles(Loader::kGather);
    } else if (input_is_legal(f_)) {
      try_tiles(Loader::kIm2col);
      if (!p_.is_deep()) try_strips(Loader::kHalo);
    } else if (!p_.is_deep() && planes_are_legal(f_)) {
      try_strips(Loader::kPlanes);
    }
  }

  // Images as they are, and cut into strips.
  void try_strips(Loader loader) {
    try_tiles(loader);
    // Boxes. Runs of eight pixels are too short for stores to planes, and halos of phases for few
    // taps.
    if (loader == Loader::kHalo && f_.Q > kGroupPositions && f_.R > 1 && f_.phases == 1 &&
        !stores_planes(f_)) {
      try_tiles(loader, f_.Q / kGroupPositions + 1);
    }
    int64_t last = 1;
    for (const int64_t columns : {128, 64, 32}) {
      const int64_t strips = std::min(ceil_divide(f_.Q, columns), kMostStrips);
      if (f_.Q < 2 * columns || f_.R == 1 || strips == last) continue;
      last = strips;
      try_tiles(loader, strips);
    }
  }

  void try_tiles(Loader loader, int64_t strips = 1) {
    way_.loader = loader;
    way_.strips = static_cast<int16_t>(strips);
    for (way_.tile = 0; way_.tile < kTileShapeCount; ++way_.tile) {
      if (is_over()) return;
      const TileShape& kind = kTileShapes[way_.tile];
      if (!has_tile(loader, kind) || is_too_wide(kind.channels) || is_too_narrow(kind.channels)) {
        continue;
      }
      for (way_.row = kMostRowBytes; way_.row >= kLeastRowBytes; way_.row /= 2) {
        // A stage of fewer channels than there are is for what else has no room.
        if (!weigh()) continue;
        // What is gathered fills rows of any width, and the last one the less the wider it is.
        if (loader != Loader::kGather && f_.group_C() * element_size(f_.dtype) > way_.row / 2)
          break;
      }
    }
  }

  // Twice as wide a tile as there are channels is never better than the next one.
  bool is_too_wide(int channels) const { return channels > 64 && f_.group_K() <= channels / 2; }
  // Nor are tiles of few channels where those of 64 compute hardly more.
  bool is_too_narrow(int channels) const {
    return channels < kInstructionRows && f_.group_K() > channels &&
           round_up(f_.group_K(), channels) == round_up(f_.group_K(), kInstructionRows);
  }

  bool weigh() {
    const Tile whole = make_tile(f_, way_, 1);
    if (!add_tile(whole)) return false;
    if (may_share_tiles(way_.loader)) {
      way_.stream_k = true;
      const Tile shared = make_tile(f_, way_, kStreamKSplits);
      if (saves_time(shared)) add_tile(shared);
      way_.stream_k = false;
    }
    if (!has_clusters(way_.loader, whole.kind())) return true;
    for (int64_t splits = 2; splits <= kMostSplits; splits *= 2) {
      const Tile tile = make_tile(f_, way_, splits);
      if (whole.items() * splits > blocks_at_once(d_, tile)) break;
      add_tile(tile);
    }
    return true;
  }

  // Whether part of the GPU would wait for the last tiles for longer than it takes to share them.
  bool saves_time(const Tile& t) const {
    const int64_t at_once = blocks_at_once(d_, t);
    const auto waves = static_cast<double>(ceil_divide(t.items(), at_once));
    const double busy = busy_clocks(f_, t, static_cast<double>(f_.phase[0].R) * f_.phase[0].S);
    const double saved = waves - tiles_of_block(t, stream_k_blocks(t, at_once));
    return saved * t.kind().occupancy * busy > kStreamKClocks;
  }

  bool add_tile(Tile t) {
    if (!is_legal(f_, t) || !choose_stages(block_bytes(d_, t), t)) return false;
    if (!is_legal_at_ends(t)) return false;
    ConvPlan plan;
    plan.works = count_work(p_, f_, parts_, d_, t);
    if (!is_wanted(plan)) return true;
    const int64_t at_once = blocks_at_once(d_, t);
    const int64_t blocks = t.stream_k ? stream_k_blocks(t, at_once) : at_once;
    static_cast<LaunchShape&>(plan) = shape_of(f_, t, bytes_, blocks);
    if (t.splits == 1) plan.blocks = std::min(plan.blocks, at_once);
    plan.splits = t.stream_k ? kStreamKSplits : t.splits;
    plan.fuses = p_.pass == Pass::kDgrad && fuses_gradient(f_);
    MainLoopPlan way = way_;
    way.strips = static_cast<int16_t>(t.strips);
    way.stages[0] = static_cast<int16_t>(t.x_stages);
    way.stages[1] = static_cast<int16_t>(t.w_stages);
    way.slots = static_cast<int16_t>(t.plane_slots);
    plan.payload = way;
    keep(plan);
    return true;
  }

  // Whether an image's first part and its last can be computed by such tiles, too.
  bool is_legal_at_ends(const Tile& t) const {
    for (const Packed& end : ends_) {
      const Tile own = make_tile(end, way_, t.splits);
      if (!is_legal(end, own) || own.store != t.store || own.x_bytes != t.x_bytes) return false;
    }
    return true;
  }

  MainLoopPlan way_;  // all but the stages
  int64_t parts_ = 1;
  int64_t bytes_ = 0;         // of the workspace that they share
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

LaunchShape shape(const ConvProblem& asked, const ConvPlan& plan) {
  const auto way = plan.payload.as<MainLoopPlan>();
  const bool gradient = asked.pass == Pass::kWgrad;
  const bool has_form = gradient     ? can_exchange(asked)
                        : way.joined ? can_join_phases(asked)
                                     : count_phases(asked) <= kMostPhases;
  if ((way.packing == Packing::kImages) != gradient || !has_form) return {};
  const Packed p = widest_of(asked, way);
  if (p.packing != way.form().packing) return {};
  if (way.loader == Loader::kPlanes ? !planes_are_legal(p) : !input_is_legal(p)) return {};
  const Tile tile = make_tile(p, way, plan.splits);
  return is_legal(p, tile) ? shape_of(p, tile, part_bytes(asked, way, p), plan.blocks)
                           : LaunchShape{};
}

int64_t sum_order(const ConvProblem& asked, const ConvPlan& plan, bool has_epilogue) {
  const auto way = plan.payload.as<MainLoopPlan>();
  int64_t order = 1;                                  // mma_sync has smaller numbers
  const int residues = way.loader == Loader::kPlanes  // by which channels are in order
                           ? make_tile(widest_of(asked, way), way, plan.splits).residue_bits
                           : 0;
  const int tile = has_epilogue ? way.tile : way.form().halves ? kTileShapeCount : 0;
  for (const int part : {static_cast<int>(way.loader), static_cast<int>(way.packing),
                         int{way.joined}, tile, int{way.row}, residues}) {
    order = order << 8 | part;
  }
  return order;
}

int64_t statistics_parts(const ConvProblem& asked, const ConvPlan& plan) {
  if (plan.payload.kind() != PlanKind::implicit_gemm_main_loop || asked.pass != Pass::kFprop) {
    return 0;
  }
  const auto way = plan.payload.as<MainLoopPlan>();
  if (count_parts(asked, way.chunk()) > 1) return 0;
  const Tile tile = make_tile(widest_of(asked, way), way, plan.splits);
  if (tile.store == Store::kCluster) return 0;
  const TileShape& kind = tile.kind();
  return tile.tiles_m * (kind.pixels / kind.columns(writes_stages(tile.loader, tile.store, kind)));
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
      .flag("stream_k", &MainLoopPlan::stream_k)
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
