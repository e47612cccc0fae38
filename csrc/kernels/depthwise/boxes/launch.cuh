// The launcher of boxes.
#pragma once

#include <algorithm>

#include "kernels/common/map.cuh"
#include "kernels/depthwise/boxes/convolve.cuh"
#include "kernels/depthwise/boxes/gradient.cuh"
#include "kernels/depthwise/kinds.h"
#include "kernels/depthwise/start.cuh"

namespace customconv::depthwise::boxes {

template <typename T>
using KernelOf = void (*)(Params<T>);

template <typename T, Walk kWalk, bool kFinishes>
KernelOf<T> convolve_of(int taps) {
  if constexpr (kWalk == Walk::kAny) {
    return taps == 1 ? convolve<T, kWalk, 1, kFinishes> : convolve<T, kWalk, kBand, kFinishes>;
  } else {
    return taps == 3   ? convolve<T, kWalk, 3, kFinishes>
           : taps == 5 ? convolve<T, kWalk, 5, kFinishes>
                       : convolve<T, kWalk, 7, kFinishes>;
  }
}
template <typename T, Walk kWalk>
KernelOf<T> sum_weights_of(int taps) {
  return taps == 3   ? sum_weights<T, kWalk, 3>
         : taps == 5 ? sum_weights<T, kWalk, 5>
                     : sum_weights<T, kWalk, 7>;
}
template <typename T>
KernelOf<T> kernel_of(const Geometry& g, bool finishes) {
  const int taps = taps_of(g);
  const bool next = g.walk == Walk::kNext;
  if (g.of_weights) {
    return next ? sum_weights_of<T, Walk::kNext>(taps) : sum_weights_of<T, Walk::kSecond>(taps);
  }
  // An input gradient has no epilogue.
  if (g.walk == Walk::kHalf) return convolve_of<T, Walk::kHalf, false>(taps);
  if (finishes) {
    return next                      ? convolve_of<T, Walk::kNext, true>(taps)
           : g.walk == Walk::kSecond ? convolve_of<T, Walk::kSecond, true>(taps)
                                     : convolve_of<T, Walk::kAny, true>(taps);
  }
  return next                      ? convolve_of<T, Walk::kNext, false>(taps)
         : g.walk == Walk::kSecond ? convolve_of<T, Walk::kSecond, false>(taps)
                                   : convolve_of<T, Walk::kAny, false>(taps);
}

// Boxes of an image, of pixels or of rows of pixels.
template <typename T>
CUtensorMap map_image(const T* data, const Geometry& g, const Shape5& strides, int H, int W,
                      const Tile& tile, const Boxed& boxed) {
  using Size = cuuint64_t;
  using Box = cuuint32_t;
  const auto type = kExactMapType<T>;
  const Size row = map_stride<T>(H, strides[2]), image = map_stride<T>(g.N, strides[0]);
  const auto height = static_cast<Size>(H), count = static_cast<Size>(g.N);
  const auto rows = static_cast<Box>(boxed.rows), images = static_cast<Box>(tile.images);
  if (tile.merged) {
    const Boxes<3> boxes{{static_cast<Size>(W * g.C), height, count},
                         {row, image},
                         {static_cast<Box>(boxed.columns * tile.channels), rows, images},
                         {1, 1, 1}};
    return make_map(data, type, boxes, CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  const Boxes<4> boxes{
      {static_cast<Size>(g.C), static_cast<Size>(W), height, count},
      {map_stride<T>(W, strides[3]), row, image},
      {static_cast<Box>(tile.channels), static_cast<Box>(boxed.columns), rows, images},
      {1, 1, 1, 1}};
  return make_map(data, type, boxes, CU_TENSOR_MAP_SWIZZLE_NONE);
}

inline BoxParams box_params(const Boxed& boxed, int pixel_bytes) {
  const int row_bytes = boxed.columns * pixel_bytes;
  return {Divider<int32_t>(boxed.columns), boxed.count, row_bytes,
          boxed.rows * row_bytes,          boxed.bytes, boxed.all_bytes};
}

template <typename T>
Params<T> make_params(const Geometry& g, const Work& work, const T* in, T* weight, T* out,
                      const Epilogue& epilogue) {
  using D = Divider<int32_t>;
  const Tile& tile = work.tile;
  Params<T> p{};
  p.in = map_image(in, g, g.in, g.h.in, g.w.in, tile, work.in);
  if (g.of_weights) p.gradient = map_image(out, g, g.out, g.h.out, g.w.out, tile, work.out);
  p.out = out;
  p.out_n = g.out[0];
  p.out_h = g.out[2];
  p.out_w = g.out[3];
  p.weight = weight + g.weight_offset;
  p.weight_k = g.weight_k;
  p.weight_r = g.weight_r;
  p.weight_s = g.weight_s;
  p.epilogue = epilogue;
  p.N = static_cast<int>(g.N);
  p.C = static_cast<int>(g.C);
  p.h = g.h;
  p.w = g.w;
  p.work = work;
  p.patch_rows = tile.rows * tile.images;
  p.pixel_bytes = tile.channels * static_cast<int>(sizeof(T));
  p.in_box = box_params(work.in, p.pixel_bytes);
  if (g.of_weights) p.out_box = box_params(work.out, p.pixel_bytes);
  p.tiles = static_cast<int>(work.tiles());
  p.pairs = D(work.pairs);
  p.rows = D(tile.rows);
  p.columns = D(tile.columns);
  p.tiles_h = D(work.tiles_h);
  p.tiles_w = D(work.tiles_w);
  p.kernel = D(g.h.taps * g.w.taps);
  p.by_S = D(g.w.taps);
  return p;
}

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  using D = Divider<int32_t>;
  const Geometry g = geometry_of(problem);
  const auto way = plan.payload.as<BoxesPlan>();
  const Work work = work_of(g, way, sizeof(T));
  const LaunchShape shape = shape_of(problem, work, way, plan.splits);
  const Tensors<T> tensors(problem.pass, operands);
  Params<T> params =
      make_params<T>(g, work, tensors.in, tensors.weight, tensors.out, operands.epilogue);
  params.tile_blocks = way.tile_blocks;
  params.partial = parts_of(shape, context);
  params.clustered = way.clustered;
  params.neighbours = D(params.clustered ? plan.splits : work.chunks);
  start_plan(shape, plan.splits, context, kernel_of<T>(g, !operands.epilogue.is_empty()), params,
             tensors.weight, problem.w_count(),
             {D(1), D(problem.K), D(problem.S), g.weight_k, 0, g.weight_r, g.weight_s},
             /*early=*/problem.pass != Pass::kWgrad, way.clustered ? way.tile_blocks : 1);
}

}  // namespace customconv::depthwise::boxes
