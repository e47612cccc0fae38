#include "kernels/implicit_gemm/wgrad/registers/geometry.h"

#include <algorithm>

#include "plan/plan.h"

namespace customconv::implicit_gemm::wgrad::registers {

namespace {

constexpr int64_t kAlignment = 1024;  // of what is swizzled

int64_t round_up(int64_t value, int64_t unit) { return ceil_divide(value, unit) * unit; }
int small(int64_t value) { return static_cast<int>(value); }

bool fits_box(int64_t count, int64_t step) {
  return step <= kMostStep && (count - 1) * step < kMostBox;
}

// Adds to a row's `count` what makes a warp's reads meet all banks: `apart` bytes are between those
// of neighbouring lanes, 32 bytes each.
template <typename Apart>
int64_t widen(int64_t count, int64_t unit, int64_t step, Tile& t, const Apart& apart) {
  const auto conflicts = [&](int64_t wider) {
    const int64_t places = apart(wider) / 32 % 4;  // of four, in 128 bytes
    return apart(wider) % 32 != 0 || places == 2 ? 2 : places == 0 ? 4 : 1;
  };
  int64_t best = count;
  for (int64_t wider = count; wider < count + 8 * unit; wider += unit) {
    if (fits_box(wider, step) && conflicts(wider) < conflicts(best)) best = wider;
  }
  t.conflicts = conflicts(best);
  return best;
}

// Boxes of pixels, and what follows from them; whether there are any.
bool set_boxes(const ConvProblem& p, Tile& t) {
  const Kernel& kind = t.kind();
  const int rows_of_filter = t.along_k * t.along_c > 1 ? 1 : kind.warpgroups;
  t.filter_rows = small(std::min<int64_t>(rows_of_filter, p.R));
  t.filter_sets = ceil_divide(p.R, t.filter_rows);
  t.chunks = small(ceil_divide(p.S, kind.taps));
  t.step_h = small(t.filter_rows > 1 ? 1 : p.stride_h);
  t.row_step = small(t.filter_rows > 1 ? p.stride_h : 1);
  t.step_w = small(kind.taps > 1 ? 1 : p.stride_w);
  t.column_step = small(kind.taps > 1 ? p.stride_w : 1);
  const int64_t rows = (t.rows - 1) * int64_t{t.row_step} + (t.filter_rows - 1) * p.dilation_h + 1;
  const int64_t columns =
      (t.columns - 1) * int64_t{t.column_step} + (kind.taps - 1) * p.dilation_w + 1;
  if (!fits_box(rows, t.step_h) || !fits_box(columns, t.step_w)) return false;
  // The swizzle moves every other pixel by 32 bytes.
  const int64_t line_step = t.by_images ? rows : t.row_step;
  t.x_rows = small(rows);
  t.x_columns =
      small(widen(columns, 1, t.step_w, t, [&](int64_t wider) { return wider * line_step * 16; }));
  t.x_row_bytes = int64_t{t.x_columns} * kXRowBytes;
  t.line_bytes = line_step * t.x_row_bytes;
  return true;
}

// Boxes of elements.
bool set_few(const ConvProblem& p, Tile& t) {
  const int64_t whole = 16 / t.element_bytes;
  t.row_step = small(p.stride_h);
  t.column_step = small(p.stride_w);
  t.lead = small((whole - p.pad_w * p.C % whole) % whole);
  const int64_t rows = (t.rows - 1) * p.stride_h + (p.R - 1) * p.dilation_h + 1;
  const int64_t elements = round_up(t.lead + ((t.columns - 1) * p.stride_w + p.S) * p.C, whole);
  if (!fits_box(rows, 1) || !fits_box(elements, 1)) return false;
  const int64_t line_step = t.by_images ? rows : t.row_step;
  const int64_t lines = t.element_bytes == 4 ? 1 : 2;  // of a thread
  t.x_rows = small(rows);
  t.x_columns = small(widen(elements, whole, 1, t, [&](int64_t wider) {
    return wider * t.element_bytes * line_step * lines;
  }));
  t.x_row_bytes = int64_t{t.x_columns} * t.element_bytes;
  t.line_bytes = line_step * t.x_row_bytes;
  return true;
}

}  // namespace

int64_t Tile::y_bytes() const { return round_up(y_boxes() * y_box_bytes, kAlignment); }

int64_t product_rows(const ConvProblem& p, const Kernel& kind) {
  return kind.few ? p.R * p.S * p.C : p.group_C();
}

bool has_whole_rows(const ConvProblem& p) {
  const int64_t whole = 16 / element_size(p.dtype);
  const auto legal = [&](int64_t size, int64_t stride) {
    return size == 1 || (stride > 0 && stride % whole == 0);
  };
  return p.x_aligned && legal(p.H, p.x_strides[2]) && legal(p.N, p.x_strides[0]);
}

bool is_few(const ConvProblem& p) {
  const Shape5& strides = p.x_strides;
  return p.C <= kMostFew && p.groups == 1 && p.dilation_w == 1 && (p.C == 1 || strides[1] == 1) &&
         (p.W == 1 || strides[3] == p.C) && (p.is_strict_float32() || has_whole_rows(p));
}

int column_unit(const ConvProblem& p, const Kernel& kind) {
  const int64_t whole = 16 / element_size(p.dtype);
  int columns = kPair;
  while (kind.few && columns * p.stride_w * p.C % whole != 0) columns *= 2;
  return columns;
}

ConvProblem as_columns(ConvProblem p) {
  const bool dense = strides_match(p.x_sizes(), p.x_strides, Layout::kNhwc) &&
                     strides_match(p.y_sizes(), p.y_strides, Layout::kNhwc);
  const int64_t pixels = p.N * p.H * p.W;
  if (!p.is_pointwise() || !dense || is_few(p) || pixels > INT32_MAX) return p;
  if (pixels % kPair == 0) p.W = kPair;
  p.H = pixels / p.W;
  p.P = p.H;
  p.Q = p.W;
  p.N = 1;
  p.x_strides = {pixels * p.C, 1, p.W * p.C, p.C};
  p.y_strides = {pixels * p.K, 1, p.W * p.K, p.K};
  return p;
}

bool is_variant(const ConvProblem& p, const RegistersPlan& plan) {
  const Kernel& kind = kKernels[plan.kernel];
  if (kind.halves != p.is_strict_float32()) return false;
  const bool has_step = kind.step == 0 || (kind.step == p.stride_w && p.dilation_w == 1);
  if (!has_step) return false;
  if (kind.few) {
    // What a warp fills the matrix instruction does not read: dy of float32 is transposed.
    return plan.along != Along::kRows && is_few(p) &&
           (element_size(p.dtype) == 4 || fill_of_y(p) == Fill::kNone);
  }
  return element_size(p.dtype) == 4;
}

Tile make_tile(const ConvProblem& p, const RegistersPlan& plan, int64_t splits) {
  Tile t;
  t.kernel = plan.kernel;
  const Kernel& kind = t.kind();
  t.element_bytes = small(element_size(p.dtype));
  t.by_images = plan.by_images;
  t.along_k = plan.along == Along::kK ? kind.warpgroups : 1;
  t.along_c = plan.along == Along::kC ? kind.warpgroups : 1;
  t.clustered = plan.clustered;
  t.rows = plan.tile[0];
  t.columns = plan.tile[1];
  t.images = plan.tile[2];
  t.stages = plan.stages;
  t.splits = splits;
  const bool is_tile = (t.by_images ? t.images : t.rows) % t.lines() == 0 &&
                       t.columns % column_unit(p, kind) == 0 &&
                       std::max({t.images, t.rows, t.columns}) <= kMostBox;
  t.fills_x = kind.few ? !has_whole_rows(p) : fill_of_x(p) != Fill::kNone;
  t.fills_y = fill_of_y(p) != Fill::kNone;
  if (!is_tile) return t;
  const bool boxed = kind.few ? set_few(p, t) : set_boxes(p, t);
  if (!boxed) return t;
  t.x_box_bytes = round_up(t.images * t.x_rows * t.x_row_bytes, kAlignment);
  t.y_box_bytes = int64_t{t.pixels()} * kBlock * t.element_bytes;

  t.tiles_n = ceil_divide(p.N, t.images);
  t.tiles_p = ceil_divide(p.P, t.rows);
  t.tiles_q = ceil_divide(p.Q, t.columns);
  t.blocks_k = ceil_divide(p.group_K(), t.y_boxes() * kBlock);
  t.blocks_c = ceil_divide(product_rows(p, kind), t.along_c * kBlock);
  if (t.tiles() > INT32_MAX / 2) return t;
  t.stage_bytes = t.x_boxes() * t.x_box_bytes + (kind.halves ? 2 : 1) * t.y_bytes();
  return t;
}

void choose_stages(int64_t shared_bytes, Tile& t) {
  if (t.stage_bytes == 0) return;
  t.stages = small(std::min<int64_t>((shared_bytes - kBarrierBytes) / t.stage_bytes, kMostStages));
}

LaunchShape shape_of(const ConvProblem& p, const Tile& t) {
  const int64_t blocks = blocks_of(p, t) * t.splits;
  return {blocks, t.kind().threads(), small(t.stages * t.stage_bytes) + kBarrierBytes,
          t.clustered ? 0 : blocks * t.sums() * int64_t{sizeof(float)}};
}

int64_t blocks_of(const ConvProblem& p, const Tile& t) {
  return p.groups * t.blocks_k * t.blocks_c * t.filter_sets * t.chunks;
}

bool is_exact(const ConvProblem& p, const Tile& t) {
  // Beyond the image x is zeros too.
  const auto whole = [](int64_t count, int64_t step, int64_t stride, int64_t pad, int64_t size) {
    return count % step == 0 || count * stride - pad >= size;
  };
  return whole(p.P, t.rows, p.stride_h, p.pad_h, p.H) &&
         whole(p.Q, t.columns, p.stride_w, p.pad_w, p.W);
}

}  // namespace customconv::implicit_gemm::wgrad::registers
