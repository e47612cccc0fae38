// Launches the kernels whose threads bring slots.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/common/check.h"
#include "kernels/common/weight_place.cuh"
#include "kernels/grouped/convolve.cuh"
#include "kernels/grouped/gradient.cuh"
#include "kernels/grouped/launch.cuh"
#include "kernels/grouped/pack.cuh"

namespace customconv::grouped {

// Channels from where one block's begin to where another's do, which read so many units of each of
// some sets.
template <typename T>
int64_t step_of(int64_t channels, int64_t sets, int64_t units) {
  constexpr int64_t kElements = kUnitBytes / sizeof(T);
  if (units * kElements == channels) return sets * channels;
  return units % 2 == 0 ? channels : 1;
}

template <typename T>
using KernelOf = void (*)(Params<T>);
template <typename T>
using GradientKernelOf = void (*)(GradientParams<T>);

template <typename T, size_t... kIndex>
KernelOf<T> kernel_at(int index, std::index_sequence<kIndex...>) {
  static constexpr KernelOf<T> kTable[] = {convolve<T, static_cast<int>(kIndex)>...};
  return kTable[index];
}

template <typename T, size_t... kIndex>
GradientKernelOf<T> gradient_kernel_at(int index, std::index_sequence<kIndex...>) {
  static constexpr GradientKernelOf<T> kTable[] = {sum_weights<T, static_cast<int>(kIndex)>...};
  return kTable[index];
}

template <typename T>
Filter<T> make_filter(const Geometry& g, const Tile& tile, const T* weight) {
  return {weight,
          g.weight_group,
          g.weight_k,
          g.weight_c,
          g.weight_r,
          g.weight_s,
          static_cast<int>(g.groups),
          static_cast<int>(g.C),
          static_cast<int>(g.K),
          axis_params(g.h, tile.kept_rows, 0),
          axis_params(g.w, tile.kept_columns, 0)};
}

template <typename T>
void pack(const Geometry& g, const Work& work, const T* weight, void* packed, cudaStream_t stream) {
  WeightParams<T> p{};
  p.filter = make_filter(g, work.tile, weight);
  p.work = work;
  p.all = weight_bytes(work) / 16;
  p.slice_lanes = p.all / work.slices;
  p.table = static_cast<int>(work.table_steps * kStepUnits);
  if (p.all == 0) return;
  pack_weights<T><<<static_cast<unsigned>(ceil_divide(p.all + p.table, kPackThreads)), kPackThreads,
                    0, stream>>>(p, static_cast<uint4*>(packed));
  check_launch("grouped: the weights");
}

template <typename T>
void launch_gradient_slots(const ConvProblem& problem, const ConvPlan& plan,
                           const Operands& operands, const LaunchContext& context) {
  using D = Divider<int32_t>;
  const Geometry g = geometry_of(problem);
  const auto way = plan.payload.as<SlotGradientsPlan>();
  const Tile tile = tile_of(g, way.tile[2], way.tile[0], way.tile[1]);
  const GradientWork work = gradient_work_of(g, way, tile, sizeof(T));
  const GradientCut& cut = work.cut;
  const int64_t units = kOctet * sizeof(T) / kUnitBytes;
  GradientParams<T> p{};
  p.shares = make_shares(g, cut, problem, way.pixel_warps, /*cluster=*/1,
                         plan.splits / way.pixel_warps, context.workspace);
  p.work = work;
  p.tile = tile_params(g, tile);
  p.in = make_image(static_cast<const T*>(operands.x), g.in, problem.x_sizes(), cut.C, cut.all_sets,
                    step_of<T>(cut.C, cut.sets, cut.octets * units));
  p.out = make_image(static_cast<const T*>(operands.y), g.out, problem.y_sizes(), cut.K,
                     cut.all_sets, step_of<T>(cut.K, cut.sets, cut.columns * units));
  p.pixels = static_cast<int>(ceil_divide(tile.pixels(), kStepPixels) * kStepPixels);
  start("grouped: the weight gradient",
        start_of(shape_of(problem, work, way, plan.splits), context.stream, false),
        gradient_kernel_at<T>(way.kernel, std::make_index_sequence<kGradientKernelCount>()), p);
  const WeightPlace place{D(problem.group_C()), D(problem.K),         D(problem.S),
                          problem.w_strides[0], problem.w_strides[1], problem.w_strides[2],
                          problem.w_strides[3]};
  add_parts_up<T>(context, problem.w_count(), plan.splits, operands.w, place);
}

template <typename T>
void launch_slots(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
                  const LaunchContext& context) {
  using D = Divider<int32_t>;
  const bool backward = problem.pass == Pass::kDgrad;
  const Geometry g = geometry_of(problem);
  const auto way = plan.payload.as<SlotsPlan>();
  const Tile tile = tile_of(g, way.tile[2], way.tile[0], way.tile[1]);
  const Work work = work_of(g, way, tile, sizeof(T));
  pack(g, work, static_cast<const T*>(operands.w), context.workspace, context.stream);
  auto* x = static_cast<T*>(operands.x);
  auto* y = static_cast<T*>(operands.y);
  Params<T> p{};
  p.tile = tile_params(g, tile);
  p.in = make_image<T>(backward ? y : x, g.in, backward ? problem.y_sizes() : problem.x_sizes(),
                       g.C, g.groups, step_of<T>(g.C, work.groups, work.units));
  p.out = backward ? x : y;
  p.out_n = g.out[0];
  p.out_c = g.out[1];
  p.out_h = g.out[2];
  p.out_w = g.out[3];
  p.weights = static_cast<const uint4*>(context.workspace);
  p.table = reinterpret_cast<const int*>(static_cast<const char*>(context.workspace) +
                                         weight_bytes(work));
  p.epilogue = operands.epilogue;
  p.K = static_cast<int>(g.K);
  p.work = work;
  p.pixel_warps = way.pixel_warps;
  p.passes = way.passes;
  p.finishes = !operands.epilogue.is_empty();
  p.planar = is_planar(g);
  p.tile_blocks = way.tile_blocks;
  const int64_t width = 16 / sizeof(T), across = work.parts > 1 ? g.K : work.groups * g.K;
  const Image<T> out = make_image<T>(p.out, g.out, backward ? problem.x_sizes() : problem.y_sizes(),
                                     g.K, g.groups, across);
  p.store_width = static_cast<int>(out.vectors ? width : 1);
  const int64_t stored = std::min<int64_t>(g.K, work.channel_tiles * kChannelTile) * work.groups;
  while (p.store_shift < 5 && (p.store_width << p.store_shift) < stored) ++p.store_shift;
  p.slices = D(work.slices);
  p.parts = D(work.parts);
  start("grouped", start_of(shape_of(work, way), context.stream, work.packed_steps > 0),
        kernel_at<T>(way.kernel, std::make_index_sequence<kKernelCount>()), p);
}

}  // namespace customconv::grouped
