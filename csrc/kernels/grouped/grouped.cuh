// The grouped family's launcher.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/common/check.h"
#include "kernels/common/parts.cuh"
#include "kernels/common/start.h"
#include "kernels/grouped/convolve.cuh"
#include "kernels/grouped/gradient.cuh"
#include "kernels/grouped/pack.cuh"
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
  p.by_kept = Divider<int32_t>(kept);
  return p;
}

inline TileParams tile_params(const Geometry& g, const Tile& tile, int64_t tiles_p,
                              int64_t tiles_q) {
  using D = Divider<int32_t>;
  TileParams p{};
  p.h = axis_params(g.h, tile.kept_rows, tile.rows);
  p.w = axis_params(g.w, tile.kept_columns, tile.columns);
  p.N = static_cast<int>(g.N);
  p.images = tile.images;
  p.pixels = tile.pixels();
  p.slots = tile.slots;
  p.rows = D(tile.rows);
  p.columns = D(tile.columns);
  p.pitch = D(tile.pitch);
  p.kept_rows = D(tile.image_slots / tile.pitch);
  p.tiles_p = D(tiles_p);
  p.tiles_q = D(tiles_q);
  return p;
}

template <typename T>
bool is_aligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

// `step`: channels from where one block's begin to where another's do.
template <typename T>
Image<T> make_image(const T* data, const Shape4& strides, const Shape4& sizes, int64_t channels,
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
  image.vectors =
      is_aligned(data) && strides[1] == 1 && step % kPiece == 0 && channels * sets % kPiece == 0;
  for (const int axis : {0, 2, 3}) {
    if (sizes[axis] > 1 && strides[axis] % kPiece != 0) image.vectors = false;
  }
  return image;
}
// The same where blocks read so many units of each of some sets at a time.
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

inline Start start_of(const ConvPlan& plan, cudaStream_t stream, bool early) {
  return {plan.grid[0], plan.block, plan.shared_bytes, stream, early};
}

template <typename T>
void pack(const Geometry& g, const Work& work, const T* weight, void* packed, cudaStream_t stream) {
  WeightParams<T> p{};
  p.weight = weight;
  p.group_stride = g.weight_group;
  p.k_stride = g.weight_k;
  p.c_stride = g.weight_c;
  p.r_stride = g.weight_r;
  p.s_stride = g.weight_s;
  p.groups = static_cast<int>(g.groups);
  p.C = static_cast<int>(g.C);
  p.K = static_cast<int>(g.K);
  p.parts = work.parts;
  p.slice_groups = work.groups;
  p.channel_tiles = work.channel_tiles;
  p.units = work.units;
  p.chunks = work.chunks;
  p.h = axis_params(g.h, work.tile.kept_rows, 0);
  p.w = axis_params(g.w, work.tile.kept_columns, 0);
  p.pitch = work.tile.pitch;
  p.plane = work.plane;
  p.slot_bytes = work.slot_bytes;
  p.all = weight_bytes(work) / 16;
  p.slice_lanes = p.all / work.slices;
  p.table = static_cast<int>(work.table_steps * kStepUnits);
  if (p.all == 0) return;
  pack_weights<T><<<static_cast<unsigned>(ceil_divide(p.all + p.table, kPackThreads)), kPackThreads,
                    0, stream>>>(p, static_cast<uint4*>(packed));
  check_launch("grouped: the weights");
}

// Where the weight is that has a number by tap, k and c.
struct WeightPlace {
  Divider<int32_t> by_C, by_K, by_S;
  int64_t k, c, r, s;  // strides

  __device__ int64_t operator()(int64_t number) const {
    auto rest = static_cast<int32_t>(number);
    const int own_c = by_C.split(rest);
    const int own_k = by_K.split(rest);
    const int own_s = by_S.split(rest);
    return own_k * k + own_c * c + own_s * s + rest * r;
  }
};

template <typename T>
void launch_gradient(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
                     const LaunchContext& context) {
  using D = Divider<int32_t>;
  const Geometry g = geometry_of(problem);
  const Tile tile = tile_of(g, plan.tile[2], plan.tile[0], plan.tile[1]);
  const Variant variant = Variant::at(plan.variant_index);
  const GradientWork work = gradient_work_of(g, variant, tile, sizeof(T), plan.shared_bytes);
  const int64_t sets = g.groups / work.pack, units = kOctet * sizeof(T) / kUnitBytes;
  const int64_t C = work.pack * g.C, K = work.pack * g.K;
  GradientParams<T> p{};
  p.tile = tile_params(g, tile, work.tiles_p, work.tiles_q);
  p.in = make_image(static_cast<const T*>(operands.x), g.in, problem.x_sizes(), C, sets,
                    step_of<T>(C, work.sets, work.octets * units));
  p.out = make_image(static_cast<const T*>(operands.y), g.out, problem.y_sizes(), K, sets,
                     step_of<T>(K, work.sets, work.columns * units));
  p.partial = static_cast<float*>(context.workspace);
  p.K = static_cast<int>(g.K);
  p.C = static_cast<int>(g.C);
  p.kernel = static_cast<int>(g.kernel);
  p.sets = work.sets;
  p.octets = work.octets;
  p.columns = work.columns;
  p.taps = work.taps;
  p.pair_warps = work.pair_warps;
  p.column_warps = work.column_warps;
  p.pixel_warps = variant.pixel_warps();
  p.plane = work.plane;
  p.out_plane = work.out_plane;
  p.pixels = static_cast<int>(ceil_divide(tile.pixels(), kStepPixels) * kStepPixels);
  p.tiles = static_cast<int>(work.tiles_n * work.tiles_p * work.tiles_q);
  p.splits = static_cast<int>(plan.splits / p.pixel_warps);
  p.slices = D(work.slices);
  p.octet_parts = D(work.octet_parts);
  p.column_parts = D(work.column_parts);
  p.tap_parts = D(work.tap_parts);
  p.rows = work.rows;
  p.by_octets = D(work.octets);
  p.by_C = D(g.C);
  p.by_K = D(g.K);
  p.by_S = D(problem.S);
  start("grouped: the weight gradient", start_of(plan, context.stream, false),
        gradient_kernel_at<T>(variant.kernel, std::make_index_sequence<kGradientKernelCount>()), p);
  const WeightPlace place{D(g.C),
                          D(problem.K),
                          D(problem.S),
                          problem.w_strides[0],
                          problem.w_strides[1],
                          problem.w_strides[2],
                          problem.w_strides[3]};
  add_up("grouped: the parts of the weight gradient", p.partial, problem.w_count(), plan.splits,
         static_cast<T*>(operands.w), place, /*early=*/true, context.stream);
}

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  using D = Divider<int32_t>;
  if (problem.pass == Pass::kWgrad) {
    launch_gradient<T>(problem, plan, operands, context);
    return;
  }
  const bool backward = problem.pass == Pass::kDgrad;
  const Geometry g = geometry_of(problem);
  const Tile tile = tile_of(g, plan.tile[2], plan.tile[0], plan.tile[1]);
  const Variant variant = Variant::at(plan.variant_index);
  const Work work = work_of(g, variant, tile, sizeof(T), plan.shared_bytes);
  pack(g, work, static_cast<const T*>(operands.w), context.workspace, context.stream);
  auto* x = static_cast<T*>(operands.x);
  auto* y = static_cast<T*>(operands.y);
  Params<T> p{};
  p.tile = tile_params(g, tile, work.tiles_p, work.tiles_q);
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
  p.slice_steps = work.packed_steps;
  p.epilogue = operands.epilogue;
  p.K = static_cast<int>(g.K);
  p.slice_groups = work.groups;
  p.channel_tiles = work.channel_tiles;
  p.units = work.units;
  p.chunks = work.chunks;
  p.steps = work.steps;
  p.channel_warps = work.channel_warps;
  p.pixel_warps = variant.pixel_warps();
  p.passes = 1 << variant.passes;
  p.slot_bytes = work.slot_bytes;
  p.plane = work.plane;
  p.staged_pitch = work.staged_pitch;
  p.list_at = work.list_at;
  p.table_at = work.table_at;
  p.input_at = work.input_at;
  p.input_bytes = work.input_bytes;
  p.threads = work.threads;
  p.weights_at = work.weights_at;
  p.sums_at = work.sums_at;
  p.resident = work.resident;
  p.finishes = !operands.epilogue.is_empty();
  p.planar = is_planar(g);
  p.tiles = static_cast<int>(work.tiles_n * work.tiles_p * work.tiles_q);
  p.tile_blocks = static_cast<int>(plan.grid[0] / work.slices);
  const int64_t width = 16 / sizeof(T), across = work.parts > 1 ? g.K : work.groups * g.K;
  const Image<T> out = make_image<T>(p.out, g.out, backward ? problem.x_sizes() : problem.y_sizes(),
                                     g.K, g.groups, across);
  p.store_width = static_cast<int>(out.vectors ? width : 1);
  const int64_t stored = std::min<int64_t>(g.K, work.channel_tiles * kChannelTile) * work.groups;
  while (p.store_shift < 5 && (p.store_width << p.store_shift) < stored) ++p.store_shift;
  p.slices = D(work.slices);
  p.parts = D(work.parts);
  start("grouped", start_of(plan, context.stream, work.packed_steps > 0),
        kernel_at<T>(variant.kernel, std::make_index_sequence<kKernelCount>()), p);
}

}  // namespace customconv::grouped
