#include "kernels/implicit_gemm/sm90/tile.h"

#include <algorithm>

#include "kernels/implicit_gemm/sm90/payload.h"

namespace customconv::implicit_gemm::sm90 {

namespace {

constexpr int kMostCopyRows = 256;       // of a copy
constexpr int kMostCopies = 16;          // of a stage
constexpr int kMostStripCopies = 64;     // of a stage
constexpr int kMostBox = 256;            // pixels of a copied row
constexpr int kCopyBytes = 128;          // what aligns a copy in shared memory
constexpr int kSlotAlignment = 1024;     // of what boxes come into
constexpr int kMostPlaneRows = 1 << 12;  // of a stage
constexpr int kMostFilter = 31;      // rows or columns of taps that are gathered: bits of a mask
constexpr int kMostTerms = 1 << 10;  // that are gathered
constexpr int kLeastStages = 3;      // of weights
constexpr int kLeastHaloStages = 2;  // of pixels,
constexpr int kMostHaloStages = 4;   // and at most
constexpr int kLeastPlaneSlots = 2;  // of a warp: one is transposed, one arrives
constexpr int kUnit = 8;             // rows of a swizzle,
constexpr int kSwizzleBytes = 1024;  // and its bytes at most

// What a copy in im2col mode can reach along an axis: offsets of its pixels, and corners of its box
// from the image's. Volumes leave fewer bits to each axis.
struct Reach {
  int64_t offset, corner;
};
constexpr Reach kImageReach{255, 127}, kVolumeReach{31, 15};

bool is_corner(int64_t value, const Reach& reach) {
  return value >= -reach.corner - 1 && value <= reach.corner;
}

// Whether such copies traverse an axis.
bool is_in_reach(const Reach& reach, int64_t pixels, int64_t outputs, int64_t taps, int64_t stride,
                 int64_t pad, int64_t dilation) {
  return (taps - 1) * dilation <= reach.offset && stride <= kMostStride && is_corner(-pad, reach) &&
         is_corner(upper_corner(pixels, outputs, stride, pad), reach);
}

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
// Channels of a stage that begin at the same byte of 16 are transposed together, 16 bytes at a
// time.
int most_residue_bits(const Forward& p, const Tile& t) {
  if (t.row_bytes < kMostRowBytes || t.kind().halves) return 0;
  return element_size(p.dtype) == 2 ? 3 : 2;
}

// Whether the grid is one that copies can traverse, with all taps in reach.
bool is_grid(const Packed& p, const Tile& t) {
  if (p.is_deep() && t.loader != Loader::kIm2col) return false;
  if (t.image() * (p.N + 2) > INT32_MAX / 2) return false;
  if (t.loader == Loader::kGather) {
    const ConvProblem& x = p.source;
    const auto reach = [](int64_t size, int64_t stride) { return (size - 1) * std::abs(stride); };
    return gathers_to(t.store) && x.R <= kMostFilter && x.S <= kMostFilter && p.C <= kMostTerms &&
           reach(x.C, x.x_strides[1]) + reach(x.H, x.x_strides[2]) + reach(x.W, x.x_strides[3]) +
                   (x.R + x.pad_h) * std::abs(x.x_strides[2]) * x.dilation_h +
                   (x.S + x.pad_w) * std::abs(x.x_strides[3]) * x.dilation_w <=
               INT32_MAX / element_size(p.dtype);
  }
  if (t.loader == Loader::kIm2col) {
    const Reach& reach = p.is_deep() ? kVolumeReach : kImageReach;
    return is_in_reach(reach, p.H, p.P, p.R, p.stride_h, p.pad_h, p.dilation_h) &&
           is_in_reach(reach, p.W, p.Q, p.S, p.stride_w, p.pad_w, p.dilation_w) &&
           is_in_reach(reach, p.D, p.O, p.T, p.stride_d, p.pad_d, p.dilation_d);
  }
  if (p.stride_h > 1 || p.stride_w > 1 || p.P > t.period || t.halo > t.image()) return false;
  if (t.strips == 1 && p.Q > t.pitch) return false;
  if (t.loader == Loader::kPlanes) {
    if (!has_planes(t.loader, t.store, t.kind())) return false;
    if (t.residue_bits > most_residue_bits(p, t)) return false;
    if (p.C < int64_t{1} << t.residue_bits) return false;
    if (t.strips == 1) return true;
    // What lies outside the image is on one side of a strip. The last that begins in front of it
    // goes furthest.
    const int64_t before = std::max<int64_t>(p.pad_w - 1, 0) / t.strip_columns;
    const int64_t last = std::min(before, t.strips - 1) * t.strip_columns;
    return last - p.pad_w + t.pitch <= p.W;
  }
  if (t.copies_strips) return t.copy_rows <= kMostBox && t.copies <= kMostStripCopies;
  return p.R * p.S > 1 && is_corner(t.pitch - p.W, kImageReach) &&
         is_corner(t.period - p.H, kImageReach);
}

// Whether positions are the output's pixels, one after the other in memory.
bool stores_rows(const Forward& p, const Tile& t) {
  const int64_t size = element_size(p.dtype), slab = 128 / size;  // channels
  const int64_t pixel = pixel_stride(p);
  return is_one_tap(t.loader) && !p.has_phases() && p.y_aligned &&
         (p.K == 1 || p.y_strides[1] == 1) && pixel * size % 16 == 0 &&
         pixels_follow(p.y_sizes(), p.y_strides, pixel) &&
         (p.groups == 1 || p.group_K() % slab == 0);
}

// Whether rows of positions may be rounded up to a multiple of `unit`.
bool is_little_longer(int64_t pitch, int64_t unit) {
  constexpr double kLonger = 1.04;
  return static_cast<double>(round_up(pitch, unit)) <= kLonger * static_cast<double>(pitch);
}

// Output channels that a copy of weights brings. TMA takes four times as long for rows
// outside the tensor as for others, so a group's last tile has fewer copies.
int copy_channels(const Packed& p, const Tile& t) {
  constexpr int kMostCopies = 4, kUnit = 8;
  const int channels = t.kind().channels;
  if (t.weights_as_stored) return kSlabChannels;
  const int64_t rest = p.group_K() % channels;
  // What is not copied may not be a number, and such sums of halves would be formed again.
  if (rest == 0 || t.kind().halves) return channels;
  if (p.group_K() < channels) return static_cast<int>(round_up(rest, kUnit));
  int best = channels;
  for (int own = channels / 2; own >= channels / kMostCopies; own /= 2) {
    if (round_up(rest, own) < round_up(rest, best)) best = own;
  }
  return best;
}

// Whether all tiles of a thread block multiply the same weights, of few enough steps: stages of
// weights have barriers, but for those that come with a tap's pixels. There are none where no tap
// meets the only phase.
bool may_keep_weights(const Tile& t) {
  return t.tiles_k == 1 && t.phases == 1 && t.splits == 1 && !t.stream_k && t.w_steps > 0 &&
         (is_one_tap(t.loader) || t.w_steps <= kMostStages);
}

}  // namespace

int64_t copied_channels(const Packed& p, const Tile& t) {
  const int channels = t.kind().channels;
  const int64_t whole = p.group_K() / channels, rest = p.group_K() % channels;
  return p.groups * (whole * channels + round_up(rest, t.w_copy_channels));
}

Tile make_tile(const Packed& p, const MainLoopPlan& plan, int64_t splits) {
  const int64_t size = element_size(p.dtype), strips = plan.strips;
  const Loader loader = plan.loader;
  const int row_bytes = plan.row;
  Tile t{};
  t.loader = loader;
  t.shape = plan.tile;
  t.row_bytes = row_bytes;
  t.splits = plan.stream_k ? 1 : static_cast<int>(splits);
  t.stream_k = plan.stream_k;
  t.x_stages = plan.stages[0];
  t.w_stages = plan.stages[1];
  t.plane_slots = plan.slots;
  const TileShape& kind = t.kind();
  t.residue_bits = loader == Loader::kPlanes ? residue_bits(p) : 0;
  t.halves_pixels = p.half_bits > 0 && p.packing == Packing::kNone && loader != Loader::kPlanes;
  // Kernels that read weights so have no epilogue.
  t.weights_as_stored = p.gradient && size == 2 && t.residue_bits == 0 && p.tap_channels == 0 &&
                        !p.has_bias && p.epilogue_passes == 0 && !kind.has_pixel_rows();
  t.pitch = p.Q;
  t.period = p.rows();
  t.strips = 1;
  const int64_t box_unit = 16 / size;  // what aligns a box
  if (!is_one_tap(loader)) {
    t.pitch = p.W + shared_pad(p.W, p.Q, p.S, p.pad_w, p.dilation_w);
    t.period = p.H + shared_pad(p.H, p.P, p.R, p.pad_h, p.dilation_h);
    // An even pitch lets pairs of pixels be stored at once.
    const int64_t unit = stores_planes(p) && p.Q % 2 == 0 ? 2 : 1;
    if (is_little_longer(t.pitch, unit)) t.pitch = round_up(t.pitch, unit);
    t.copies_strips = loader == Loader::kHalo && strips > 1;
    t.boxed = t.copies_strips && ceil_divide(p.Q, strips) <= kGroupPositions;
    if (strips > 1) {
      const int64_t columns = t.boxed ? kGroupPositions : t.copies_strips ? 2 : box_unit;
      t.strip_columns = round_up(ceil_divide(p.Q, strips), columns);
      t.strips = ceil_divide(p.Q, t.strip_columns);
      t.strip_columns = round_up(ceil_divide(p.Q, t.strips), columns);
      t.pitch = round_up(
          t.strip_columns + (p.S - 1) * p.dilation_w,
          t.copies_strips ? std::max<int64_t>(unit, kCopyBytes / t.pixel_row_bytes()) : unit);
    }
    t.stage_pitch = t.pitch;
    if (t.boxed) t.pitch = kGroupPositions;
    t.halo = p.pad_h * t.pitch + (strips > 1 ? 0 : p.pad_w);
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
    // But for boxes, a tile may begin anywhere in a row.
    t.copy_rows = static_cast<int>(t.stage_pitch);
    t.copies = static_cast<int>(t.boxed ? kind.pixels / t.pitch + (p.R - 1) * p.dilation_h
                                        : ceil_divide(rows + t.pitch - 1, t.pitch));
  } else {
    t.copies = static_cast<int>(std::min<int64_t>(ceil_divide(rows, kMostCopyRows), kMostCopies));
    t.copy_rows = static_cast<int>(
        std::min<int64_t>(round_up(ceil_divide(rows, t.copies), kUnit), kMostCopyRows));
  }
  t.copy_positions = t.copies_strips ? static_cast<int>(t.pitch) : t.copy_rows;
  t.x_bytes = static_cast<int>(round_up(t.copies * t.copy_rows, kUnit)) * t.pixel_row_bytes();
  if (t.halves_pixels) t.x_bytes = 2 * static_cast<int>(round_up(t.x_bytes, kSwizzleBytes));
  t.w_bytes = kind.channels * row_bytes;
  t.w_copy_channels = copy_channels(p, t);
  t.chunks = static_cast<int>(ceil_divide(p.group_C() * size, row_bytes));
  t.padded_terms = t.chunks * t.row_bytes / static_cast<int>(size);
  t.tiles_m = ceil_divide(p.N * t.image(), kind.pixels);
  t.tiles_k = p.groups * ceil_divide(p.group_K(), kind.channels);
  t.phases = p.phases;
  t.w_steps = t.chunks * p.phase[0].R * p.phase[0].S;
  // Then each step has a stage (choose_stages).
  t.keeps_weights = may_keep_weights(t) && t.w_stages == t.w_steps;
  if (t.splits > 1) {
    t.store = Store::kCluster;
  } else if (stores_planes(p)) {
    t.store = Store::kPlanes;
  } else {
    t.store = !kind.has_pixel_rows() && stores_rows(p, t) ? Store::kRows : Store::kPixels;
  }
  return t;
}

namespace {

// Bytes of shared memory that are not stages.
int fixed_bytes(const Tile& t) {
  return kBarrierBytes + t.kind().multipliers() * staging_bytes(t.store);
}

// A slot of each warp that transposes planes, and all of them.
int slot_bytes(const Tile& t) {
  return t.kind().plane_warps() * kBoxPixels * t.row_bytes / (t.kind().halves ? 2 : 1);
}
int slots_bytes(const Tile& t) {
  if (t.loader == Loader::kGather) return t.padded_terms * kTermBytes;
  return t.loader == Loader::kPlanes ? kDumpsBytes + t.plane_slots * slot_bytes(t) : 0;
}

// Shares out memory where weights have `least` stages, or more.
bool share_out(int shared_bytes, int least, Tile& t) {
  int bytes = shared_bytes - fixed_bytes(t);
  if (t.loader == Loader::kPlanes) {
    // Stages go first: warps that transpose planes wait for them sooner than for slots.
    bytes -= kDumpsBytes + least * t.w_bytes;
    const int rest = bytes - kLeastPlaneSlots * slot_bytes(t);
    const int stages = std::min(rest / t.x_bytes, kMostHaloStages);
    if (stages < kLeastHaloStages) return false;
    t.plane_slots = std::min((bytes - stages * t.x_bytes) / slot_bytes(t), kMostPlaneSlots);
    bytes += least * t.w_bytes - t.plane_slots * slot_bytes(t);
  }
  if (t.loader == Loader::kGather) bytes -= slots_bytes(t);
  const int rest = bytes - least * t.w_bytes;
  if (is_one_tap(t.loader) && !t.keeps_weights) {
    t.x_stages = t.w_stages = std::min(bytes / (t.x_bytes + t.w_bytes), kMostStages);
    return t.x_stages >= kLeastStages;
  }
  const bool one_tap = is_one_tap(t.loader);  // a stage
  t.x_stages = std::min(rest / t.x_bytes, one_tap ? kMostStages : kMostHaloStages);
  if (t.x_stages < (one_tap ? kLeastStages : kLeastHaloStages)) return false;
  t.w_stages = least;
  if (!t.keeps_weights) {
    t.w_stages = std::min((bytes - t.x_stages * t.x_bytes) / t.w_bytes, kMostStages);
  }
  return true;
}

}  // namespace

bool choose_stages(int shared_bytes, Tile& t) {
  t.keeps_weights = false;
  const bool fits = share_out(shared_bytes, kLeastStages, t);
  Tile kept = t;
  kept.keeps_weights = may_keep_weights(t);
  if (kept.keeps_weights && share_out(shared_bytes, t.w_steps, kept)) {
    // Stages of a single tap are short, and transposing planes takes long: pixels need as many
    // stages and slots as they can have.
    const bool takes_room = kept.x_stages < t.x_stages || kept.plane_slots < t.plane_slots;
    if (!fits || !takes_room || t.loader == Loader::kHalo) {
      t = kept;
      return true;
    }
  }
  const int stages = t.x_stages * t.x_bytes + t.w_stages * t.w_bytes;
  return fits && (t.splits == 1 || stages >= t.kind().pixels * t.kind().channels * 4);
}

int64_t upper_corner(int64_t pixels, int64_t outputs, int64_t stride, int64_t pad) {
  return (outputs - 1) * stride - pad - (pixels - 1);
}

bool leaves_out_slices(const Packed& p, const Tile& t) {
  // Weights that stay are those of all taps. Where an image must get the same bits anywhere in a
  // batch, its sums must not be promoted (../promotion.cuh) after other steps.
  return p.is_deep() && !t.keeps_weights && !p.batch_invariant &&
         (p.pad_d > 0 ||
          upper_corner(p.D, p.O, p.stride_d, p.pad_d) + (p.T - 1) * p.dilation_d > 0);
}

double met_slices(const Packed& p) {
  int64_t met = 0;
  for (int64_t t = 0; t < p.T; ++t) {
    const int64_t offset = t * p.dilation_d - p.pad_d;
    // Slices o of the output with 0 <= o * stride + offset < D.
    const int64_t first = offset >= 0 ? 0 : ceil_divide(-offset, p.stride_d);
    const int64_t end = offset >= p.D ? 0 : std::min(p.O, (p.D - 1 - offset) / p.stride_d + 1);
    met += std::max<int64_t>(end - first, 0);
  }
  return static_cast<double>(met) / static_cast<double>(p.T * p.O);
}

bool stores_planes(const Forward& p) { return p.K > 1 && p.y_strides[1] != 1; }

bool pixels_follow(const Shape5& sizes, const Shape5& strides, int64_t pixel) {
  for (const size_t i : {3, 2, 4, 0}) {
    if (sizes[i] > 1 && strides[i] != pixel) return false;
    pixel *= sizes[i];
  }
  return true;
}

bool is_legal(const Packed& p, const Tile& t) {
  const int64_t size = element_size(p.dtype);
  if (t.kind().halves != (p.half_bits > 0)) return false;
  // A row has a run of each half.
  if (p.half_bits > 0 && t.row_bytes != 2 * size << p.half_bits) return false;
  const bool padded = p.half_bits > 0 && p.channels % (int64_t{1} << p.half_bits) != 0;
  if (p.groups > 1 && padded && p.packing != Packing::kImages) return false;
  if (!is_grid(p, t)) return false;
  if (!t.boxed && t.copies * t.copy_rows < t.kind().pixels + t.span) return false;
  if (p.groups > 1 && p.group_C() * size % t.row_bytes != 0) return false;
  if (t.items() * t.splits > INT32_MAX / 2) return false;
  if (t.stream_k && (!may_share_tiles(t.loader) || t.phases > 1 || t.w_steps == 0 ||
                     t.items() * t.chunks > INT32_MAX / 2)) {
    return false;
  }
  if (t.splits == 1) return has_tile(t.loader, t.kind());
  // A tile of volumes may be left with a single slice of taps.
  const int64_t taps = p.is_deep() ? p.R * p.S : p.phase[0].R * p.phase[0].S;
  const int64_t steps = t.chunks * (is_one_tap(t.loader) ? taps : 1);
  return has_clusters(t.loader, t.kind()) && t.splits <= steps;
}

int64_t pixel_stride(const Forward& p) {
  if (p.Q > 1) return p.y_strides[3];
  if (p.P > 1) return p.y_strides[2];
  if (p.O > 1) return p.y_strides[4];
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

int64_t partial_bytes(const Tile& t, int64_t blocks) {
  if (!t.stream_k) return 0;
  const TileShape& kind = t.kind();
  const auto own = static_cast<int64_t>(kind.pixels * kind.channels * sizeof(float));
  return blocks * own + round_up(blocks * kind.warpgroups * 8, kAlignment);
}

int shared_bytes(const Tile& t) {
  return fixed_bytes(t) + t.x_stages * t.x_bytes + t.w_stages * t.w_bytes + slots_bytes(t);
}

}  // namespace customconv::implicit_gemm::sm90
