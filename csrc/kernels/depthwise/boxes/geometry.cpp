// How outputs meet the input's pixels, and what a block has of them.
#include "kernels/depthwise/boxes/geometry.h"

#include <algorithm>

#include "kernels/depthwise/geometry.h"
#include "plan/plan.h"

namespace customconv::depthwise::boxes {

namespace {

constexpr int kBoxAlignment = 128;
constexpr int kBarrierBytes = 8;

int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }

// `axis`: with its images, taps, step and dilation.
Axis complete(Axis axis, Walk walk, int64_t pad) {
  axis.origin = static_cast<int>(-pad);
  axis.advance = kPatch * std::min(axis.step, kMostBox);
  axis.window = window_of(walk, axis.taps);
  if (walk == Walk::kHalf) {
    // Patches begin where the first tap falls on a pixel.
    axis.first = -static_cast<int>(pad % 2);
    axis.origin = static_cast<int>(pad / 2) - (axis.taps - 1) / 2;
    axis.advance = kPatch / 2;
  } else if (walk == Walk::kAny) {
    const int64_t reach = int64_t{kPatch - 1} * axis.step + int64_t{axis.taps - 1} * axis.dilation;
    axis.window = static_cast<int>(std::min<int64_t>(reach, kMostBox) + 1);
  }
  axis.patches = (axis.out - axis.first + kPatch - 1) / kPatch;
  return axis;
}

Boxed boxed_of(const Tile& tile, int rows, int columns, int element_size) {
  Boxed boxed{rows, columns, 1, 0, 0};
  if (tile.merged) {
    const int most = kMostBox / tile.channels / kPatch * kPatch;
    boxed.columns = std::min(round_up(columns, kPatch), most);
    boxed.count = (columns + boxed.columns - 1) / boxed.columns;
  }
  const int bytes = rows * boxed.columns * tile.images * tile.channels * element_size;
  boxed.bytes = round_up(bytes, kBoxAlignment);
  boxed.all_bytes = bytes * boxed.count;
  return boxed;
}

// Whether it is one of the problems that have kernels of their own.
bool is_usual(const ConvProblem& p) {
  const auto* end = kTaps + kTapsCount;
  return p.R == p.S && std::find(kTaps, end, p.R) != end && p.stride_h == p.stride_w &&
         p.stride_h <= 2 && p.dilation_h == 1 && p.dilation_w == 1;
}

}  // namespace

Geometry geometry_of(const ConvProblem& p) {
  const Shape5& w = p.w_strides;
  Geometry g{};
  g.N = p.N;
  g.C = p.C;
  g.walk = !is_usual(p) ? Walk::kAny : p.stride_h == 1 ? Walk::kNext : Walk::kSecond;
  g.of_weights = p.pass == Pass::kWgrad;
  g.in = p.x_strides;
  g.out = p.y_strides;
  g.weight_k = w[0];
  g.weight_r = w[2];
  g.weight_s = w[3];
  const auto axis_of = [](int64_t in, int64_t out, int64_t taps, int64_t step, int64_t dilation) {
    Axis axis{};
    axis.in = static_cast<int>(in);
    axis.out = static_cast<int>(out);
    axis.taps = static_cast<int>(taps);
    axis.step = static_cast<int>(step);
    axis.dilation = taps == 1 ? 1 : static_cast<int>(dilation);
    return axis;
  };
  g.h = axis_of(p.H, p.P, p.R, p.stride_h, p.dilation_h);
  g.w = axis_of(p.W, p.Q, p.S, p.stride_w, p.dilation_w);
  if (p.pass != Pass::kDgrad) {
    g.h = complete(g.h, g.walk, p.pad_h);
    g.w = complete(g.w, g.walk, p.pad_w);
    return g;
  }
  std::swap(g.in, g.out);
  std::swap(g.h.in, g.h.out);
  std::swap(g.w.in, g.w.out);
  int64_t pad_h = p.pad_h, pad_w = p.pad_w;
  if (g.walk == Walk::kSecond) {
    g.walk = Walk::kHalf;
  } else {
    pad_h = p.dilation_h * (p.R - 1) - pad_h;
    pad_w = p.dilation_w * (p.S - 1) - pad_w;
    g.weight_offset = (p.R - 1) * w[2] + (p.S - 1) * w[3];
    g.weight_r = -w[2];
    g.weight_s = -w[3];
  }
  g.h = complete(g.h, g.walk, pad_h);
  g.w = complete(g.w, g.walk, pad_w);
  return g;
}

bool can_merge(const Geometry& g) {
  const auto is_dense = [&](const Axis& axis, int pixels, const Shape5& strides) {
    return (pixels == 1 || strides[3] == g.C) && (pixels + axis.taps) * g.C < INT32_MAX / 2;
  };
  return g.walk != Walk::kAny && g.C * kPatch <= kMostBox && is_dense(g.w, g.w.in, g.in) &&
         (!g.of_weights || is_dense(g.w, g.w.out, g.out));
}

Work work_of(const Geometry& g, const BoxesPlan& plan, int element_size) {
  const Tile tile{plan.channels, plan.tile[0], plan.tile[1], plan.tile[2], plan.merged};
  const int most = most_threads(taps_of(g)), kernel = g.h.taps * g.w.taps;
  Work w{};
  w.tile = tile;
  w.pairs = tile.channels / 2;
  const int row_threads = w.pairs * tile.columns, rows = tile.rows * tile.images;
  if (row_threads > most) return w;
  // As few threads as take as many turns.
  const int most_down = most / row_threads, turns = (rows + most_down - 1) / most_down;
  w.down = (rows + turns - 1) / turns;
  w.threads = round_up(w.down * row_threads, 32);
  const int kept_rows = (tile.rows - 1) * g.h.advance + g.h.window;
  const int kept_columns = (tile.columns - 1) * g.w.advance + g.w.window;
  if (kept_rows > kMostBox || kept_columns > kMostBox || tile.images > kMostBox) return w;
  w.in = boxed_of(tile, kept_rows, kept_columns, element_size);
  w.stage_bytes = w.in.count * w.in.bytes;
  if (g.of_weights) {
    w.out = boxed_of(tile, tile.rows * kPatch, tile.columns * kPatch, element_size);
    w.stage_bytes += w.out.count * w.out.bytes;
  }
  const int barriers = 2 * kMostStages * kBarrierBytes;
  // A weight gradient's sums take the place of its stages in the end.
  const int filter_bytes = g.of_weights ? 0 : round_up(kernel * (tile.channels + 1) * 4, 16);
  const int sum_bytes = g.of_weights ? kernel * (2 * w.threads + tile.channels) * 4 : 0;
  w.stages = plan.stages;
  w.filter_at = std::max(w.stages * w.stage_bytes, sum_bytes);
  w.barriers_at = w.filter_at + filter_bytes;
  w.bytes = w.barriers_at + barriers;
  w.chunks = ceil_divide(g.C, tile.channels);
  w.tiles_n = ceil_divide(g.N, tile.images);
  w.tiles_h = ceil_divide(g.h.patches, tile.rows);
  w.tiles_w = ceil_divide(g.w.patches, tile.columns);
  return w;
}

Work choose_stages(const Geometry& g, int element_size, int shared_bytes, BoxesPlan& plan) {
  plan.stages = 1;
  const Work one = work_of(g, plan, element_size);
  if (one.bytes == 0) return {};
  const int fixed = one.bytes - one.filter_at;
  plan.stages = std::min((shared_bytes - fixed) / one.stage_bytes, kMostStages);
  const Work w = work_of(g, plan, element_size);
  return plan.stages >= 2 && w.bytes <= shared_bytes ? w : Work{};
}

LaunchShape shape_of(const ConvProblem& p, const Work& w, const BoxesPlan& plan, int64_t splits) {
  return {w.chunks * plan.tile_blocks, w.threads + kLoaderThreads, w.bytes,
          plan.clustered ? 0 : parts_bytes(p, splits)};
}

}  // namespace customconv::depthwise::boxes
