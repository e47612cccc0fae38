#include "kernels/implicit_gemm/weight/tf32_geometry.h"

#include <algorithm>

namespace customconv::implicit_gemm::weight::tf32 {

namespace {

constexpr int64_t kAlignment = 1024;  // of what is swizzled

int64_t round_up(int64_t value, int64_t unit) { return ceil_divide(value, unit) * unit; }
int small(int64_t value) { return static_cast<int>(value); }

}  // namespace

ConvProblem as_columns(ConvProblem p) {
  const bool dense = strides_match(p.x_sizes(), p.x_strides, Layout::kNhwc) &&
                     strides_match(p.y_sizes(), p.y_strides, Layout::kNhwc);
  const int64_t pixels = p.N * p.H * p.W;
  if (!p.is_pointwise() || !dense || pixels > INT32_MAX) return p;
  if (pixels % kPair == 0) p.W = kPair;
  p.H = pixels / p.W;
  p.P = p.H;
  p.Q = p.W;
  p.N = 1;
  p.x_strides = {pixels * p.C, 1, p.W * p.C, p.C};
  p.y_strides = {pixels * p.K, 1, p.W * p.K, p.K};
  return p;
}

Tile make_tile(const ConvProblem& p, int variant, const int (&pixels)[3], int64_t splits,
               int64_t shared_bytes) {
  Tile t;
  t.kernel = variant % kVariantKernels;
  const Kernel& kind = t.kind();
  t.by_images = (variant & kByImages) != 0;
  t.twins = (variant & kTwins) != 0;
  t.along_k = (variant & kAlongK) != 0 ? kind.warpgroups : 1;
  t.along_c = (variant & kAlongC) != 0 ? kind.warpgroups : 1;
  t.rows = pixels[0];
  t.columns = pixels[1];
  t.images = pixels[2];
  t.splits = splits;
  const bool is_tile = (t.by_images ? t.images : t.rows) % kLines == 0 && t.columns % kPair == 0 &&
                       std::max({t.images, t.rows, t.columns}) <= kMostBox;
  const bool has_step = kind.step == 0 || (kind.step == p.stride_w && p.dilation_w == 1);
  if (!is_tile || !has_step || (t.along_k > 1 && t.along_c > 1)) return t;

  const int rows_of_filter = t.along_k * t.along_c > 1 ? 1 : kind.warpgroups;
  t.filter_rows = small(std::min<int64_t>(rows_of_filter, p.R));
  t.filter_sets = ceil_divide(p.R, t.filter_rows);
  t.chunks = small(ceil_divide(p.S, kind.taps));
  t.step_h = small(t.filter_rows > 1 ? 1 : p.stride_h);
  t.row_step = small(t.filter_rows > 1 ? p.stride_h : 1);
  t.step_w = small(kind.taps > 1 ? 1 : p.stride_w);
  t.column_step = small(kind.taps > 1 ? p.stride_w : 1);
  const int64_t x_rows =
      (t.rows - 1) * int64_t{t.row_step} + (t.filter_rows - 1) * p.dilation_h + 1;
  int64_t x_columns = (t.columns - 1) * int64_t{t.column_step} + (kind.taps - 1) * p.dilation_w + 1;
  const auto fits_box = [](int64_t count, int64_t step) {
    return step <= kMostStep && (count - 1) * step < kMostBox;
  };
  if (!fits_box(x_rows, t.step_h) || !fits_box(x_columns, t.step_w)) return t;
  // With lines 2 or 6 pixels apart, modulo 8, a warp's reads meet all banks.
  const int64_t line_step = t.by_images ? x_rows : t.row_step;
  for (int64_t wider = x_columns; wider < x_columns + kLines; ++wider) {
    if (wider * line_step % 4 == 2 && fits_box(wider, t.step_w)) {
      x_columns = wider;
      break;
    }
  }
  t.x_rows = small(x_rows);
  t.x_columns = small(x_columns);
  t.line_pitch = small(line_step * x_columns);
  t.x_box_bytes = round_up(t.images * x_rows * x_columns * kXRowBytes, kAlignment);
  t.y_box_bytes = int64_t{t.pixels()} * kYRowBytes;
  t.stage_bytes = t.x_boxes() * t.x_box_bytes + round_up(t.y_boxes() * t.y_box_bytes, kAlignment);

  t.tiles_n = ceil_divide(p.N, t.images);
  t.tiles_p = ceil_divide(p.P, t.rows);
  t.tiles_q = ceil_divide(p.Q, t.columns);
  t.blocks_k = ceil_divide(p.group_K(), t.y_boxes() * kBlock);
  t.blocks_c = ceil_divide(p.group_C(), t.along_c * kBlock);
  // Neighbours differ in their taps or input channels.
  const bool has_twins = t.chunks * t.filter_sets * t.blocks_c % 2 == 0;
  if (t.tiles() > INT32_MAX / 2 || (t.twins && !has_twins)) return t;
  const int64_t stages = (shared_bytes - kBarrierBytes) / t.stage_bytes;
  t.stages = small(std::min<int64_t>(stages, kMostStages));
  return t;
}

Tile tile_of(const ConvProblem& p, const ConvPlan& plan) {
  return make_tile(p, plan.variant_index, plan.tile, plan.splits, plan.shared_bytes);
}

int shared_bytes(const Tile& t) { return small(t.stages * t.stage_bytes) + kBarrierBytes; }

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

bool is_direct(const ConvProblem& p, const Tile& t) { return t.splits == 1 && is_exact(p, t); }

}  // namespace customconv::implicit_gemm::weight::tf32
