// The walk from one image to the other, and how threads share it.
#include "kernels/depthwise/geometry.h"

#include <algorithm>
#include <utility>

namespace customconv::depthwise {

namespace {

constexpr int64_t kFilterBytes = 40 << 10;  // of shared memory

int64_t round_up(int64_t value, int64_t unit) { return ceil_divide(value, unit) * unit; }

void swap_axes(Geometry& g) {
  std::swap(g.H, g.W);
  std::swap(g.P, g.Q);
  std::swap(g.R, g.S);
  std::swap(g.step_h, g.step_w);
  std::swap(g.pad_h, g.pad_w);
  std::swap(g.dilation_h, g.dilation_w);
  std::swap(g.in[2], g.in[3]);
  std::swap(g.out[2], g.out[3]);
  std::swap(g.weight_r, g.weight_s);
}

// Whether a thread's outputs, one below the other, are better neighbours in a row; of planes,
// whether neighbours in a warp are better one below the other.
bool wants_swap(const Geometry& g) {
  if (g.planar) return g.W == 1 && g.Q == 1 && g.P > 1;
  if (g.S * 4 > kFilterBytes) return false;  // a column of the filter has its place there
  return (g.R == 1 && g.S > 1) || (g.P == 1 && g.Q > 1);
}

}  // namespace

Geometry geometry_of(const ConvProblem& p) {
  Geometry g{};
  const Shape4& w = p.w_strides;
  g.N = p.N;
  g.K = p.K;
  g.multiplier = p.group_K();
  g.sources = 1;
  g.of_weights = p.pass == Pass::kWgrad;
  g.R = p.R;
  g.S = p.S;
  g.step_h = p.stride_h;
  g.step_w = p.stride_w;
  g.pad_h = p.pad_h;
  g.pad_w = p.pad_w;
  g.dilation_h = p.dilation_h;
  g.dilation_w = p.dilation_w;
  g.weight_k = w[0];
  g.weight_r = w[2];
  g.weight_s = w[3];
  if (p.pass == Pass::kDgrad) {
    g.K = p.C;
    std::swap(g.multiplier, g.sources);
    g.H = p.P;
    g.W = p.Q;
    g.P = p.H;
    g.Q = p.W;
    g.in = p.y_strides;
    g.out = p.x_strides;
    g.transposed = p.stride_h > 1 || p.stride_w > 1;
    if (!g.transposed) {
      g.pad_h = p.dilation_h * (p.R - 1) - p.pad_h;
      g.pad_w = p.dilation_w * (p.S - 1) - p.pad_w;
      g.weight_offset = (p.R - 1) * w[2] + (p.S - 1) * w[3];
      g.weight_r = -w[2];
      g.weight_s = -w[3];
    }
  } else {
    g.H = p.H;
    g.W = p.W;
    g.P = p.P;
    g.Q = p.Q;
    g.in = p.x_strides;
    g.out = p.y_strides;
  }
  g.planar = g.K == 1 || g.in[1] >= g.in[3];
  if (wants_swap(g)) swap_axes(g);
  return g;
}

Work work_of(const Geometry& g, const Variant& v, int vectors, int64_t element_size) {
  const int64_t taps = kTaps[v.taps], rows = kRows[v.rows], width = width_of(v.order);
  Work w{};
  w.first_row = v.walk == Walk::kHalf ? -static_cast<int>(g.pad_h & 1) : 0;
  w.strips = ceil_divide(g.P - w.first_row, rows);
  // A line's first columns may lie before the image.
  const int64_t before = v.order == Order::kLines ? line_unit(element_size) - 1 : 0;
  w.columns = ceil_divide(g.Q + before, columns_of(v.order, v.walk, kTaps[v.taps], element_size));
  w.vectors = is_planar(v.order) ? 1 : vectors;
  w.filter_rows = static_cast<int>(round_up(g.R, taps));
  w.stage_columns = static_cast<int>(g.S);
  const int64_t pixels = g.N * w.strips * w.columns;
  w.units = is_planar(v.order) ? g.K : ceil_divide(g.K / width, w.vectors);
  w.items = pixels;
  if (g.of_weights) {
    const int64_t across = gradient_columns(v.order, static_cast<int>(taps), v.shape);
    w.chunks_r = ceil_divide(g.R, taps);
    w.chunks_s = ceil_divide(g.S, across);
    w.blocks = w.units * w.chunks_r * w.chunks_s;
    w.shared_bytes = static_cast<int>(kThreads * taps * across * width * 4);
  } else if (is_planar(v.order)) {
    w.items = pixels * g.K;
    w.blocks = ceil_divide(w.items, kThreads);
  } else {
    const int64_t column_bytes = w.vectors * width * w.filter_rows * 4;
    w.stage_columns = static_cast<int>(std::clamp<int64_t>(kFilterBytes / column_bytes, 1, g.S));
    w.blocks = w.units * ceil_divide(pixels, std::max(kThreads / w.vectors, 1));
    w.shared_bytes = static_cast<int>(std::min<int64_t>(w.stage_columns * column_bytes, 1 << 24));
  }
  return w;
}

}  // namespace customconv::depthwise
