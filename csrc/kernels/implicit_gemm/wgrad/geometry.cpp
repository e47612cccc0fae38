#include "kernels/implicit_gemm/wgrad/geometry.h"

#include <algorithm>
#include <numeric>

#include "kernels/implicit_gemm/wgrad/planes/geometry.h"
#include "plan/plan.h"

namespace customconv::implicit_gemm::wgrad {

namespace {

constexpr int64_t kAlignment = 1024;  // of what is swizzled

int64_t round_up(int64_t value, int64_t unit) { return ceil_divide(value, unit) * unit; }
int small(int64_t value) { return static_cast<int>(value); }

// How boxes of pixels are filled. `group`: channels of a group.
Fill fill_of(const Shape5& sizes, const Shape5& strides, bool aligned, int64_t group,
             int64_t element_bytes) {
  const int64_t whole = 16 / element_bytes;
  const auto legal = [&](int i) {
    return sizes[i] == 1 || (strides[i] > 0 && strides[i] % whole == 0);
  };
  const bool begin_whole = group == sizes[1] || group % whole == 0;
  const bool boxed = aligned && begin_whole && legal(0) && legal(2) && legal(3);
  return boxed ? Fill::kNone : Fill::kUnits;
}

// How boxes of planes are filled.
Fill turn_of(const Shape5& sizes, const Shape5& strides, bool aligned, int64_t step_w) {
  const auto even = [&](int i) { return sizes[i] == 1 || strides[i] % 2 == 0; };
  const bool pairs = step_w == 1 && aligned && (sizes[3] == 1 || strides[3] == 1) &&
                     sizes[3] % 2 == 0 && even(0) && even(1) && even(2);
  return pairs ? Fill::kPairs : Fill::kPixels;
}

}  // namespace

bool has_pixels(const ConvProblem& p) {
  return (p.C == 1 || p.x_strides[1] == 1) && (p.K == 1 || p.y_strides[1] == 1);
}
Fill fill_of_x(const ConvProblem& p) {
  return has_pixels(p)
             ? fill_of(p.x_sizes(), p.x_strides, p.x_aligned, p.group_C(), element_size(p.dtype))
             : turn_of(p.x_sizes(), p.x_strides, p.x_aligned, p.stride_w);
}
Fill fill_of_y(const ConvProblem& p) {
  return has_pixels(p)
             ? fill_of(p.y_sizes(), p.y_strides, p.y_aligned, p.group_K(), element_size(p.dtype))
             : turn_of(p.y_sizes(), p.y_strides, p.y_aligned, 1);
}

ConvProblem as_one_row(ConvProblem p) {
  const bool dense = strides_match(p.x_sizes(), p.x_strides, Layout::kNhwc) &&
                     strides_match(p.y_sizes(), p.y_strides, Layout::kNhwc);
  if (!dense) return planes::as_one_row(p);
  if (!p.is_pointwise() || p.N * p.H * p.W > INT32_MAX) return p;
  p.W *= p.N * p.H;
  p.Q = p.W;
  p.N = p.H = p.P = 1;
  p.x_strides = {p.W * p.C, 1, p.W * p.C, p.C};
  p.y_strides = {p.W * p.K, 1, p.W * p.K, p.K};
  return p;
}

bool is_variant(const ConvProblem& p, const BoxesPlan& plan) {
  // Two taps share a box.
  return !plan.by_taps || p.stride_w / std::gcd(p.stride_w, p.dilation_w) <= p.S;
}

Tile make_tile(const ConvProblem& p, const BoxesPlan& plan, int64_t splits) {
  Tile t;
  t.kernel = plan.kernel;
  t.by_taps = plan.by_taps;
  const Kernel& kind = t.kind();
  t.along_k = plan.along_k ? kind.warpgroups : 1;
  t.clustered = plan.clustered;
  t.fill_x = fill_of_x(p);
  t.fill_y = fill_of_y(p);
  t.rows = plan.tile[0];
  t.columns = plan.tile[1];
  t.images = plan.tile[2];
  t.stages = plan.stages;
  t.splits = splits;

  t.filter_rows = small(std::min<int64_t>(kind.warpgroups / t.along_k, p.R));
  t.filter_sets = ceil_divide(p.R, t.filter_rows);
  if (t.by_taps) {
    const int64_t common = std::gcd(p.stride_w, p.dilation_w);
    t.tap_apart = small(p.stride_w / common);
    t.tap_step = small(std::min<int64_t>(p.dilation_w / common, kMostBox));
  } else {
    t.tap_apart = small(p.S);
    t.channel_blocks = kind.blocks;
  }
  const int64_t class_taps = ceil_divide(p.S, t.tap_apart);
  t.class_chunks = small(t.by_taps ? ceil_divide(class_taps, kind.blocks) : 1);
  t.chunks = t.tap_apart * t.class_chunks;

  t.step_h = small(t.filter_rows > 1 ? 1 : p.stride_h);
  t.row_step = small(t.filter_rows > 1 ? p.stride_h : 1);
  const int64_t x_rows =
      (t.rows - 1) * int64_t{t.row_step} + (t.filter_rows - 1) * p.dilation_h + 1;
  const int64_t x_columns = t.columns + (t.by_taps ? kind.blocks - 1 : 0) * int64_t{t.tap_step};
  const auto fits_box = [](int64_t count, int64_t step) {
    return step <= kMostStep && (count - 1) * step < kMostBox;
  };
  if (!fits_box(x_rows, t.step_h) || !fits_box(x_columns, p.stride_w)) return t;
  if (t.images > kMostBox || t.rows > kMostBox || t.columns > kMostBox) return t;
  t.x_rows = small(x_rows);
  t.x_columns = small(x_columns);
  t.x_box_bytes = round_up(t.images * x_rows * x_columns * kRowBytes, kAlignment);
  t.y_box_bytes = round_up(int64_t{t.pixels()} * kRowBytes, kAlignment);

  // Places of what is transposed are offsets of 32 bits.
  const auto reach = [&](const Shape5& strides, int64_t rows, int64_t columns) {
    return (t.images - 1) * strides[0] + rows * strides[2] + columns * strides[3];
  };
  if (t.transposes() && std::max(reach(p.x_strides, x_rows * t.step_h, x_columns * p.stride_w),
                                 reach(p.y_strides, t.rows, t.columns)) > INT32_MAX) {
    return t;
  }

  t.tiles_n = ceil_divide(p.N, t.images);
  t.tiles_p = ceil_divide(p.P, t.rows);
  t.tiles_q = ceil_divide(p.Q, t.columns);
  t.blocks_k = ceil_divide(p.group_K(), t.along_k * kBlock);
  t.blocks_c = ceil_divide(p.group_C(), t.channel_blocks * kBlock);
  // Runs of pixels make pairs, in whichever dimension there are pairs of them.
  const bool pairs =
      t.columns % kRun == 0 && (t.columns / kRun % 2 == 0 || t.rows % 2 == 0 || t.images % 2 == 0);
  if (!pairs || t.tiles() > INT32_MAX / 2) return t;
  t.stage_bytes = t.channel_blocks * t.x_box_bytes + t.along_k * t.y_box_bytes;
  return t;
}

void choose_stages(int64_t shared_bytes, Tile& t) {
  if (t.stage_bytes == 0) return;
  const int64_t stages = (shared_bytes - kBarrierBytes - t.table_bytes()) / t.stage_bytes;
  t.stages = small(std::min<int64_t>(stages, kMostStages));
}

LaunchShape shape_of(const ConvProblem& p, const Tile& t) {
  const int64_t blocks = blocks_of(p, t) * t.splits;
  return {blocks, t.threads(), small(t.stages * t.stage_bytes) + kBarrierBytes + t.table_bytes(),
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

}  // namespace customconv::implicit_gemm::wgrad
