// The kernels of planes and their launcher.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/depthwise/kinds.h"
#include "kernels/depthwise/planes/convolve.cuh"
#include "kernels/depthwise/planes/gradient.cuh"
#include "kernels/depthwise/start.cuh"

namespace customconv::depthwise::planes {

template <typename T>
using KernelOf = void (*)(Params<T>);

template <typename T, bool kOfWeights, int kIndex>
constexpr KernelOf<T> one_kernel() {
  constexpr Variant v = Variant::at(kIndex);
  if constexpr (!has_kernel(v, sizeof(T))) {
    return nullptr;
  } else if constexpr (!kOfWeights) {
    return convolve<T, kIndex>;
  } else if constexpr (v.walk == Walk::kNext || v.walk == Walk::kSecond) {
    return sum_weights<T, kIndex>;
  } else {
    return nullptr;
  }
}
template <typename T, bool kOfWeights, size_t... kIndex>
KernelOf<T> kernel_at(int index, std::index_sequence<kIndex...>) {
  static constexpr KernelOf<T> kTable[] = {
      one_kernel<T, kOfWeights, static_cast<int>(kIndex)>()...};
  return kTable[index];
}

template <typename T>
Params<T> make_params(const depthwise::Geometry& g, const PlanesPlan& plan, const Tile& tile,
                      const T* in, T* weight, T* out, const Epilogue& epilogue) {
  using D = Divider<int32_t>;
  const auto small = [](int64_t value) { return static_cast<int>(value); };
  Params<T> p{};
  p.in = in;
  p.weight = weight;
  p.out = out;
  p.epilogue = epilogue;
  p.in_count = g.N * g.K * g.H * g.W;
  p.out_count = g.N * g.K * g.P * g.Q;
  p.in_lead = small(reinterpret_cast<uintptr_t>(in) % 16 / sizeof(T));
  p.out_lead = small(reinterpret_cast<uintptr_t>(out) % 16 / sizeof(T));
  p.H = small(g.H);
  p.W = small(g.W);
  p.P = small(g.P);
  p.Q = small(g.Q);
  p.first_h = first_input(plan.walk, plan.taps, small(g.pad_h));
  p.first_w = first_input(plan.walk, plan.taps, small(g.pad_w));
  p.planes = small(g.N * g.K);
  p.tile_planes = tile.planes;
  p.tile_rows = tile.rows;
  p.tiles = small(tile.count);
  p.paired = g.Q % 2 == 0 && reinterpret_cast<uintptr_t>(out) % 4 == 0;
  p.finishes = !epilogue.is_empty();
  p.channels = D(g.K);
  p.bands = D(tile.bands);
  p.row_strips = D(tile.row_strips);
  p.column_strips = D(tile.column_strips);
  p.N = small(g.N);
  p.steps = small(tile.steps);
  p.tile_images = D(tile.images);
  p.in_run = small(run_bytes(tile.in_elements, sizeof(T)));
  p.out_run = small(run_bytes(tile.out_elements, sizeof(T)));
  p.stages = plan.stages;
  const Places places = places_of(g, tile, p.stages, sizeof(T));
  p.stage_bytes = small(places.stage);
  p.out_at = small(places.out);
  p.zeros_at = small(places.zeros);
  p.out_bytes = small(places.a_out);
  return p;
}

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  const depthwise::Geometry geometry = depthwise::geometry_of(problem);
  constexpr auto kAll = std::make_index_sequence<kVariantCount>();
  using D = Divider<int32_t>;
  const auto way = plan.payload.as<PlanesPlan>();
  const Tile tile = tile_of(geometry, way);
  LaunchShape shape = shape_of(problem, geometry, tile, way.stages, plan.splits);
  shape.blocks = std::min(shape.blocks, plan.blocks);
  const Tensors<T> tensors(problem.pass, operands);
  Params<T> params = make_params<T>(geometry, way, tile, tensors.in, tensors.weight, tensors.out,
                                    operands.epilogue);
  params.splits = D(plan.splits);
  params.partial = parts_of(shape, context);
  const int index = variant_of(way, sizeof(T)).index();
  const KernelOf<T> kernel = problem.pass == Pass::kWgrad ? kernel_at<T, true>(index, kAll)
                                                          : kernel_at<T, false>(index, kAll);
  start_plan(shape, plan.splits, context, kernel, params, tensors.weight, problem.w_count(),
             {D(1), D(problem.K), D(problem.S), geometry.weight_k, 0, geometry.weight_r,
              geometry.weight_s});
}

}  // namespace customconv::depthwise::planes
