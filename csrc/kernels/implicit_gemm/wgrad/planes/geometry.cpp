#include "kernels/implicit_gemm/wgrad/planes/geometry.h"

#include <algorithm>
#include <numeric>

#include "plan/plan.h"

namespace customconv::implicit_gemm::wgrad::planes {

namespace {

constexpr int64_t kAlignment = 1024;  // of what is swizzled

int64_t round_up(int64_t value, int64_t unit) { return ceil_divide(value, unit) * unit; }
int small(int64_t value) { return static_cast<int>(value); }
// The divisor is a power of two.
int64_t modulo(int64_t a, int64_t power) { return a & (power - 1); }

// Those of `count` things, `width` wide and `step` apart, that meet what is `size` wide, wherever
// the first begins between `least` and `most`.
Range inside(int64_t least, int64_t most, int64_t step, int64_t width, int64_t size, int count) {
  const int64_t before = -most - width;  // what begins here, or further to the left, is outside
  const int64_t first = before < 0 ? 0 : before / step + 1;
  const int64_t last =
      least >= size ? 0 : std::min<int64_t>(ceil_divide(size - least, step), count);
  return first < last ? Range{small(first), small(last - first)} : Range{};
}

// So that the eight channels that a warp reads at once are in different banks.
int64_t odd_units(int64_t units) { return units | 1; }

// Whether rows of a tensor begin at multiples of so many bytes.
bool begins_at(int64_t multiple, const Shape5& sizes, const Shape5& strides, bool aligned,
               int64_t bytes) {
  const auto legal = [&](int i) {
    return sizes[i] == 1 || (strides[i] > 0 && strides[i] * bytes % multiple == 0);
  };
  return aligned && legal(0) && legal(1) && legal(2);
}

bool rows_begin_at(int64_t multiple, const ConvProblem& p) {
  const int64_t bytes = element_size(p.dtype);
  return begins_at(multiple, p.x_sizes(), p.x_strides, p.x_aligned, bytes) &&
         begins_at(multiple, p.y_sizes(), p.y_strides, p.y_aligned, bytes);
}

// The bytes that threads can copy at a time: rows begin and end with whole ones.
int vector_of(const ConvProblem& p) {
  const int64_t bytes = element_size(p.dtype);
  for (const int vector : {8, 4}) {
    const bool ends = p.W * bytes % vector == 0 && p.Q * bytes % vector == 0;
    if (ends && rows_begin_at(vector, p)) return vector;
  }
  return 0;
}

// The classes that channels of a tensor are in whose planes are runs; 0 where these are none that
// TMA can read.
int classes_of(const Shape5& sizes, const Shape5& strides, bool aligned, int64_t groups,
               int64_t bytes) {
  const int64_t classes = sizes[1] == 1 ? 1 : kUnitBytes / std::gcd(strides[1] * bytes, kUnitBytes);
  const bool legal = aligned && strides[1] > 0 && (sizes[2] == 1 || strides[2] == sizes[3]) &&
                     (sizes[0] == 1 || (strides[0] > 0 && strides[0] * bytes % kUnitBytes == 0)) &&
                     sizes[1] / groups % classes == 0 && classes * strides[1] <= INT32_MAX;
  return legal ? small(classes) : 0;
}

struct Classes {
  int x, y;
};
Classes classes_of(const ConvProblem& p) {
  const int64_t bytes = element_size(p.dtype);
  return {classes_of(p.x_sizes(), p.x_strides, p.x_aligned, p.groups, bytes),
          classes_of(p.y_sizes(), p.y_strides, p.y_aligned, p.groups, bytes)};
}

// Whether the pixels of x are as far apart as those of dy.
bool is_shifted(const ConvProblem& p) { return p.stride_h == 1 && p.stride_w == 1 && p.Q == p.W; }

// Cuts dy into slabs: its units follow each other, whatever the rows.
void cut_into_slabs(Tile& t) {
  const int steps = small(ceil_divide(t.units(), 2));
  t.slabs = small(ceil_divide(steps, kSlabSteps));
  t.full_slabs = steps / kSlabSteps;
  t.last_steps = steps % kSlabSteps;
}

// Whether steps can be listed, and each warpgroup has one; and tiles counted.
bool has_steps(const Tile& t) {
  return t.steps() <= kMostSteps && t.steps() >= t.along_p && t.tiles() <= INT32_MAX / 2;
}

// Completes a tile of runs.
void make_runs(const ConvProblem& p, Tile& t) {
  const Kernel& kind = t.kind();
  const int64_t bytes = element_size(p.dtype), unit = t.unit;
  const Classes classes = classes_of(p);
  t.x_classes = classes.x;
  t.y_classes = classes.y;
  int64_t late = 0;  // places before a plane's first pixel, at most
  if (t.one_class) {
    t.k_classes = t.y_classes;
    t.blocks_k =
        t.k_classes * ceil_divide(p.group_K() / t.k_classes, int64_t{kind.k_blocks} * kBlock);
    late = unit - unit / t.k_classes;
  }
  if (t.rows > 1 || t.images > 1 || t.columns % (2 * unit) != 0) return;
  // From a pixel of dy to the next, x goes on by a stride, or to the next row.
  const int64_t turn = p.stride_h * p.W - (p.Q - 1) * p.stride_w;
  if (turn < 0 && p.P > 1) return;
  const int64_t pixels = p.P * p.Q + late;
  const int64_t steps = std::min<int64_t>(t.columns, pixels) - 1;
  const int64_t turns = std::min(ceil_divide(steps, p.Q), p.P - 1);
  // Words are read whole, and runs begin before what is read, at whole units, and their classes.
  const int64_t taps = (kind.taps - 1) * p.dilation_w + 4 + 2 * unit;
  const int64_t more = (t.filter_rows - 1) * p.dilation_h * p.W;
  int64_t run = steps * p.stride_w + turns * std::max<int64_t>(turn - p.stride_w, 0) + taps;
  t.x_runs = more > (t.filter_rows - 1) * run ? t.filter_rows : 1;
  if (t.x_runs == 1) run += more;
  // Neighbouring boxes share as many pixels as taps of a pixel meet.
  const int64_t most = odd_units(kMostBox / unit - 1) * unit;
  if (taps + unit > most / 2) return;
  const int64_t boxes = run <= most ? 1 : ceil_divide(run - taps, most - taps - unit);
  t.box_step = small(round_up(ceil_divide(std::max<int64_t>(run - taps, 1), boxes), unit));
  const int64_t units = odd_units(ceil_divide(t.box_step + taps, unit));
  if (boxes > kMostBoxes || units * unit > most) return;
  t.x_boxes = small(boxes);
  t.x_columns = small(units * unit);
  t.x_rows = t.x_runs;
  t.x_channel = small(units * kUnitBytes);
  t.x_row = t.x_boxes * kBlock * t.x_channel;
  t.x_image = t.x_runs * t.x_row;
  t.x_block = t.x_image;

  t.tiles_n = p.N;
  t.tiles_q = ceil_divide(pixels, t.columns);
  cut_into_slabs(t);
  if (!has_steps(t)) return;
  t.table_bytes = t.units() * 4 * t.entry_bytes();
  t.slab_bytes = int64_t{kind.k_blocks} * kBlock * kSlabUnits * kUnitBytes;
  if (t.orders()) {
    t.y_channel = small(odd_units(t.units() + 1) * kUnitBytes);
    t.raw_y = round_up(int64_t{kind.k_blocks} * kBlock * t.y_channel, 128);
    if (t.y_channel / bytes > kMostBox) return;
  }
  t.stage_bytes = round_up(
      t.y_bytes() + t.along_c * t.x_block + int64_t{t.filter_rows} * t.table_bytes, kAlignment);
}

}  // namespace

ConvProblem as_one_row(ConvProblem p) {
  const auto rows_follow = [&](const Shape5& strides) {
    return p.H == 1 || strides[2] == (p.W > 1 ? p.W * strides[3] : 1);
  };
  if (!p.is_pointwise() || !rows_follow(p.x_strides) || !rows_follow(p.y_strides) ||
      p.H * p.W > INT32_MAX) {
    return p;
  }
  if (p.W == 1 && p.H > 1) p.x_strides[3] = p.y_strides[3] = 1;  // were any
  p.W *= p.H;
  p.Q = p.W;
  p.H = p.P = 1;
  return p;
}

ConvProblem rows_of(ConvProblem p, bool flat) {
  if (!flat) return p;
  p.C *= p.R * p.S;
  p.R = p.S = 1;
  return p;
}

Fetch fetch_of(const ConvProblem& p, const Tile& t) {
  if (t.runs) {
    const bool pairs =
        element_size(p.dtype) == 2 && is_shifted(p) && (t.kind().taps == 1 || p.dilation_w == 1);
    return pairs ? Fetch::kTablePairs : Fetch::kTableElements;
  }
  if (t.boxed && !t.flat && t.kind().taps == 1 && p.is_pointwise()) return Fetch::kSlabs;
  const bool words = element_size(p.dtype) == 2 && !t.flat && p.stride_w <= 2 &&
                     (t.kind().taps == 1 || p.dilation_w == 1);
  return !words ? Fetch::kElements : p.stride_w == 1 ? Fetch::kPairs : Fetch::kHalves;
}

bool is_boxed(const ConvProblem& p) {
  return p.stride_h <= kMostStep && rows_begin_at(kUnitBytes, p);
}

Step Tile::step(int number) const {
  const int behind = number - full_slabs * kSlabSteps;
  Step s{};
  s.slab = behind < 0 ? number / kSlabSteps : full_slabs + behind / last_steps;
  s.place = (behind < 0 ? number % kSlabSteps : behind % last_steps) * 2;
  const int lines = images * rows;
  for (int i = 0; i < 2; ++i) {
    const int column = s.slab / lines * kSlabUnits + s.place + i;  // of boxes
    const int unit =
        boxed ? s.slab % lines * row_units() + column : s.slab * kSlabUnits + s.place + i;
    const bool exists = boxed ? column < row_units() : unit < units();
    s.units[i] = exists ? unit : 0;
  }
  return s;
}

bool is_variant(const ConvProblem& p, const PlanesPlan& plan) {
  const Kernel& kind = kKernels[plan.kernel];
  const bool boxed = plan.loader == Loader::kBoxes, one_class = plan.loader == Loader::kClassRuns;
  const bool runs = plan.loader == Loader::kRuns || one_class;
  if (kind.halves != p.is_strict_float32()) return false;
  if (!kind.has(boxed ? kByBoxes : runs ? kByRuns : kByThreads)) return false;
  if (boxed && !is_boxed(p)) return false;
  if (plan.flat) {
    const bool dense = dense_layout(p.w_sizes(), p.w_strides) != Layout::kOther;
    if (runs || kind.taps > 1 || p.group_C() > kMostFlat || !dense) return false;
  }
  if (!runs) return true;
  const Classes classes = classes_of(p);
  return classes.x > 0 && classes.y > (one_class ? 1 : 0);
}

Tile make_tile(const ConvProblem& p, const PlanesPlan& plan, int64_t splits) {
  Tile t;
  t.kernel = plan.kernel;
  t.boxed = plan.loader == Loader::kBoxes;
  const Kernel& kind = t.kind();
  t.along_c = plan.along == Along::kC ? kind.warpgroups : 1;
  t.flat = plan.flat;
  t.one_class = plan.loader == Loader::kClassRuns;
  t.runs = plan.loader == Loader::kRuns || t.one_class;
  t.along_p = plan.along == Along::kP ? kind.warpgroups : 1;
  t.rows = plan.tile[0];
  t.columns = plan.tile[1];
  t.images = plan.tile[2];
  t.stages = plan.stages;
  t.splits = splits;
  t.cluster = plan.cluster;
  const int64_t bytes = element_size(p.dtype);
  t.unit = small(kUnitBytes / bytes);
  if (t.columns % t.unit != 0) return t;

  // Rows of the instruction are channels of a tap, or all of both.
  const ConvProblem own = rows_of(p, t.flat);
  t.channels = t.flat ? small(p.group_C()) : kBlock;
  t.filter_rows = small(std::min<int64_t>(kind.warpgroups / (t.along_c * t.along_p), own.R));
  t.filter_sets = ceil_divide(own.R, t.filter_rows);
  t.chunks = small(ceil_divide(own.S, kind.taps));
  t.blocks_k = ceil_divide(p.group_K(), kind.k_blocks * kBlock);
  t.blocks_c = ceil_divide(own.group_C(), t.along_c * kBlock);
  if (t.runs) {
    make_runs(p, t);
    return t;
  }
  const int64_t taps_h = t.flat ? p.R : t.filter_rows, taps_w = t.flat ? p.S : kind.taps;
  t.step_h = small(taps_h > 1 ? 1 : p.stride_h);
  t.row_step = small(taps_h > 1 ? p.stride_h : 1);
  // Rows begin at whole units of boxes, or vectors, so that the first tap may be some pixels later.
  t.vector = t.boxed ? 0 : vector_of(p);
  t.align = t.boxed ? t.unit : std::max(small(t.vector / bytes), 1);
  int64_t slack = 0, last_column = 0;
  for (int64_t s = 0; s < own.S; s += kind.taps) {
    const int64_t first = modulo(s * p.dilation_w - p.pad_w, t.align);
    slack = std::max(slack, first + first % 2);
    last_column = s * p.dilation_w - p.pad_w - first;
  }
  const int64_t x_rows = (t.rows - 1) * int64_t{t.row_step} + (taps_h - 1) * p.dilation_h + 1;
  int64_t x_units =
      ceil_divide(slack + (t.columns - 1) * p.stride_w + (taps_w - 1) * p.dilation_w + 2, t.unit);
  if (t.boxed) x_units = odd_units(x_units);
  const int64_t inner = t.images * x_rows * x_units;  // of a channel
  if (inner > INT32_MAX / (kBlock * kUnitBytes * kind.warpgroups)) return t;
  t.x_rows = small(x_rows);
  t.x_columns = small(x_units * t.unit);
  if (t.boxed) {
    t.x_channel = small(x_units * kUnitBytes);
    t.x_row = t.channels * t.x_channel;
    t.x_image = t.x_rows * t.x_row;
    t.x_block = t.images * int64_t{t.x_image};
  } else {
    t.x_channel = small(odd_units(inner) * kUnitBytes);
    t.x_row = small(x_units * kUnitBytes);
    t.x_image = t.x_rows * t.x_row;
    t.x_block = t.channels * int64_t{t.x_channel};
  }

  t.tiles_n = ceil_divide(p.N, t.images);
  t.tiles_p = ceil_divide(p.P, t.rows);
  t.tiles_q = ceil_divide(p.Q, t.columns);
  t.inside_rows = {0, t.x_rows};
  t.inside_units = {0, small(x_units)};
  if (t.tiles_p == 1) {
    const int64_t first = -p.pad_h, sets = t.filter_sets - 1;
    const int64_t last = first + sets * t.filter_rows * p.dilation_h;
    t.inside_rows = inside(first, last, t.step_h, 1, p.H, t.x_rows);
  }
  if (t.tiles_q == 1) {
    const int64_t first = -p.pad_w - modulo(-p.pad_w, t.align);
    t.inside_units = inside(first, last_column, t.unit, t.unit, p.W, small(x_units));
  }
  if (t.boxed) {
    const int lines = t.images * t.rows;
    const int across = small(ceil_divide(t.row_units(), kSlabUnits));
    t.slabs = across * lines;
    t.last_steps = small(ceil_divide(t.row_units() - (across - 1) * kSlabUnits, 2));
    t.full_slabs = (across - 1) * lines;
    // What a box of dy brings beyond the tile would be multiplied too.
    if (t.row_units() % 2 != 0 && t.tiles_q > 1) return t;
    if (fetch_of(p, t) == Fetch::kSlabs) {
      t.x_block = int64_t{t.slabs} * kSlabBytes;
    } else if (t.x_columns > kMostBox || (x_rows - 1) * t.step_h >= kMostBox) {
      return t;
    }
    if (t.images > kMostBox || t.rows > kMostBox) return t;
  } else {
    cut_into_slabs(t);
  }
  if (!has_steps(t)) return t;
  t.slab_bytes = int64_t{kind.k_blocks} * kBlock * kSlabUnits * kUnitBytes;
  const int sets = fetch_of(p, t) == Fetch::kSlabs ? kind.slab_sets() : 1;
  t.stage_bytes = round_up(t.y_bytes() + (t.flat ? 1 : t.along_c) * sets * t.x_block, kAlignment);
  return t;
}

void choose_stages(int64_t shared_bytes, Tile& t) {
  if (t.stage_bytes == 0) return;
  const int64_t stages = (shared_bytes - kBarrierBytes - t.raw_bytes()) / t.stage_bytes;
  t.stages = small(std::min<int64_t>(stages, kMostStages));
}

int64_t memory_bytes(const Tile& t) {
  constexpr int64_t kSize = sizeof(float);
  // Sums of a cluster, then rows of results, take the place of pixels.
  const int64_t sums = t.cluster > 1 ? t.sums() * kSize : 0;
  int64_t results = 0;
  if (t.is_direct()) {
    const int64_t rows = int64_t{t.kind().k_blocks} * kBlock / t.cluster;
    const int64_t row = int64_t{t.along_c} * kBlock * t.filter_rows * t.kind().taps + kRowPadding;
    results = rows * row * kSize;
  }
  const int64_t pixels = t.stages * t.stage_bytes + t.raw_bytes();
  return std::max({pixels, sums, results});
}

int64_t blocks_of(const ConvProblem& p, const Tile& t) {
  return p.groups * t.blocks_k * t.blocks_c * t.filter_sets * t.chunks;
}

LaunchShape shape_of(const ConvProblem& p, const Tile& t) {
  const int64_t blocks = blocks_of(p, t) * t.splits;
  return {blocks, t.kind().threads(), small(memory_bytes(t)) + kBarrierBytes,
          t.is_direct() ? 0 : blocks / t.cluster * t.sums() * int64_t{sizeof(float)}};
}

bool is_exact(const ConvProblem& p, const Tile& t) {
  // What a tap does not meet of a run is zeros. Before and behind a plane of dy lie others.
  if (t.runs) return !t.one_class;
  // Beyond the image x is zeros too.
  const auto whole = [](int64_t count, int64_t step, int64_t stride, int64_t pad, int64_t size) {
    return count % step == 0 || count * stride - pad >= size;
  };
  const int units = t.boxed ? t.row_units() : t.units();  // else one stands in for another
  return units % 2 == 0 && whole(p.P, t.rows, p.stride_h, p.pad_h, p.H) &&
         whole(p.Q, t.columns, p.stride_w, p.pad_w, p.W);
}

bool rows_follow(const ConvProblem& p, const Tile& t) {
  const bool whole = t.flat || (t.filter_rows == p.R && t.kind().taps == p.S);
  const auto follow = [](int64_t size, int64_t stride, int64_t expected) {
    return size == 1 || stride == expected;
  };
  const Shape5& strides = p.w_strides;
  const bool taps_follow = t.flat || (follow(p.S, strides[3], 1) && follow(p.R, strides[2], p.S) &&
                                      follow(p.group_C(), strides[1], p.R * p.S));
  return whole && taps_follow && p.w_aligned && (p.K == 1 || strides[0] % 4 == 0);
}

}  // namespace customconv::implicit_gemm::wgrad::planes
