// How taps become columns, and what a block has of them.
#include "kernels/col2im/geometry.h"

#include <algorithm>

#include "plan/plan.h"

namespace customconv::col2im {

namespace {

int64_t round_up(int64_t value, int64_t unit) { return ceil_divide(value, unit) * unit; }

Axis axis_of(int64_t in, int64_t out, int64_t pad, int64_t stride, int64_t dilation, int64_t taps) {
  if (taps == 1) dilation = 1;
  Axis axis{};
  axis.in = static_cast<int>(in);
  axis.out = static_cast<int>(out);
  axis.pad = static_cast<int>(pad);
  axis.stride = static_cast<int>(stride);
  axis.dilation = static_cast<int>(dilation);
  axis.taps = static_cast<int>(taps);
  axis.first = static_cast<int>(pad / stride);
  axis.places = static_cast<int>((out - 1 + pad) / stride) - axis.first + 1;
  axis.reach = static_cast<int>((taps - 1) * dilation / stride);
  return axis;
}

// Bytes that images, channels, rows and pixels of dy are whole multiples of.
int vector_of(const ConvProblem& p, Order order) {
  const int64_t size = element_size(p.dtype);
  const int inner = order == Order::kPixels ? 1 : 3;
  if (!p.y_aligned || p.y_strides[inner] != 1) return static_cast<int>(size);
  const Shape5 sizes = p.y_sizes();
  int64_t vector = 16;
  for (int i = 0; i < 4; ++i) {
    while (i != inner && sizes[i] > 1 && p.y_strides[i] * size % vector != 0) vector /= 2;
  }
  return static_cast<int>(vector);
}

}  // namespace

Geometry geometry_of(const ConvProblem& p) {
  Geometry g{};
  g.N = p.N;
  g.C = p.C;
  g.K = p.K;
  g.h = axis_of(p.P, p.H, p.pad_h, p.stride_h, p.dilation_h, p.R);
  g.w = axis_of(p.Q, p.W, p.pad_w, p.stride_w, p.dilation_w, p.S);
  g.order = p.K > 1 && p.y_strides[1] == 1 ? Order::kPixels : Order::kPlanes;
  g.vector = vector_of(p, g.order);
  return g;
}

int shifts_of(const Axis& axis, int shifts[kMostShifts]) {
  int count = 0;
  for (int tap = 0; tap < axis.taps; ++tap) {
    const int shift = tap * axis.dilation / axis.stride;
    if (count > 0 && shifts[count - 1] == shift) continue;
    if (count == kMostShifts) return -1;
    shifts[count++] = shift;
  }
  return count;
}

Work work_of(const Geometry& g, const Col2imPlan& v, int element_size) {
  const int most = v.column_blocks * kBlockColumns, rows = v.tile[0], width = v.tile[1];
  Work w{};
  w.rows = rows;
  w.width = width;
  w.threads = 32 * v.warps;
  w.shift_count = shifts_of(g.h, w.shifts);
  const int64_t all_columns = round_up(g.C * g.w.taps, kBlockColumns);
  if (w.shift_count < 0 || g.w.taps > most || g.w.reach >= width) return w;
  if (all_columns <= most) {
    w.channels = static_cast<int>(g.C);
    w.phases = std::min<int>(g.h.stride, most / static_cast<int>(all_columns));
  } else {
    w.channels = static_cast<int>(ceil_divide(g.C, ceil_divide(g.C, most / g.w.taps)));
    w.phases = 1;
  }
  w.phase_chunks = static_cast<int>(ceil_divide(g.h.stride, w.phases));
  w.phases = static_cast<int>(ceil_divide(g.h.stride, w.phase_chunks));
  w.channel_chunks = static_cast<int>(ceil_divide(g.C, w.channels));
  w.phase_columns = static_cast<int>(round_up(int64_t{w.channels} * g.w.taps, kBlockColumns));

  // Rows are read from where a vector begins.
  const int unit = g.order == Order::kPlanes ? g.vector / element_size : 1;
  w.lead = g.w.reach + ((g.w.first - g.w.reach) % unit + unit) % unit;
  w.columns = (width - w.lead) / unit * unit;
  if (w.columns <= 0) return w;
  w.tiles_h = static_cast<int>(ceil_divide(g.h.places, rows));
  w.tiles_w = static_cast<int>(ceil_divide(g.w.places, w.columns));

  w.chunk_channels = kChunkBytes / element_size;
  w.k_chunks = static_cast<int>(ceil_divide(g.K, w.chunk_channels));
  const int64_t stage_rows = int64_t{rows} + g.h.reach;
  if (stage_rows * width > 1 << 16) return w;
  w.stage_rows = static_cast<int>(stage_rows);
  const int pixels = w.stage_rows * width;
  w.plane = pixels + kPlanePadding;
  w.dy_bytes = g.order == Order::kPixels ? pixels * kRowBytes : kChunkBytes * w.plane;
  w.weight_bytes = w.shift_count * most * kRowBytes;
  w.sum_pitch = rows * width / 32 * 32 + kSumPadding;
  w.shared_bytes = std::max(kStages * (w.dy_bytes + w.weight_bytes), most * w.sum_pitch * 4);
  w.fits = true;
  return w;
}

int64_t packed_bytes(const Work& w, const Col2imPlan& v) {
  return int64_t{w.chunks()} * w.k_chunks * w.shift_count * v.column_blocks * kBlockColumns *
         kChunkBytes;
}

LaunchShape shape_of(const Geometry& g, const Work& w, const Col2imPlan& v) {
  return {w.tiles(g.N) * w.chunks(), w.threads, w.shared_bytes, packed_bytes(w, v)};
}

}  // namespace customconv::col2im
