// How threads share the walk.
#include "kernels/depthwise/threads/work.h"

#include <algorithm>

#include "plan/plan.h"

namespace customconv::depthwise::threads {

namespace {

int64_t round_up(int64_t value, int64_t unit) { return ceil_divide(value, unit) * unit; }

template <size_t kCount>
int index_of(int value, const int (&table)[kCount]) {
  return static_cast<int>(std::find(table, table + kCount, value) - table);
}

}  // namespace

Variant variant_of(const ThreadsPlan& plan) {
  Variant v{plan.order, plan.walk, index_of(plan.taps, kTaps), 0, 0};
  if (plan.order == Order::kLines) {
    v.shape = index_of(plan.columns, kLineTaps);
    return v;
  }
  v.rows = index_of(plan.rows, kRows);
  if (plan.order != Order::kWindows) return v;
  while (kWindowShapes[v.shape].unit != plan.unit || kWindowShapes[v.shape].offset != plan.offset)
    ++v.shape;
  return v;
}

Work work_of(const Geometry& g, const Variant& v, int vectors, int64_t element_size) {
  const int64_t taps = kTaps[v.taps], width = width_of(v.order);
  Work w{};
  w.first_row = v.walk == Walk::kHalf ? -static_cast<int>(g.pad_h & 1) : 0;
  w.strips = ceil_divide(g.P - w.first_row, v.kept());
  // A line's first columns may lie before the image.
  const int64_t before = v.order == Order::kLines ? line_unit(element_size) - 1 : 0;
  w.columns = ceil_divide(g.Q + before, columns_of(v.order, kTaps[v.taps], element_size));
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

LaunchShape shape_of(const ConvProblem& p, const Work& w, int64_t splits) {
  return {w.blocks * splits, kThreads, w.shared_bytes, parts_bytes(p, splits)};
}

}  // namespace customconv::depthwise::threads
