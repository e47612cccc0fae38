// The launcher of weight gradients.
#pragma once

#include <algorithm>

#include "kernels/common/map.cuh"
#include "kernels/common/start.h"
#include "kernels/implicit_gemm/wgrad/launch.h"
#include "kernels/implicit_gemm/wgrad/parts.cuh"
#include "kernels/implicit_gemm/wgrad/planes/launch.h"
#include "kernels/implicit_gemm/wgrad/registers/launch.h"
#include "kernels/implicit_gemm/wgrad/sums.cuh"

namespace customconv::implicit_gemm::wgrad {

// Boxes of a channels-last tensor: so many columns, rows and images, `steps` pixels from one that
// is taken to the next.
template <typename T>
CUtensorMap map_pixels(const T* data, const Shape5& sizes, const Shape5& strides,
                       const int (&counts)[3], const int (&steps)[3]) {
  const auto size = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const auto count = [](int64_t value) { return static_cast<cuuint32_t>(value); };
  const auto reach = [&](int i) { return count((counts[i] - 1) * steps[i] + 1); };
  const Boxes<4> boxes{{size(sizes[1]), size(sizes[3]), size(sizes[2]), size(sizes[0])},
                       {map_stride<T>(sizes[3], strides[3]), map_stride<T>(sizes[2], strides[2]),
                        map_stride<T>(sizes[0], strides[0])},
                       {kBlock, reach(0), reach(1), reach(2)},
                       {1, count(steps[0]), count(steps[1]), count(steps[2])}};
  return make_map(data, kMapType<T>, boxes);
}

template <typename T>
void launch(const ConvProblem& asked, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  using D = Divider<int32_t>;
  if (plan.payload.kind() == PlanKind::implicit_gemm_wgrad_planes) {
    return planes::launch<T>(asked, plan, operands, context);
  }
  if (plan.payload.kind() == PlanKind::implicit_gemm_wgrad_registers) {
    return registers::launch<T>(asked, plan, operands, context);
  }
  const ConvProblem problem = as_one_row(asked);
  const Tile t = make_tile(problem, plan.payload.as<BoxesPlan>(), plan.splits);
  const LaunchShape shape = shape_of(problem, t);
  const auto* x = static_cast<const T*>(operands.x);
  const auto* y = static_cast<const T*>(operands.y);
  Params<T> p{};
  const Shape5 &x_sizes = problem.x_sizes(), &x_strides = problem.x_strides;
  const Shape5 &y_sizes = problem.y_sizes(), &y_strides = problem.y_strides;
  const auto step_w = static_cast<int>(problem.stride_w);
  // A box's columns, rows and images.
  const auto read = [](Fill fill, const T* data, const Shape5& sizes, const Shape5& strides,
                       const int (&counts)[3], const int (&steps)[3], CUtensorMap& map,
                       Filled<T>& filled, Transposed<T>& transposed) {
    switch (fill) {
      case Fill::kNone:
        map = map_pixels(data, sizes, strides, counts, steps);
        break;
      case Fill::kUnits:
        filled = fill_pixels(data, sizes, strides, kPixelOrder, counts, steps);
        break;
      default:
        transposed = transpose_pixels(fill, data, sizes, strides, counts, steps);
    }
  };
  read(t.fill_x, x, x_sizes, x_strides, {t.x_columns, t.x_rows, t.images}, {step_w, t.step_h, 1},
       p.x, p.filled_x, p.transposed[0]);
  read(t.fill_y, y, y_sizes, y_strides, {t.columns, t.rows, t.images}, {1, 1, 1}, p.y, p.filled_y,
       p.transposed[1]);
  p.transposes = t.transposes();

  const auto y_row = static_cast<uint32_t>(t.columns * kRowBytes);
  const auto x_row = static_cast<uint32_t>(t.x_columns * kRowBytes);
  constexpr uint32_t kRunBytes = kRun * kRowBytes;
  Loop images{t.images, t.rows * y_row, t.x_rows * x_row};
  Loop rows{t.rows, y_row, t.row_step * x_row};
  Loop runs{t.columns / kRun, kRunBytes, kRunBytes};
  Loop& paired = t.rows % 2 == 0 ? rows : t.images % 2 == 0 ? images : runs;
  p.y_pair = paired.y_step;
  p.x_pair = paired.x_step;
  paired = {paired.count / 2, paired.y_step * 2, paired.x_step * 2};
  p.loops[0] = images;
  p.loops[1] = rows;
  p.loops[2] = runs;
  std::sort(p.loops, p.loops + 3, [](const Loop& a, const Loop& b) { return a.count < b.count; });

  const int64_t x_box = t.x_box_bytes, y_box = t.y_box_bytes;
  p.column_step = static_cast<uint32_t>(t.by_taps ? t.tap_step * kRowBytes : x_box);
  p.filter_row = static_cast<uint32_t>(problem.dilation_h * x_row);
  p.x_box_bytes = static_cast<int>(x_box);
  p.y_box_bytes = static_cast<int>(y_box);
  p.x_brought = t.images * t.x_rows * t.x_columns * kRowBytes;
  p.y_brought = t.pixels() * kRowBytes;
  p.x_at = static_cast<int>(t.along_k * y_box);
  p.stage_bytes = static_cast<int>(t.stage_bytes);
  p.stages = t.stages;
  p.along_rows = t.along_k;
  p.filter_rows = t.filter_rows;
  p.channel_blocks = t.channel_blocks;
  p.tap_apart = t.tap_apart;
  p.by_class_chunks = D(t.class_chunks);
  p.by_channel_blocks = D(t.channel_blocks);
  p.images = t.images;
  p.rows = t.rows;
  p.columns = t.columns;
  p.tiles = static_cast<int>(t.tiles());
  p.splits = static_cast<int>(t.splits);
  p.stride_h = static_cast<int>(problem.stride_h);
  p.stride_w = static_cast<int>(problem.stride_w);
  p.pad_h = static_cast<int>(problem.pad_h);
  p.pad_w = static_cast<int>(problem.pad_w);
  p.dilation_h = static_cast<int>(problem.dilation_h);
  p.dilation_w = static_cast<int>(problem.dilation_w);
  p.R = static_cast<int>(problem.R);
  p.S = static_cast<int>(problem.S);
  p.group_C = static_cast<int>(problem.group_C());
  p.group_K = static_cast<int>(problem.group_K());
  const int cluster = t.clustered ? p.splits : 1;
  p.by_cluster = D(cluster);
  p.by_chunks = D(t.chunks);
  p.by_filter_sets = D(t.filter_sets);
  p.by_blocks_c = D(t.blocks_c);
  p.by_blocks_k = D(t.blocks_k);
  p.by_groups = D(problem.groups);
  p.by_tiles_q = D(t.tiles_q);
  p.by_tiles_p = D(t.tiles_p);
  p.weight = static_cast<T*>(operands.w);
  p.weight_k = problem.w_strides[0];
  p.weight_c = problem.w_strides[1];
  p.weight_r = problem.w_strides[2];
  p.weight_s = problem.w_strides[3];
  const auto have_whole = [&](int64_t count) {
    const auto whole = [&](int64_t size, int64_t stride) {
      return size == 1 || stride % count == 0;
    };
    return problem.w_aligned && p.weight_c == 1 && p.group_C % count == 0 &&
           whole(problem.K, p.weight_k) && whole(problem.R, p.weight_r) &&
           whole(problem.S, p.weight_s);
  };
  p.pairs = have_whole(2);
  p.eights = have_whole(8);
  p.clustered = t.clustered;
  p.from = {is_exact(problem, t), /*halves=*/false, /*flat=*/false, x, y, problem};
  p.partial = t.clustered ? nullptr : static_cast<float4*>(context.workspace);

  static_assert(kKernelCount == 4);
  static constexpr void (*kTable[][kKernelCount])(Params<T>) = {
      {sum_weights<T, 0, false>, sum_weights<T, 1, false>, sum_weights<T, 2, false>,
       sum_weights<T, 3, false>},
      {sum_weights<T, 0, true>, sum_weights<T, 1, true>, sum_weights<T, 2, true>,
       sum_weights<T, 3, true>}};
  start("implicit_gemm: the weight gradient",
        {shape.blocks, shape.threads, shape.shared_bytes, context.stream, /*early=*/false, cluster},
        kTable[t.fills()][t.kernel], p);
  if (t.clustered) return;
  Parts<T> parts{};
  parts.sums = p;
  parts.count = static_cast<int>(blocks_of(problem, t) * t.sums() / 4);
  parts.most_taps = t.kind().blocks;
  parts.by_columns = D(t.kind().blocks);
  parts.by_warps = D(t.kind().warpgroups * 4);
  parts.by_taps = D(t.kind().blocks / t.channel_blocks);
  parts.by_filter_rows = D(t.along_k > 1 ? 1 : t.kind().warpgroups);
  parts.by_warpgroups = D(t.along_k);
  parts.taps_first = p.weight_c != 1;
  add_up(parts, context.stream);
}

}  // namespace customconv::implicit_gemm::wgrad
