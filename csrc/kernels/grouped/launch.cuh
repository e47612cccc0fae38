// What both launchers need: of slots (launch_slots.cuh) and of boxes (launch_boxes.cuh).
#pragma once

#include <algorithm>

#include "kernels/common/aligned.cuh"
#include "kernels/common/parts.cuh"
#include "kernels/common/start.h"
#include "kernels/grouped/gradient.cuh"
#include "kernels/grouped/input.cuh"
#include "kernels/launch.h"

namespace customconv::grouped {

inline AxisParams axis_params(const Axis& axis, int kept, int most) {
  AxisParams p{};
  p.in = axis.in;
  p.out = axis.out;
  p.positions = axis.positions;
  p.step = axis.step;
  p.first = axis.first;
  p.phases = axis.phases;
  p.kept = kept;
  p.class_step = axis.class_step;
  p.most = most;
  std::copy(std::begin(axis.taps), std::end(axis.taps), std::begin(p.taps));
  std::transform(std::begin(axis.taps), std::end(axis.taps), std::begin(p.by_count),
                 [](const Taps& taps) { return Divider<int32_t>(std::max(taps.count, 1)); });
  p.by_kept = Divider<int32_t>(kept);
  p.by_step = Divider<int32_t>(axis.step);
  p.by_class_step = Divider<int32_t>(axis.class_step);
  return p;
}

inline TileParams tile_params(const Geometry& g, const Tile& tile) {
  using D = Divider<int32_t>;
  TileParams p{};
  p.h = axis_params(g.h, tile.kept_rows, tile.rows);
  p.w = axis_params(g.w, tile.kept_columns, tile.columns);
  p.N = static_cast<int>(g.N);
  p.images = tile.images;
  p.pixels = tile.pixels();
  p.slots = tile.slots;
  p.classes = tile.classes;
  p.class_slots = tile.class_slots;
  p.rows = D(tile.rows);
  p.columns = D(tile.columns);
  p.pitch = D(tile.pitch);
  p.kept_rows = D(tile.image_slots / tile.pitch);
  const TileCounts tiles = tile_counts(g, tile);
  p.tiles = static_cast<int>(tiles.all());
  p.tiles_p = D(tiles.p);
  p.tiles_q = D(tiles.q);
  return p;
}

// `step`: channels from where one block's begin to where another's do.
template <typename T>
Image<T> make_image(const T* data, const Shape5& strides, const Shape5& sizes, int64_t channels,
                    int64_t sets, int64_t step) {
  constexpr int64_t kPiece = 16 / sizeof(T);
  Image<T> image{data,
                 strides[0],
                 strides[1],
                 strides[2],
                 strides[3],
                 static_cast<int>(channels),
                 static_cast<int>(sets),
                 false};
  image.vectors = is_aligned(data, 16) && strides[1] == 1 && step % kPiece == 0 &&
                  channels * sets % kPiece == 0;
  for (const int axis : {0, 2, 3}) {
    if (sizes[axis] > 1 && strides[axis] % kPiece != 0) image.vectors = false;
  }
  return image;
}

inline Start start_of(const LaunchShape& shape, cudaStream_t stream, bool early, int cluster = 1) {
  return {shape.blocks, shape.threads, shape.shared_bytes, stream, early, cluster};
}

inline GradientShares make_shares(const Geometry& g, const GradientCut& cut,
                                  const ConvProblem& problem, int pixel_warps, int cluster,
                                  int64_t splits, void* partial) {
  using D = Divider<int32_t>;
  GradientShares s{};
  s.partial = static_cast<float*>(partial);
  s.groups = static_cast<int>(g.groups);
  s.K = static_cast<int>(g.K);
  s.C = static_cast<int>(g.C);
  s.kernel = static_cast<int>(g.kernel);
  s.cut = cut;
  s.pixel_warps = pixel_warps;
  s.splits = static_cast<int>(splits);
  s.cluster = D(cluster);
  s.slices = D(cut.slices);
  s.octet_parts = D(cut.octet_parts);
  s.column_parts = D(cut.column_parts);
  s.tap_parts = D(cut.tap_parts);
  s.by_octets = D(cut.octets);
  s.by_C = D(g.C);
  s.by_K = D(g.K);
  s.by_S = D(problem.S);
  s.by_pixel_warps = D(s.pixel_warps);
  s.by_pair_warps = D(cut.pair_warps);
  s.by_column_warps = D(cut.column_warps);
  return s;
}

// So many parts of each sum, to the weight gradient.
template <typename T, typename Place>
void add_parts_up(const LaunchContext& context, int64_t count, int64_t parts, void* to,
                  const Place& place) {
  add_up("grouped: the parts of the weight gradient", static_cast<const float*>(context.workspace),
         count, parts, static_cast<T*>(to), place, /*early=*/true, context.stream);
}

}  // namespace customconv::grouped
