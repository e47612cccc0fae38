// The walk from one image to the other, and how blocks share it.
#include "kernels/grouped/geometry.h"

#include <algorithm>
#include <numeric>

#include "plan/plan.h"

namespace customconv::grouped {

namespace {

// Slots are counted in 32 bits; what is larger fits no shared memory.
constexpr int64_t kTooMany = 1 << 20;

struct Steps {
  int64_t in, out, taps, stride, pad, dilation;
};

Axis forward_axis(const Steps& s) {
  Axis axis{};
  axis.in = static_cast<int>(s.in);
  axis.out = axis.positions = static_cast<int>(s.out);
  axis.phases = 1;
  axis.step = static_cast<int>(s.stride);
  axis.first = static_cast<int>(-s.pad);
  axis.last = static_cast<int>((s.taps - 1) * s.dilation - s.pad);
  axis.class_step = static_cast<int>(s.taps == 1 ? s.stride : std::gcd(s.stride, s.dilation));
  axis.classes = axis.step / axis.class_step;
  axis.taps[0] = {0, 1, static_cast<int>(s.taps), axis.first, static_cast<int>(s.dilation)};
  return axis;
}

// The input gradient: the pixel h of x is met by tap t of the pixel (h + pad - t dilation) / stride
// of y, where that is one.
Axis backward_axis(const Steps& s) {
  Axis axis{};
  axis.in = static_cast<int>(s.out);
  axis.out = static_cast<int>(s.in);
  axis.phases = static_cast<int>(s.stride);
  axis.positions = static_cast<int>(ceil_divide(s.in, s.stride));
  axis.step = axis.classes = axis.class_step = 1;
  const int64_t apart = s.stride / std::gcd(s.stride, s.dilation);
  bool any = false;
  for (int64_t phase = 0; phase < s.stride; ++phase) {
    Taps& taps = axis.taps[phase];
    int64_t first = 0;
    while (first < std::min(apart, s.taps) && (phase + s.pad - first * s.dilation) % s.stride != 0)
      ++first;
    taps.step = static_cast<int>(apart);
    if (first == std::min(apart, s.taps)) continue;
    taps.first = static_cast<int>(first);
    taps.count = static_cast<int>((s.taps - first + apart - 1) / apart);
    taps.offset = static_cast<int>((phase + s.pad - first * s.dilation) / s.stride);
    taps.offset_step = static_cast<int>(-apart * s.dilation / s.stride);
    const int end = taps.offset + (taps.count - 1) * taps.offset_step;
    axis.first = any ? std::min(axis.first, end) : end;
    axis.last = any ? std::max(axis.last, taps.offset) : taps.offset;
    any = true;
  }
  return axis;
}

// Pixels of a class that so many positions meet.
int64_t kept(const Axis& axis, int64_t positions) {
  return positions + (int64_t{axis.last} - axis.first) / axis.step;
}

int64_t round_up(int64_t value, int64_t unit) { return ceil_divide(value, unit) * unit; }

// The least size from `least` on that leaves this remainder of sixteen units.
int64_t with_remainder(int64_t least, int64_t remainder, int64_t unit) {
  return round_up(std::max<int64_t>(least - remainder, 0), unit) + remainder;
}

}  // namespace

bool has_phases(const ConvProblem& p) {
  return p.pass != Pass::kDgrad || std::max(p.stride_h, p.stride_w) <= kMostPhases;
}

Geometry geometry_of(const ConvProblem& p) {
  Geometry g{};
  const Steps h{p.H, p.P, p.R, p.stride_h, p.pad_h, p.dilation_h};
  const Steps w{p.W, p.Q, p.S, p.stride_w, p.pad_w, p.dilation_w};
  const bool backward = p.pass == Pass::kDgrad;
  g.N = p.N;
  g.groups = p.groups;
  g.C = backward ? p.group_K() : p.group_C();
  g.K = backward ? p.group_C() : p.group_K();
  g.kernel = p.R * p.S;
  g.h = backward ? backward_axis(h) : forward_axis(h);
  g.w = backward ? backward_axis(w) : forward_axis(w);
  g.in = backward ? p.y_strides : p.x_strides;
  g.out = backward ? p.x_strides : p.y_strides;
  g.weight_group = p.group_K() * p.w_strides[0];
  g.weight_k = p.w_strides[backward ? 1 : 0];
  g.weight_c = p.w_strides[backward ? 0 : 1];
  g.weight_r = p.w_strides[2];
  g.weight_s = p.w_strides[3];
  const int64_t piece = kPieceBytes / element_size(p.dtype);
  const auto boxed = [&](bool aligned, const Shape5& sizes, const Shape5& strides) {
    const auto legal = [&](int axis) {
      return sizes[axis] == 1 || (strides[axis] > 0 && strides[axis] % piece == 0);
    };
    return aligned && strides[1] == 1 && legal(0) && legal(2) && legal(3);
  };
  const bool x = boxed(p.x_aligned, p.x_sizes(), p.x_strides);
  const bool y = boxed(p.y_aligned, p.y_sizes(), p.y_strides);
  g.in_boxed = backward ? y : x;
  g.out_boxed = backward ? x : y;
  const auto planes = [&](bool aligned, const Shape5& sizes, const Shape5& strides) {
    const int64_t pixels = sizes[2] * sizes[3];
    const auto dense = [&](int axis, int64_t stride) {
      return sizes[axis] == 1 || strides[axis] == stride;
    };
    return aligned && pixels > 0 && pixels < kMostPlane && pixels % piece == 0 && dense(3, 1) &&
           dense(2, sizes[3]) && dense(1, pixels) &&
           (sizes[0] == 1 || (strides[0] > 0 && strides[0] % piece == 0));
  };
  const bool x_planes = planes(p.x_aligned, p.x_sizes(), p.x_strides);
  const bool y_planes = planes(p.y_aligned, p.y_sizes(), p.y_strides);
  g.in_planes = backward ? y_planes : x_planes;
  g.out_planes = backward ? x_planes : y_planes;
  return g;
}

Tile tile_of(const Geometry& g, int images, int rows, int columns) {
  Tile tile{};
  tile.images = images;
  tile.rows = rows;
  tile.columns = columns;
  const int64_t kept_rows = kept(g.h, rows), kept_columns = kept(g.w, columns);
  const int64_t pitch = kept_columns * g.w.classes, high = kept_rows * g.h.classes;
  // How far pixels of a tile are from its beginning.
  const int64_t far_h = kept_rows * g.h.step, far_w = kept_columns * g.w.step;
  const bool possible = std::max(far_h, far_w) < kTooMany && pitch * high * images < kTooMany;
  tile.kept_rows = static_cast<int>(possible ? kept_rows : kTooMany);
  tile.kept_columns = static_cast<int>(possible ? kept_columns : 1);
  tile.pitch = static_cast<int>(possible ? pitch : 1);
  tile.image_slots = static_cast<int>(possible ? pitch * high : kTooMany);
  tile.slots = static_cast<int>(possible ? pitch * high * images : kTooMany);
  return tile;
}

TileCounts tile_counts(const Geometry& g, const Tile& tile) {
  return {ceil_divide(g.N, tile.images), ceil_divide(g.h.positions, tile.rows),
          ceil_divide(g.w.positions, tile.columns)};
}

Work work_of(const Geometry& g, const SlotsPlan& v, const Tile& tile, int64_t element_size) {
  constexpr int64_t kMostUnits = 16, kMostGroupUnits = 8;  // of a block's pixel at a time
  constexpr int64_t kWeightBytes = 40 << 10;
  const Kernel& kernel = kKernels[v.kernel];
  const int64_t group_tiles = ceil_divide(g.K, kChannelTile);
  const int64_t most_warps = kMostThreads / 32 / v.pixel_warps;
  Work w{};
  w.tile = tile;
  const int64_t wanted_warps = ceil_divide(group_tiles, kernel.channels);
  w.parts = static_cast<int>(ceil_divide(wanted_warps, most_warps));
  w.channel_warps = static_cast<int>(ceil_divide(wanted_warps, w.parts));
  w.channel_tiles = w.channel_warps * kernel.channels;
  w.parts = static_cast<int>(ceil_divide(group_tiles, w.channel_tiles));
  const int64_t units = ceil_divide(g.C, kUnitBytes / element_size);
  const int64_t groups =
      w.parts > 1 ? 1 : std::min<int64_t>(g.groups, most_warps / w.channel_warps);
  // As many in every block, about.
  w.groups = static_cast<int>(ceil_divide(g.groups, ceil_divide(g.groups, groups)));
  const int64_t most_units =
      w.groups == 1 ? kMostGroupUnits : std::max<int64_t>(kMostUnits / w.groups / 2 * 2, 1);
  w.units = static_cast<int>(std::min(units, most_units));
  w.chunks = static_cast<int>(ceil_divide(units, w.units));
  w.slot_bytes = w.units % 2 == 0 ? 2 * kUnitBytes : kUnitBytes;
  w.threads = 32 * v.pixel_warps * w.channel_warps * w.groups;
  // A half warp's units, of four pixels and four planes or two, lie in banks of their own.
  const int64_t lines = 128 / w.slot_bytes;
  const int64_t remainder = w.units > 2 ? 4 : w.slot_bytes == 16 ? 1 : 2;
  w.plane = static_cast<int>(with_remainder(tile.slots, remainder, lines));
  int64_t most_steps = 1, all_steps = 0;
  for (int i = 0; i < g.h.phases; ++i) {
    for (int j = 0; j < g.w.phases; ++j) {
      const int64_t taps = int64_t{g.h.taps[i].count} * g.w.taps[j].count;
      const int64_t steps = ceil_divide(taps * w.units, kStepUnits);
      most_steps = std::max(most_steps, steps);
      all_steps += steps;
    }
  }
  w.table_steps = all_steps;
  w.packed_steps = all_steps * w.chunks;
  const int64_t step_bytes = int64_t{w.groups} * w.channel_tiles * kTileBytes;
  const int64_t kept = std::max<int64_t>(kWeightBytes / step_bytes, 1);
  w.resident = kernel.has_producers() && w.chunks == 1 && all_steps <= kept;
  const int64_t kept_steps =
      w.resident ? std::max<int64_t>(all_steps, 1) : std::min(most_steps, kept);
  w.steps = static_cast<int>(kept_steps);
  const int64_t pixels = v.pixels();
  const int64_t channels = std::min<int64_t>(g.K, w.channel_tiles * kChannelTile) * w.groups;
  w.staged_pitch = static_cast<int>(is_planar(g) ? with_remainder(pixels, 8, 32)
                                                 : with_remainder(channels, 4, 16));
  const int64_t sums_bytes = 4 * w.staged_pitch * (is_planar(g) ? channels : pixels);
  const int64_t list_at = kBarrierBytes + 16 * (tile.slots + pixels);
  const int64_t table_at = list_at + 8 * round_up(tile.slots, 2) + 4 * pixels;
  const int64_t input_at = table_at + kept_steps * kStepUnits * 4;
  const int64_t input_bytes = int64_t{w.groups} * w.units * w.plane * kUnitBytes;
  const int64_t weights_at = input_at + input_bytes * (w.resident ? 2 : 1);
  const int64_t end = weights_at + kept_steps * step_bytes;
  // The sums may lie where the input was, where that is brought again for the next tile only.
  const bool sums_over_input = !w.resident && g.h.phases * g.w.phases == 1;
  const int64_t sums_at = sums_over_input ? input_at : end;
  const int64_t bytes = std::max(end, sums_at + sums_bytes);
  w.slices = ceil_divide(g.groups, w.groups) * w.parts;
  w.tiles = tile_counts(g, tile);
  // Weights that come and go meet every pixel while they are there.
  const bool in_one = w.resident || v.passes == 1;
  w.fits = bytes <= kTooMany && tile.pixels() <= pixels && in_one;
  if (!w.fits) return w;
  w.list_at = static_cast<int>(list_at);
  w.table_at = static_cast<int>(table_at);
  w.input_at = static_cast<int>(input_at);
  w.input_bytes = static_cast<int>(input_bytes);
  w.weights_at = static_cast<int>(weights_at);
  w.sums_at = static_cast<int>(sums_at);
  w.bytes = static_cast<int>(bytes);
  return w;
}

Tile box_of(const Geometry& g, int images, int rows, int columns) {
  Tile tile{};
  tile.images = images;
  tile.rows = rows;
  tile.columns = columns;
  const int64_t far_h = int64_t{rows - 1} * g.h.step + g.h.last - g.h.first;
  const int64_t high = far_h / g.h.class_step + 1, wide = kept(g.w, columns);
  const bool possible =
      std::max({high * g.h.class_step, wide * g.w.step, int64_t{images}}) <= kMostBox &&
      std::max(g.h.class_step, g.w.step) <= kMostBoxStep;
  tile.kept_rows = static_cast<int>(possible ? high : kTooMany);
  tile.kept_columns = tile.pitch = static_cast<int>(possible ? wide : 1);
  tile.image_slots = static_cast<int>(possible ? high * wide : kTooMany);
  tile.slots = static_cast<int>(possible ? high * wide * images : kTooMany);
  tile.classes = g.w.classes;
  tile.class_slots = static_cast<int>(round_up(tile.slots, kBoxAlignment / kBoxRowBytes));
  return tile;
}

int box_vectors(const Geometry& g, const Tile& tile, int vector) {
  const int64_t rows = int64_t{tile.images} * tile.kept_rows;
  const int64_t across =
      vector == 1 ? int64_t{tile.kept_columns} * g.w.classes : tile.kept_columns * g.w.step / 2 + 1;
  return static_cast<int>(std::min<int64_t>(rows * across, INT32_MAX));
}
int position_vectors(const Tile& tile, int vector) {
  return tile.images * tile.rows * (vector == 1 ? tile.columns : tile.columns / 2 + 1);
}

namespace {

constexpr int kMostChannels = 256;  // that TMA brings at once

// Strips of so many rows of each of a tile's images, which are so wide, and so many columns.
// `apart`: rows are not neighbours, or the tile does not have all columns.
Strips strips_of(bool possible, int64_t channels, int64_t images, int64_t rows, int64_t width,
                 int64_t columns, bool apart, int64_t element_size) {
  const int64_t strip_pixels = kBoxRowBytes / element_size, piece = kPieceBytes / element_size;
  const bool whole = !apart && ceil_divide(rows * width, strip_pixels) <=
                                   rows * ceil_divide(columns, strip_pixels);
  const int64_t pixels = whole ? rows * width : columns;
  const int64_t brought = whole && width % piece == 0 ? pixels : pixels + piece - 1;
  Strips s{};
  if (!possible || channels > kMostChannels || pixels >= kTooMany || rows >= kTooMany) return s;
  s.whole = whole;
  s.runs = static_cast<int>(whole ? 1 : rows);
  s.pixels = static_cast<int>(pixels);
  s.count = static_cast<int>(ceil_divide(brought, strip_pixels));
  s.channels = static_cast<int>(channels);
  s.strip_bytes = s.channels * kBoxRowBytes;
  const int64_t lines = images * s.runs;
  s.parts = static_cast<int>(lines * ceil_divide(brought, kPartPixels));
  const int64_t bytes = round_up(lines * s.count * s.strip_bytes, kBoxAlignment);
  s.bytes = static_cast<int>(std::min<int64_t>(bytes, INT32_MAX));
  s.row_list_bytes = static_cast<int>(4 * (s.count * strip_pixels + kStripSlack));
  s.list_bytes = s.row_list_bytes + 16 * s.parts;
  return s;
}
Strips strips_of_box(const Geometry& g, const Tile& tile, int64_t channels, int64_t element_size) {
  const int64_t columns =
      int64_t{tile.kept_columns - 1} * g.w.step + int64_t{g.w.classes - 1} * g.w.class_step + 1;
  return strips_of(g.in_planes, channels, tile.images, tile.kept_rows, g.w.in, columns,
                   tile.columns < g.w.positions || g.h.class_step > 1, element_size);
}
Strips strips_of_positions(const Geometry& g, const Tile& tile, int64_t channels,
                           int64_t element_size) {
  return strips_of(g.out_planes, channels, tile.images, tile.rows, g.w.out, tile.columns,
                   tile.columns < g.w.positions, element_size);
}

}  // namespace

LaunchShape shape_of(const Work& w, const SlotsPlan& v) {
  return {w.slices * v.tile_blocks, w.threads + (w.resident ? kProducers : 0), w.bytes,
          packed_bytes(w)};
}

BoxWork box_work_of(const Geometry& g, const BoxesPlan& v, const Tile& tile, int64_t element_size) {
  constexpr int64_t kBarriers = 2 * kMostStages;
  const BoxKernel& kernel = kBoxKernels[v.kernel];
  const int64_t piece = kPieceBytes / element_size;
  BoxWork w{};
  w.tile = tile;
  int64_t pack = piece / std::gcd(g.C, piece);
  while (pack * g.K < kBoxChannelTile && pack * 2 <= g.groups) pack *= 2;
  w.pack = static_cast<int>(pack);
  if (pack * std::max(g.C, g.K) > INT16_MAX) return w;
  w.C = static_cast<int>(pack * g.C);
  w.K = static_cast<int>(pack * g.K);
  w.pieces = static_cast<int>(w.C / piece);
  w.all_sets = static_cast<int>(ceil_divide(g.groups, pack));
  const int64_t most_warps = kMostThreads / 32 / v.pixel_warps;
  const int64_t wanted = ceil_divide(w.K, kernel.channels * kBoxChannelTile);
  w.parts = static_cast<int>(ceil_divide(wanted, most_warps));
  w.column_warps = static_cast<int>(ceil_divide(wanted, w.parts));
  w.parts = static_cast<int>(ceil_divide(wanted, w.column_warps));
  const int64_t sets = w.parts > 1 ? 1 : std::min<int64_t>(w.all_sets, most_warps / w.column_warps);
  // As many in every block, about.
  w.sets = static_cast<int>(ceil_divide(w.all_sets, ceil_divide(w.all_sets, sets)));
  w.warps = w.sets * w.column_warps * v.pixel_warps;
  w.boxes = static_cast<int>(ceil_divide(int64_t{w.sets} * w.pieces * kPieceBytes, kBoxRowBytes));
  int64_t steps = 0;
  for (int i = 0; i < g.h.phases; ++i) {
    for (int j = 0; j < g.w.phases; ++j) {
      steps += ceil_divide(int64_t{g.h.taps[i].count} * g.w.taps[j].count * w.pieces, 2);
    }
  }
  // A block's channels in boxes of equal size. All of its instructions' columns are channels of its
  // own, or there are none behind them.
  const int64_t warp_channels = kernel.channels * kBoxChannelTile;
  const bool own_channels = w.parts == 1 || w.K % (w.column_warps * warp_channels) == 0;
  w.stored =
      static_cast<int>(w.parts == 1 ? int64_t{w.sets} * w.K : w.column_warps * warp_channels);
  const int64_t row_bytes = w.stored * element_size;
  w.loading = v.loading;
  if (w.loading == Loading::kStrips) {
    const int64_t channels = int64_t{w.sets} * w.C;
    w.strips = strips_of_box(g, tile, channels, element_size);
    if (w.strips.runs == 0) return w;
  }
  w.threads = (w.loading == Loading::kThreads ? kMostThreads : w.warps * 32) +
              box_loaders(w.loading, element_size);
  if (g.out_boxed && own_channels && w.K * element_size % kPieceBytes == 0 &&
      g.h.phases * g.w.phases <= kMostBoxPhases) {
    w.out_boxes = static_cast<int>(ceil_divide(row_bytes, kBoxRowBytes));
    while (row_bytes % (w.out_boxes * kPieceBytes) != 0) ++w.out_boxes;
    w.out_row_bytes = static_cast<int>(row_bytes / w.out_boxes);
    w.out_box_bytes =
        static_cast<int>(round_up(int64_t{tile.pixels()} * w.out_row_bytes, kBoxAlignment));
  }
  // Planes so far apart that a matrix's rows lie in banks of their own.
  if (is_planar(g)) w.out_pitch = static_cast<int>(v.pixels() * element_size + kPieceBytes);
  const int64_t staging_bytes = w.out_pitch > 0
                                    ? round_up(int64_t{w.stored} * w.out_pitch, kPieceBytes)
                                    : int64_t{kStagings} * w.out_boxes * w.out_box_bytes;
  const int64_t weight_bytes =
      round_up(w.sets * w.column_warps * kernel.weight_bytes(steps), kBoxAlignment);
  const int64_t box_bytes = int64_t{tile.classes} * tile.class_slots * kBoxRowBytes;
  const bool strips = w.loading == Loading::kStrips;
  const int64_t stage_bytes = strips ? w.strips.bytes : w.boxes * box_bytes;
  const int64_t table_bytes = w.sets * steps * 2 * 4;
  const int64_t list_bytes = strips ? kNowhereBytes + w.strips.list_bytes
                             : w.loading == Loading::kThreads
                                 ? int64_t{box_vectors(g, tile, 1)} * 16
                                 : 0;
  const int64_t barrier_bytes = round_up(8 * kBarriers, 16);
  const int64_t rest = (strips ? w.boxes * box_bytes : 0) + weight_bytes + staging_bytes +
                       v.pixels() * 16 + round_up(table_bytes, 16) + barrier_bytes + list_bytes;
  w.fits = rest + v.stages * stage_bytes <= kTooMany && tile.pixels() <= v.pixels();
  if (!w.fits) return w;
  w.steps = static_cast<int>(steps);
  w.box_bytes = static_cast<int>(box_bytes);
  w.weight_bytes = static_cast<int>(kernel.weight_bytes(steps));
  w.stages = v.stages;
  w.slices = ceil_divide(w.all_sets, w.sets) * w.parts;
  w.tiles = tile_counts(g, tile);
  w.boxes_at = static_cast<int>(v.stages * stage_bytes);
  w.weights_at = static_cast<int>(w.boxes_at + (strips ? w.boxes * box_bytes : 0));
  w.staging_at = static_cast<int>(w.weights_at + weight_bytes);
  w.spots_at = static_cast<int>(w.staging_at + staging_bytes);
  w.table_at = static_cast<int>(w.spots_at + v.pixels() * 16);
  w.barriers_at = static_cast<int>(w.table_at + round_up(table_bytes, 16));
  w.list_at = static_cast<int>(w.barriers_at + barrier_bytes);
  w.bytes = static_cast<int>(w.list_at + list_bytes);
  return w;
}

int64_t weight_bytes(const Work& w) {
  return w.slices * w.packed_steps * w.groups * w.channel_tiles * kTileBytes;
}
int64_t packed_bytes(const Work& w) { return weight_bytes(w) + w.table_steps * kStepUnits * 4; }

LaunchShape shape_of(const BoxWork& w, const BoxesPlan& v) {
  return {w.slices * v.tile_blocks, w.threads, w.bytes, 0};
}

namespace {

// `most_octets`: of a set, in a block.
GradientCut cut_gradient(const Geometry& g, const GradientKernel& kernel, int pixel_warps,
                         const Tile& tile, int64_t pack, int64_t most_octets) {
  constexpr int64_t kMostColumnWarps = 2;
  const int64_t most_warps = kMostThreads / 32 / pixel_warps;
  GradientCut w{};
  w.pack = static_cast<int>(pack);
  w.C = static_cast<int>(pack * g.C);
  w.K = static_cast<int>(pack * g.K);
  const int64_t sets = ceil_divide(g.groups, pack);
  w.all_sets = static_cast<int>(sets);
  const int64_t octets = ceil_divide(w.C, kOctet), columns = ceil_divide(w.K, kOctet);
  w.column_warps = static_cast<int>(
      std::min({ceil_divide(columns, kernel.channels), kMostColumnWarps, most_warps}));
  w.columns = w.column_warps * kernel.channels;
  w.column_parts = static_cast<int>(ceil_divide(columns, w.columns));
  const int64_t most_rows = 2 * kernel.pairs * (most_warps / w.column_warps);
  w.octets = static_cast<int>(std::min({octets, most_octets, most_rows}));
  w.octet_parts = static_cast<int>(ceil_divide(octets, w.octets));
  w.tap_parts = static_cast<int>(ceil_divide(g.kernel, most_rows / w.octets));
  w.taps = static_cast<int>(ceil_divide(g.kernel, w.tap_parts));
  const int64_t pairs = ceil_divide(w.taps * w.octets, 2);
  w.pair_warps = static_cast<int>(ceil_divide(pairs, kernel.pairs));
  const int64_t most_sets = std::min(sets, most_warps / (w.column_warps * w.pair_warps));
  w.sets = static_cast<int>(ceil_divide(sets, ceil_divide(sets, most_sets)));
  w.threads = 32 * pixel_warps * w.column_warps * w.pair_warps * w.sets;
  w.slices = ceil_divide(sets, w.sets) * w.octet_parts * w.column_parts * w.tap_parts;
  w.tiles = tile_counts(g, tile);
  return w;
}

}  // namespace

GradientWork gradient_work_of(const Geometry& g, const SlotGradientsPlan& v, const Tile& tile,
                              int64_t element_size) {
  int64_t pack = std::max<int64_t>(kOctet / std::max(g.C, g.K), 1);
  while (g.groups % pack != 0) --pack;
  GradientWork w{};
  w.cut = cut_gradient(g, v.own_kernel(), v.pixel_warps, tile, pack, 4);
  w.tile = tile;
  // Four pixels of each of an octet's planes of units lie in banks of their own.
  const int64_t units = kOctet * element_size / 16, remainder = units == 2 ? 4 : 1;
  const int64_t pixels = round_up(tile.pixels(), kStepPixels);
  w.plane = static_cast<int>(with_remainder(tile.slots + 1, remainder, 8));  // and a slot of zeros
  w.out_plane = static_cast<int>(with_remainder(pixels, remainder, 8));
  const int64_t lists = (16 + 8) * round_up(tile.slots, 2) + (16 + 8 + 2 * 4) * pixels;
  const int64_t input = int64_t{w.cut.sets} * w.cut.octets * units * w.plane * 16;
  const int64_t output = int64_t{w.cut.sets} * w.cut.columns * units * w.out_plane * 16;
  w.rows = static_cast<int>(round_up(2 * v.own_kernel().pairs * w.cut.pair_warps, 4));
  const int64_t bytes = lists + 4 * w.rows + input + output;
  w.fits = bytes <= kTooMany && w.cut.sets * w.cut.octets * units <= w.cut.threads &&
           w.cut.sets * w.cut.columns * units <= w.cut.threads;
  if (!w.fits) return w;
  w.bytes = static_cast<int>(bytes);
  return w;
}

LaunchShape shape_of(const ConvProblem& p, const GradientWork& w, const SlotGradientsPlan& v,
                     int64_t splits) {
  return {w.cut.slices * (splits / v.pixel_warps), w.cut.threads, w.bytes,
          splits * p.w_count() * 4};
}

GradientBoxWork gradient_box_work_of(const Geometry& g, const BoxGradientsPlan& v,
                                     const Tile& tile) {
  const GradientKernel& kernel = v.own_kernel();
  GradientBoxWork w{};
  const int64_t pack =
      std::max(kOctet / std::gcd(g.C, int64_t{kOctet}), kOctet / std::gcd(g.K, int64_t{kOctet}));
  if (pack * std::max(g.C, g.K) > INT16_MAX) return w;
  w.cut = cut_gradient(g, kernel, v.pixel_warps, tile, pack, 8);
  w.tile = tile;
  const GradientCut& cut = w.cut;
  w.loading = v.loading;
  const int64_t channel_bytes = int64_t{cut.sets} * std::max(cut.octets, cut.columns) * kPieceBytes;
  w.row_bytes = w.loading == Loading::kBoxes && channel_bytes <= kBoxRowBytes / 2 ? kBoxRowBytes / 2
                                                                                  : kBoxRowBytes;
  const auto boxes = [&](int octets) {
    return static_cast<int>(ceil_divide(int64_t{cut.sets} * octets * kPieceBytes, w.row_bytes));
  };
  w.boxes = boxes(cut.octets);
  w.out_boxes = boxes(cut.columns);
  // Where a block has a part of a set's channels, it has one set: boxes know no gaps.
  const bool gaps = cut.sets > 1 &&
                    (cut.octet_parts > 1 || cut.column_parts > 1 || cut.columns * kOctet != cut.K);
  const int64_t pixels = round_up(tile.pixels(), kStepPixels);
  const int64_t box_bytes = int64_t{tile.classes} * tile.class_slots * w.row_bytes;
  const int64_t out_box_bytes = round_up(pixels * w.row_bytes, kBoxAlignment);
  const int64_t all_box_bytes = w.boxes * box_bytes + w.out_boxes * out_box_bytes;
  const bool strips = w.loading == Loading::kStrips, threads = w.loading == Loading::kThreads;
  if (strips) {
    w.strips = strips_of_box(g, tile, int64_t{cut.sets} * cut.octets * kOctet, 2);
    w.out_strips = strips_of_positions(g, tile, int64_t{cut.sets} * cut.columns * kOctet, 2);
    if (w.strips.runs == 0 || w.out_strips.runs == 0) return w;
  }
  w.threads = (threads ? kMostThreads : cut.threads) + box_loaders(w.loading, 2);
  const int64_t rows = 2 * kernel.pairs * cut.pair_warps;  // of a set
  const int64_t table_bytes = round_up(4 * rows * cut.sets, 16);
  const int64_t place_bytes = (rows + cut.columns) * kOctet * kSumPlaceBytes;
  const int64_t barrier_bytes = round_up(8 * (2 * kMostStages + 1), 16);  // and of the places
  const int64_t in_list_bytes = strips    ? kNowhereBytes + w.strips.list_bytes
                                : threads ? int64_t{box_vectors(g, tile, 1)} * 16
                                          : 0;
  const int64_t list_bytes = in_list_bytes + (strips    ? w.out_strips.list_bytes
                                              : threads ? pixels * 16
                                                        : 0);
  const int64_t rest =
      kBoxRowBytes + pixels * (16 + 4) + table_bytes + place_bytes + barrier_bytes + list_bytes;
  const int64_t sums = int64_t{cut.threads} * kernel.pairs * kernel.channels;
  const int64_t sums_bytes = sums * 4 * 4;
  w.part = cut.slices * sums / v.pixel_warps;
  const int64_t stage_bytes = strips ? int64_t{w.strips.bytes} + w.out_strips.bytes : all_box_bytes;
  const int64_t fixed = strips ? all_box_bytes : 0;
  const int64_t boxes_at = v.stages * stage_bytes;
  const int64_t front = std::max(boxes_at + fixed, sums_bytes);
  w.fits = !gaps && front + rest <= kTooMany;
  if (!w.fits) return w;
  w.box_bytes = static_cast<int>(box_bytes);
  w.out_box_bytes = static_cast<int>(out_box_bytes);
  w.stages = v.stages;
  w.boxes_at = static_cast<int>(boxes_at);
  w.zeros_at = static_cast<int>(front);
  w.positions_at = w.zeros_at + kBoxRowBytes;  // of the tile's pixels: their spots, and rows
  w.table_at = static_cast<int>(w.positions_at + pixels * (16 + 4));
  w.places_at = static_cast<int>(w.table_at + table_bytes);
  w.barriers_at = static_cast<int>(w.places_at + place_bytes);
  w.list_at = static_cast<int>(w.barriers_at + barrier_bytes);
  w.out_list_at = static_cast<int>(w.list_at + in_list_bytes);
  w.bytes = static_cast<int>(w.list_at + list_bytes);
  return w;
}

LaunchShape shape_of(const GradientBoxWork& w, const BoxGradientsPlan& v, int64_t splits) {
  const int64_t parts = splits / v.cluster;
  return {w.cut.slices * splits, w.threads, w.bytes, parts > 1 ? parts * w.part * 16 : 0};
}

}  // namespace customconv::grouped
