#include "kernels/implicit_gemm/sm90/tile.h"

#include <algorithm>

#include "kernels/common/parts.h"
#include "kernels/implicit_gemm/moving.h"
#include "kernels/implicit_gemm/tile.h"
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
constexpr int kMostOffset = 255;         // of a copy in im2col mode, in pixels
constexpr int kMostCorner = 127;         // of its box, from the image's corner
constexpr int kMostCopyRows = 256;       // of a copy
constexpr int kMostCopies = 16;          // of a stage
constexpr int kMostStripCopies = 32;     // of a stage: a lane each
constexpr int kMostBox = 256;            // pixels of a copied row
constexpr int kCopyBytes = 128;          // what aligns a copy in shared memory
constexpr int kMostStride = 8;           // of a copy
constexpr int kSlotAlignment = 1024;     // of what boxes come into
constexpr int kMostPlaneRows = 1 << 12;  // of a stage
constexpr int kLeastStages = 3;          // of weights
constexpr int kLeastHaloStages = 2;      // of pixels,
constexpr int kMostHaloStages = 4;       // and at most
constexpr int kLeastPlaneSlots = 2;      // of a warp: one is turned, one arrives
constexpr int kUnit = 8;                 // rows of a swizzle,
constexpr int kSwizzleBytes = 1024;      // and its bytes at most
constexpr int64_t kMostFlattened = 32;   // bytes of channels up to which taps may be channels

constexpr double kProductBytes = 4096;  // a clock: channels of a tile times bytes of its pixels
// Accesses of shared memory for each byte of planes: written by copies, read in words of two
// pixels, and written in another order.
constexpr double kTurnAccesses = 7;

// Behind the last pixel of an axis, where the first tap of its last output pixel is.
int64_t upper_corner(int64_t pixels, int64_t outputs, int64_t stride, int64_t pad) {
  return (outputs - 1) * stride - pad - (pixels - 1);
}

bool is_corner(int64_t value) { return value >= -kMostCorner - 1 && value <= kMostCorner; }

// Padding that neighbouring rows, or images, share in the halo loader's grid.
int64_t shared_pad(int64_t pixels, int64_t outputs, int64_t taps, int64_t pad, int64_t dilation) {
  const int64_t behind = outputs - 1 - pad + (taps - 1) * dilation - (pixels - 1);
  return std::max<int64_t>({pad, behind, 0});
}

// Where in 16 bytes planes begin: bits of a channel's number that this depends on.
int residue_bits(const Forward& p) {
  const int64_t unit = 16 / element_size(p.dtype);
  int bits = 0;
  while (p.C > 1 && (p.x_strides[1] << bits) % unit != 0) ++bits;
  return bits;
}
// Channels of a stage that begin at the same byte of 16 are turned together, 16 bytes at a time.
int most_residue_bits(const Forward& p, const Tile& t) {
  if (t.row_bytes < kMostRowBytes || t.kind().halves) return 0;
  return element_size(p.dtype) == 2 ? 3 : 2;
}

// Whether the grid is one that copies can traverse, with all taps in reach.
bool is_grid(const Forward& p, const Tile& t) {
  if (t.image() * (p.N + 2) > INT32_MAX / 2) return false;
  if (t.loader == Loader::kIm2col) {
    return (p.R - 1) * p.dilation_h <= kMostOffset && (p.S - 1) * p.dilation_w <= kMostOffset &&
           p.stride_h <= kMostStride && p.stride_w <= kMostStride && is_corner(-p.pad_h) &&
           is_corner(-p.pad_w) && is_corner(upper_corner(p.H, p.P, p.stride_h, p.pad_h)) &&
           is_corner(upper_corner(p.W, p.Q, p.stride_w, p.pad_w));
  }
  if (p.stride_h > 1 || p.stride_w > 1 || p.P > t.period || t.halo > t.image()) return false;
  if (t.strips == 1 && p.Q > t.pitch) return false;
  if (t.loader == Loader::kPlanes) {
    if (t.store != Store::kPlanes || t.residue_bits > most_residue_bits(p, t)) return false;
    if (p.C < int64_t{1} << t.residue_bits) return false;
    if (t.strips == 1) return true;
    // What lies outside the image is on one side of a strip. The last that begins in front of it
    // goes furthest.
    const int64_t before = std::max<int64_t>(p.pad_w - 1, 0) / t.strip_columns;
    const int64_t last = std::min(before, t.strips - 1) * t.strip_columns;
    return last - p.pad_w + t.pitch <= p.W;
  }
  if (t.copies_strips) return t.copy_rows <= kMostBox && t.copies <= kMostStripCopies;
  return p.R * p.S > 1 && is_corner(t.pitch - p.W) && is_corner(t.period - p.H);
}

// Whether positions are the output's pixels, one after the other in memory.
bool stores_rows(const Forward& p, const Tile& t) {
  const int64_t size = element_size(p.dtype), slab = 128 / size;  // channels
  const int64_t pixel = pixel_stride(p);
  const auto follows = [](int64_t count, int64_t stride, int64_t expected) {
    return count == 1 || stride == expected;
  };
  return t.loader == Loader::kIm2col && !p.has_phases() && p.y_aligned &&
         follows(p.K, p.y_strides[1], 1) && pixel * size % 16 == 0 &&
         follows(p.Q, p.y_strides[3], pixel) && follows(p.P, p.y_strides[2], p.Q * pixel) &&
         follows(p.N, p.y_strides[0], p.P * p.Q * pixel) &&
         (p.groups == 1 || p.group_K() % slab == 0);
}

bool stores_planes(const Forward& p) { return p.K > 1 && p.y_strides[1] != 1; }

// Whether rows of positions may be rounded up to a multiple of `unit`.
bool is_little_longer(int64_t pitch, int64_t unit) {
  constexpr double kLonger = 1.04;
  return static_cast<double>(round_up(pitch, unit)) <= kLonger * static_cast<double>(pitch);
}

// Fills in what follows from the loader, the shape, the rows and the splits.
Tile make_tile(const Packed& p, Loader loader, int shape, int row_bytes, int64_t splits,
               int64_t strips = 1) {
  const int64_t size = element_size(p.dtype);
  Tile t{};
  t.loader = loader;
  t.shape = shape;
  t.row_bytes = row_bytes;
  t.splits = static_cast<int>(splits);
  const TileShape& kind = t.kind();
  t.residue_bits = loader == Loader::kPlanes ? residue_bits(p) : 0;
  t.halves_pixels = p.half_bits > 0 && p.packing == Packing::kNone && loader != Loader::kPlanes;
  t.weights_as_stored = p.gradient && size == 2 && t.residue_bits == 0 && p.tap_channels == 0;
  t.pitch = p.Q;
  t.period = p.P;
  t.strips = 1;
  const int64_t box_unit = 16 / size;  // what aligns a box
  if (loader != Loader::kIm2col) {
    t.pitch = p.W + shared_pad(p.W, p.Q, p.S, p.pad_w, p.dilation_w);
    t.period = p.H + shared_pad(p.H, p.P, p.R, p.pad_h, p.dilation_h);
    // An even pitch lets pairs of pixels be stored at once.
    const int64_t unit = stores_planes(p) && p.Q % 2 == 0 ? 2 : 1;
    if (is_little_longer(t.pitch, unit)) t.pitch = round_up(t.pitch, unit);
    t.copies_strips = loader == Loader::kHalo && strips > 1;
    if (strips > 1) {
      const int64_t columns = loader == Loader::kPlanes ? box_unit : 2;
      t.strip_columns = round_up(ceil_divide(p.Q, strips), columns);
      t.strips = ceil_divide(p.Q, t.strip_columns);
      t.strip_columns = round_up(ceil_divide(p.Q, t.strips), columns);
      t.pitch = round_up(
          t.strip_columns + (p.S - 1) * p.dilation_w,
          t.copies_strips ? std::max<int64_t>(unit, kCopyBytes / t.pixel_row_bytes()) : unit);
      t.halo = p.pad_h * t.pitch;
    } else {
      t.halo = p.pad_h * t.pitch + p.pad_w;
    }
    t.span = (p.R - 1) * p.dilation_h * t.pitch + (p.S - 1) * p.dilation_w;
  }
  if (t.strips == 1) t.strip_columns = t.pitch;
  const int64_t rows = kind.pixels + t.span;
  if (loader == Loader::kPlanes) {
    t.copies = 1;
    const int64_t unit = kSlotAlignment / row_bytes;
    t.copy_rows = static_cast<int>(std::min<int64_t>(round_up(rows, unit), kMostPlaneRows));
    const bool rows_aligned = p.x_aligned && t.residue_bits == 0 && t.strips == 1 &&
                              (p.H == 1 || p.x_strides[2] % box_unit == 0);
    t.most_shift = rows_aligned ? 0 : static_cast<int>(box_unit - 1);
    const int64_t columns = t.strips == 1 ? p.W : t.pitch;  // that boxes bring
    const int64_t row_boxes = ceil_divide(columns + t.most_shift, kBoxPixels);
    // Boxes that a stage's positions meet, wherever in a row they begin, at most.
    const int64_t whole = (t.copy_rows - 1) / t.pitch, rest = (t.copy_rows - 1) % t.pitch;
    const int64_t unmet = (t.pitch - rest - t.most_shift) / kBoxPixels;
    const int64_t boxes =
        whole * row_boxes + 1 +
        std::max(ceil_divide(rest + t.most_shift, kBoxPixels), row_boxes + 1 - unmet);
    const int64_t touched = ceil_divide(t.copy_rows + t.pitch - 1, t.pitch);
    t.row_boxes = static_cast<int>(row_boxes);
    t.plane_boxes = static_cast<int>(std::min(boxes, touched * row_boxes));
  } else if (t.copies_strips) {
    // A tile may begin anywhere in a row.
    t.copy_rows = static_cast<int>(t.pitch);
    t.copies = static_cast<int>(ceil_divide(rows + t.pitch - 1, t.pitch));
  } else {
    t.copies = static_cast<int>(std::min<int64_t>(ceil_divide(rows, kMostCopyRows), kMostCopies));
    t.copy_rows = static_cast<int>(
        std::min<int64_t>(round_up(ceil_divide(rows, t.copies), kUnit), kMostCopyRows));
  }
  t.x_bytes = static_cast<int>(round_up(t.copies * t.copy_rows, kUnit)) * t.pixel_row_bytes();
  if (t.halves_pixels) t.x_bytes = 2 * static_cast<int>(round_up(t.x_bytes, kSwizzleBytes));
  t.w_bytes = kind.channels * row_bytes;
  t.chunks = static_cast<int>(ceil_divide(p.group_C() * size, row_bytes));
  t.tiles_m = ceil_divide(p.N * t.image(), kind.pixels);
  t.tiles_k = p.groups * ceil_divide(p.group_K(), kind.channels);
  t.phases = p.phases;
  if (splits > 1) {
    t.store = Store::kCluster;
  } else if (stores_planes(p)) {
    t.store = Store::kPlanes;
  } else {
    t.store = stores_rows(p, t) ? Store::kRows : Store::kPixels;
  }
  return t;
}

// Shared memory that a block may ask for.
int block_bytes(const DeviceProperties& d, const Tile& t) {
  constexpr int kReserved = 1024;  // of each block
  return (d.shared_bytes_block + kReserved) / t.kind().occupancy - kReserved;
}

// Bytes of shared memory that are not stages.
int fixed_bytes(const Tile& t) {
  return kBarrierBytes + t.kind().multipliers() * staging_bytes(t.store);
}

// A slot of each warp that turns planes, and all of them.
int slot_bytes(const Tile& t) {
  return t.kind().plane_warps() * kBoxPixels * t.row_bytes / (t.kind().halves ? 2 : 1);
}
int slots_bytes(const Tile& t) {
  return t.loader == Loader::kPlanes ? kDumpsBytes + t.plane_slots * slot_bytes(t) : 0;
}

// Shares out a block's shared memory among stages; false if they are too few.
bool choose_stages(int shared_bytes, Tile& t) {
  int bytes = shared_bytes - fixed_bytes(t);
  if (t.loader == Loader::kPlanes) {
    // Stages go first: warps that turn planes wait for them sooner than for slots.
    bytes -= kDumpsBytes + kLeastStages * t.w_bytes;
    const int rest = bytes - kLeastPlaneSlots * slot_bytes(t);
    const int stages = std::min(rest / t.x_bytes, kMostHaloStages);
    if (stages < kLeastHaloStages) return false;
    t.plane_slots = std::min((bytes - stages * t.x_bytes) / slot_bytes(t), kMostPlaneSlots);
    bytes += kLeastStages * t.w_bytes - t.plane_slots * slot_bytes(t);
  }
  if (t.loader == Loader::kIm2col) {
    t.x_stages = t.w_stages = std::min(bytes / (t.x_bytes + t.w_bytes), kMostStages);
    if (t.x_stages < kLeastStages) return false;
  } else {
    t.x_stages = std::min((bytes - kLeastStages * t.w_bytes) / t.x_bytes, kMostHaloStages);
    if (t.x_stages < kLeastHaloStages) return false;
    t.w_stages = std::min((bytes - t.x_stages * t.x_bytes) / t.w_bytes, kMostStages);
  }
  const int stages = t.x_stages * t.x_bytes + t.w_stages * t.w_bytes;
  return t.splits == 1 || stages >= t.kind().pixels * t.kind().channels * 4;
}

bool is_legal(const Packed& p, const Tile& t) {
  const int64_t size = element_size(p.dtype);
  if (t.kind().halves != (p.half_bits > 0)) return false;
  // A row has a run of each half.
  if (p.half_bits > 0 && t.row_bytes != 2 * size << p.half_bits) return false;
  const bool padded = p.half_bits > 0 && p.channels % (int64_t{1} << p.half_bits) != 0;
  if (p.groups > 1 && padded && p.packing != Packing::kImages) return false;
  if (!is_grid(p, t)) return false;
  if (t.copies * t.copy_rows < t.kind().pixels + t.span) return false;
  if (p.groups > 1 && p.group_C() * size % t.row_bytes != 0) return false;
  if (t.items() * t.splits > INT32_MAX / 2) return false;
  if (t.splits == 1) return true;
  return t.loader == Loader::kIm2col && is_clustered(t.kind()) &&
         t.splits <= t.chunks * p.phase[0].R * p.phase[0].S;
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
  const auto size = static_cast<double>(element_size(p.dtype));
  const double product =
      static_cast<double>(kind.pixels) * kind.channels * t.row_bytes / kProductBytes;
  const double copied_rows = t.loader == Loader::kPlanes
                                 ? t.plane_boxes * t.row_bytes / size
                                 : static_cast<double>(t.copies) * t.copy_rows;
  const auto copy = [](double bytes, double rows) {
    return std::max(bytes / hardware::kL2BytesPerClock, rows * hardware::kCopyRowClocks);
  };
  const double x_copy = copy(t.halves_pixels ? t.x_bytes / 2 : t.x_bytes, copied_rows);
  const double w_copy = copy(t.w_bytes, kind.channels);
  // An instruction reads 64 channels and its columns, the positions of a tile or a part of them.
  // Boxes of planes are written, read, and written again in another order.
  const double spans = kind.pixels / kind.columns(has_planes(t.loader, t.store));
  const double operands = kind.channels * t.row_bytes * (spans + kind.pixels / 64.0) + t.w_bytes;
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

class Search : public PlanSearch {
 public:
  Search(const ConvProblem& asked, const DeviceProperties& d, std::vector<ConvPlan>* all)
      : PlanSearch(asked, d, all) {}

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
    for (const int64_t columns : {128, 64, 32}) {
      if (f_.Q < 2 * columns || f_.R == 1) continue;
      try_tiles(loader, std::min<int64_t>(ceil_divide(f_.Q, columns), kMostStrips));
    }
  }

  void try_tiles(Loader loader, int64_t strips = 1) {
    for (int shape = 0; shape < kTileShapeCount; ++shape) {
      if (is_too_wide(kTileShapes[shape].channels)) continue;
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
    const bool has_ends = chunk_.pixels > 0 && form_.packing != Packing::kImages;
    if (has_ends && !is_legal_at_ends(t)) return false;
    ConvPlan plan;
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
    plan.works = count_work(p_, f_, parts_, d_, t);
    plan.predicted_ms = price(plan.works, d_);
    add(plan);
    return true;
  }

  // Whether an image's first part and its last can be computed by such tiles, too.
  bool is_legal_at_ends(const Tile& t) const {
    for (const int64_t i : {int64_t{0}, parts_ / p_.N - 1}) {
      const Packed end = sm90::forward_of(part_of(p_, chunk_, i).problem, form_);
      const Tile own = make_tile(end, t.loader, t.shape, t.row_bytes, t.splits, t.strips);
      if (!is_legal(end, own) || own.store != t.store || own.x_bytes != t.x_bytes) return false;
    }
    return true;
  }

  Chunk chunk_;  // what is computed at a time,
  int64_t parts_ = 1;
  int64_t bytes_ = 0;  // of the workspace that they share
  Form form_;
  Packed f_;  // of so many parts, the widest
};

}  // namespace

int64_t pixel_stride(const Forward& p) {
  if (p.Q > 1) return p.y_strides[3];
  if (p.P > 1) return p.y_strides[2];
  return p.N > 1 ? p.y_strides[0] : round_up(p.K, 16);
}

PackedWeight weight_of(const Packed& p, const Tile& t) {
  PackedWeight weight = packed_matrix(p, t.weights_as_stored);
  if (p.half_bits > 0) {
    weight.row = p.group_C();
    weight.order.half_bits = p.half_bits;
    weight.in_place = false;
    return weight;
  }
  if (t.residue_bits == 0) return weight;
  int run_bits = 0;
  while (element_size(p.dtype) << (t.residue_bits + run_bits) < t.row_bytes) ++run_bits;
  weight.order = {t.residue_bits, run_bits};
  weight.row = round_up(weight.row, weight.order.part());
  weight.in_place = false;
  return weight;
}

int64_t packed_weight_bytes(const Packed& p, const Tile& t) {
  const PackedWeight weight = weight_of(p, t);
  if (weight.in_place) return 0;
  return round_up(weight.rows * weight.row * element_size(p.dtype), kAlignment);
}

ConvPlan best_plan(const ConvProblem& asked, const DeviceProperties& d,
                   std::vector<ConvPlan>* all) {
  return Search(asked, d, all).best();
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
  return tile.tiles_m * (kind.pixels / kind.columns(has_planes(tile.loader, tile.store)));
}

int shared_bytes(const Tile& t) {
  return fixed_bytes(t) + t.x_stages * t.x_bytes + t.w_stages * t.w_bytes + slots_bytes(t);
}

}  // namespace customconv::implicit_gemm::sm90
