// The launcher of bands.
#pragma once

#include <algorithm>

#include "kernels/common/start.h"
#include "kernels/depthwise/bands/convolve.cuh"
#include "kernels/depthwise/bands/gradient.cuh"
#include "kernels/depthwise/kinds.h"

namespace customconv::depthwise::bands {

using D = Divider<int32_t>;

inline int small(int64_t value) { return static_cast<int>(value); }

template <typename T>
Image<T> image_of(T* data, const Shape5& strides, int64_t N, int64_t H, int64_t W) {
  return {data,
          {strides[0], strides[1], small(strides[2]), small(strides[3])},
          small(N),
          small(H),
          small(W)};
}
template <typename V>
Box box_of(const Planes& planes, int64_t rows, int64_t blocks, const V& v, int unit, int threads) {
  const bool in_vectors = v.source == Source::kVectors;
  if (in_vectors) unit = kPieceColumns;
  const int vectors = in_vectors ? v.channels / vector_of(v.channels) : 1;
  const int units = small(blocks * kPieceColumns / unit) * vectors, lanes = std::min(units, 32);
  return {
      small(planes.pitch), small(planes.plane), unit, units, threads / lanes, D(lanes), D(rows)};
}
inline Tiling tiling_of(const TileCount& tiles, const Tile& tile, int64_t pieces, int64_t height) {
  return {D(tiles.channels), D(tiles.columns), D(tiles.rows), D(tile.rows),
          D(tile.columns),   D(tile.images),   small(pieces), small(height)};
}

template <typename T, int kBlocks>
auto kernel_of(Source source, int channels) {
  if (source == Source::kPlanes) {
    return channels == 1 ? convolve<T, kBlocks, Source::kPlanes, 1>
                         : convolve<T, kBlocks, Source::kPlanes, 8>;
  }
  return channels == 4   ? convolve<T, kBlocks, Source::kVectors, 4>
         : channels == 8 ? convolve<T, kBlocks, Source::kVectors, 8>
                         : convolve<T, kBlocks, Source::kVectors, 16>;
}
template <typename T>
auto kernel_of(const BandsPlan& v) {
  static_assert(kLeastBlocks == 2 && kMostBlocks == 5);
  return v.blocks == 2   ? kernel_of<T, 2>(v.source, v.channels)
         : v.blocks == 3 ? kernel_of<T, 3>(v.source, v.channels)
         : v.blocks == 4 ? kernel_of<T, 4>(v.source, v.channels)
                         : kernel_of<T, 5>(v.source, v.channels);
}

template <typename T, int kPairs, int kTaps>
auto gradient_kernel_of(Source source, int channels) {
  if (source == Source::kPlanes) {
    return channels == 1 ? sum_weights<T, kPairs, kTaps, Source::kPlanes, 1>
                         : sum_weights<T, kPairs, kTaps, Source::kPlanes, 8>;
  }
  return channels == 4 ? sum_weights<T, kPairs, kTaps, Source::kVectors, 4>
                       : sum_weights<T, kPairs, kTaps, Source::kVectors, 8>;
}
template <typename T>
auto gradient_kernel_of(const BandGradientsPlan& v) {
  if (v.pairs == 3) return gradient_kernel_of<T, 3, 4>(v.source, v.channels);
  if (v.pairs == 2) {
    return v.taps == 4 ? gradient_kernel_of<T, 2, 4>(v.source, v.channels)
                       : gradient_kernel_of<T, 2, 5>(v.source, v.channels);
  }
  return v.taps == 4   ? gradient_kernel_of<T, 1, 4>(v.source, v.channels)
         : v.taps == 5 ? gradient_kernel_of<T, 1, 5>(v.source, v.channels)
                       : gradient_kernel_of<T, 1, 7>(v.source, v.channels);
}

template <typename T>
void launch_convolution(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
                        cudaStream_t stream) {
  const Geometry g = geometry_of(problem);
  const auto v = plan.payload.as<BandsPlan>();
  const Tile tile = tile_of(v);
  const Work work = work_of(g, v);
  const LaunchShape shape = shape_of(work, v);
  const bool dgrad = problem.pass == Pass::kDgrad;
  const auto* in = static_cast<const T*>(dgrad ? operands.y : operands.x);
  auto* out = static_cast<T*>(dgrad ? operands.x : operands.y);
  const int out_unit = unit_of(g.out, {g.N, g.C, g.P, g.Q}, g.out_aligned);
  Params<T> p{};
  p.in = image_of(in, g.in, g.N, g.H, g.W);
  p.out = image_of(out, g.out, g.N, g.P, g.Q);
  p.weight = {static_cast<const T*>(operands.w) + g.weight_offset, g.weight_c, g.weight_r,
              g.weight_s};
  p.epilogue = operands.epilogue;
  p.is_bare = operands.epilogue.is_empty();
  p.in_box = box_of(work.in, work.in_rows, work.in.blocks, v, v.unit, shape.threads);
  p.out_box = box_of(work.in, tile.rows * kPieceRows, tile.columns, v, out_unit, shape.threads);
  p.tiling = tiling_of(work.tiles, tile, work.pieces, kPieceRows);
  p.pad_h = small(g.pad_h);
  p.pad_w = small(g.pad_w);
  p.shift = small(work.shift);
  p.R = small(g.R);
  p.S = small(g.S);
  p.sections = small(work.sections);
  p.filter_pitch = small(work.filter_pitch);
  p.filter = small(work.filter);
  p.filter_rows = D(work.filter_rows);
  p.filter_line = D(work.filter_pitch / 4);
  p.items = D(work.items);
  p.channels_at_once = small(work.channels_at_once);
  p.tiles = small(work.tiles.of_a_channel());
  p.each = small(ceil_divide(p.tiles, v.shares));
  p.buffer = small(work.buffer);
  p.zeros = small(work.zeros);
  start("depthwise", {shape.blocks, shape.threads, shape.shared_bytes, stream}, kernel_of<T>(v), p);
}

template <typename T>
void launch_gradient(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
                     const LaunchContext& context) {
  const Geometry g = geometry_of(problem);
  const auto v = plan.payload.as<BandGradientsPlan>();
  const GradientWork work = gradient_work_of(g, v);
  const LaunchShape shape = shape_of(problem, work, plan.splits);
  const int dy_unit = unit_of(g.out, {g.N, g.C, g.P, g.Q}, g.out_aligned);
  GradientParams<T> p{};
  p.x = image_of(static_cast<const T*>(operands.x), g.in, g.N, g.H, g.W);
  p.dy = image_of(static_cast<const T*>(operands.y), g.out, g.N, g.P, g.Q);
  p.x_box = box_of(work.x, work.x.rows, work.x.blocks, v, v.unit, shape.threads);
  p.dy_box = box_of(work.dy, work.dy.rows, work.dy.blocks, v, dy_unit, shape.threads);
  p.tiling = tiling_of(work.tiles, tile_of(v), work.pieces, v.height);
  p.pad_h = small(g.pad_h);
  p.pad_w = small(g.pad_w);
  p.shift = small(work.shift);
  p.R = small(g.R);
  p.S = small(g.S);
  p.sections = small(work.sections);
  p.by_R = D(g.R);
  p.by_S = D(g.S);
  p.tap_rows = D(ceil_divide(g.R, v.taps));
  p.by_sections = D(work.sections);
  p.units = small(work.units);
  p.slices = small(work.slices);
  p.items = small(work.items);
  p.tiles = small(work.tiles.of_a_channel());
  p.splits = small(plan.splits);
  p.before = small(work.before);
  p.zeros = small(work.zeros);
  p.buffer = small(work.buffer);
  p.C = small(g.C);
  p.partial = static_cast<float*>(context.workspace);
  start("depthwise", {shape.blocks, shape.threads, shape.shared_bytes, context.stream},
        gradient_kernel_of<T>(v), p);
  Start next{ceil_divide(problem.w_count(), kPartThreads), kPartThreads};
  next.stream = context.stream;
  next.early = true;
  start("depthwise: the parts of the weight gradient", next, add_gradients<T>, p,
        Filters<T>{static_cast<T*>(operands.w), g.weight_c, g.weight_r, g.weight_s});
}

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  if (problem.pass == Pass::kWgrad) {
    launch_gradient<T>(problem, plan, operands, context);
  } else {
    launch_convolution<T>(problem, plan, operands, context.stream);
  }
}

}  // namespace customconv::depthwise::bands
