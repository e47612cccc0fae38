// The launcher of channels-first weight gradients.
#pragma once

#include "kernels/common/map.cuh"
#include "kernels/implicit_gemm/wgrad/parts.cuh"
#include "kernels/implicit_gemm/wgrad/planes/launch.h"
#include "kernels/implicit_gemm/wgrad/planes/sums.cuh"

namespace customconv::implicit_gemm::wgrad::planes {

// Boxes of rows of planes: so many pixels of as many channels.
template <typename T>
CUtensorMap map_planes(const T* data, CUtensorMapDataType type, const Shape5& sizes,
                       const Shape5& strides, int columns, int channels, int rows, int images,
                       int step_h, CUtensorMapSwizzle swizzle) {
  const auto size = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const auto count = [](int64_t value) { return static_cast<cuuint32_t>(value); };
  const Boxes<4> boxes{
      {size(sizes[3]), size(sizes[1]), size(sizes[2]), size(sizes[0])},
      {map_stride<T>(sizes[1], strides[1]), map_stride<T>(sizes[2], strides[2]),
       map_stride<T>(sizes[0], strides[0])},
      {count(columns), count(channels), count((rows - 1) * step_h + 1), count(images)},
      {1, 1, count(step_h), 1}};
  return make_map(data, type, boxes, swizzle);
}

// Boxes of runs: so many pixels of as many channels, of one class.
template <typename T>
CUtensorMap map_runs(const T* data, CUtensorMapDataType type, const Shape5& sizes,
                     const Shape5& strides, int classes, int columns, int channels,
                     CUtensorMapSwizzle swizzle) {
  const auto size = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const auto count = [](int64_t value) { return static_cast<cuuint32_t>(value); };
  const Boxes<3> boxes{{size((classes - 1) * strides[1] + sizes[2] * sizes[3]),
                        size(sizes[1] / classes), size(sizes[0])},
                       {map_stride<T>(sizes[1] / classes, classes * strides[1]),
                        map_stride<T>(sizes[0], strides[0])},
                       {count(columns), count(channels), 1},
                       {1, 1, 1}};
  return make_map(data, type, boxes, swizzle);
}

inline int logarithm(int power_of_two) { return __builtin_ctz(power_of_two); }

template <typename T, int kKernel>
auto kernel_of(Fetch fetch) -> void (*)(Params<T>) {
  constexpr Kernel kKind = kKernels[kKernel];
  if constexpr (kKind.halves && sizeof(T) == 2) {
    return nullptr;
  } else {
    if constexpr (kKind.has(kByRuns)) {
      if (fetch == Fetch::kTableElements) return sum_planes<T, kKernel, Fetch::kTableElements>;
      if constexpr (sizeof(T) == 2) {
        if (fetch == Fetch::kTablePairs) return sum_planes<T, kKernel, Fetch::kTablePairs>;
      }
    }
    if constexpr (kKind.has(kByBoxes) && kKind.taps == 1) {
      if (fetch == Fetch::kSlabs) return sum_planes<T, kKernel, Fetch::kSlabs>;
    }
    if constexpr (sizeof(T) == 2) {
      if (fetch == Fetch::kPairs) return sum_planes<T, kKernel, Fetch::kPairs>;
      if (fetch == Fetch::kHalves) return sum_planes<T, kKernel, Fetch::kHalves>;
    }
    return sum_planes<T, kKernel, Fetch::kElements>;
  }
}

template <typename T>
void launch(const ConvProblem& asked, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  using D = Divider<int32_t>;
  const ConvProblem problem = as_one_row(asked);
  const Tile t = make_tile(problem, plan.payload.as<PlanesPlan>(), plan.splits);
  const LaunchShape shape = shape_of(problem, t);
  Params<T> p{};
  p.x = static_cast<const T*>(operands.x);
  p.y = static_cast<const T*>(operands.y);
  const auto narrowed = [](int64_t value) { return static_cast<int>(value); };
  p.boxed = t.boxed;
  const Fetch fetch = fetch_of(problem, t);
  p.x_in_slabs = fetch == Fetch::kSlabs;
  p.y_columns = kSlabUnits * kUnit<T>;
  // What is halved is not rounded on the way.
  const auto type = t.kind().halves ? kExactMapType<T> : kMapType<T>;
  if (t.boxed) {
    p.x_map =
        p.x_in_slabs
            ? map_planes(p.x, type, problem.x_sizes(), problem.x_strides, p.y_columns, kBlock,
                         t.rows, t.images, 1, CU_TENSOR_MAP_SWIZZLE_128B)
            : map_planes(p.x, type, problem.x_sizes(), problem.x_strides, t.x_columns, t.channels,
                         t.x_rows, t.images, t.step_h, CU_TENSOR_MAP_SWIZZLE_NONE);
    p.y_map =
        map_planes(p.y, type, problem.y_sizes(), problem.y_strides, p.y_columns,
                   t.kind().k_blocks * kBlock, t.rows, t.images, 1, CU_TENSOR_MAP_SWIZZLE_128B);
  }
  if (t.runs) {
    const int channels = t.kind().k_blocks * kBlock;
    p.x_map = map_runs(p.x, type, problem.x_sizes(), problem.x_strides, t.x_classes, t.x_columns,
                       kBlock / t.x_classes, CU_TENSOR_MAP_SWIZZLE_NONE);
    p.y_map = t.orders() ? map_runs(p.y, type, problem.y_sizes(), problem.y_strides, t.y_classes,
                                    t.y_channel / narrowed(sizeof(T)), channels / t.y_classes,
                                    CU_TENSOR_MAP_SWIZZLE_NONE)
                         : map_runs(p.y, type, problem.y_sizes(), problem.y_strides, t.y_classes,
                                    p.y_columns, channels, CU_TENSOR_MAP_SWIZZLE_128B);
  }
  p.x_n = problem.x_strides[0];
  p.x_c = problem.x_strides[1];
  p.x_h = problem.x_strides[2];
  p.y_n = problem.y_strides[0];
  p.y_k = problem.y_strides[1];
  p.y_p = problem.y_strides[2];
  for (int i = 0; i < t.steps(); ++i) {
    const Step step = t.step(i);
    p.slab_at[i] = step.slab * narrowed(t.slab_bytes) + step.place * kUnitBytes;
    if (t.runs) continue;  // a table says where its pixels are
    if (p.x_in_slabs) {
      p.unit_at[i][0] = step.slab * kSlabBytes + step.place * kUnitBytes;
      continue;
    }
    for (int j = 0; j < 2; ++j) {
      const int unit = step.units[j], line = unit / t.row_units();
      p.unit_at[i][j] = line / t.rows * t.x_image + line % t.rows * t.row_step * t.x_row +
                        unit % t.row_units() * narrowed(problem.stride_w) * kUnitBytes;
    }
  }
  p.x_classes = t.x_classes;
  p.orders = t.orders();
  p.y_classes = t.y_classes;
  p.y_channel = t.y_channel;
  p.pixels = narrowed(t.runs ? problem.P * problem.Q : 0);
  p.slabs = t.slabs;
  p.x_runs = t.x_runs;
  p.x_boxes = t.x_boxes;
  p.box_step = t.box_step;
  p.table_at = narrowed(t.y_bytes() + t.along_c * t.x_block);
  p.table_bytes = t.table_bytes;
  p.table_units = t.units();
  p.by_table_units = D(t.units());
  p.by_y_inner = D(t.steps() * 2);
  p.by_Q = D(problem.Q);
  p.by_box_step = D(std::max(t.box_step, 1));
  p.steps = t.steps();
  p.along_p = t.along_p;
  p.blocks = narrowed(blocks_of(problem, t));
  p.slab_bytes = narrowed(t.slab_bytes);
  p.x_channel = t.x_channel;
  p.x_row = t.x_row;
  p.x_image = t.x_image;
  p.x_block = narrowed(t.x_block);
  p.step_h = t.step_h;
  p.x_at = narrowed(t.y_bytes());
  p.low_y = narrowed(t.slabs * t.slab_bytes);
  p.low_x = narrowed(t.along_c * t.x_block);
  p.stage_bytes = narrowed(t.stage_bytes);
  p.stages = t.stages;
  p.brought_x = p.x_block;
  p.brought_y = t.orders() ? 0 : p.low_y;
  p.images = t.images;
  p.rows = t.rows;
  p.columns = t.columns;
  p.tiles = narrowed(t.tiles());
  p.N = narrowed(problem.N);
  p.H = narrowed(problem.H);
  p.W = narrowed(problem.W);
  p.P = narrowed(problem.P);
  p.Q = narrowed(problem.Q);
  p.stride_h = narrowed(problem.stride_h);
  p.stride_w = narrowed(problem.stride_w);
  p.pad_h = narrowed(problem.pad_h);
  p.pad_w = narrowed(problem.pad_w);
  p.dilation_h = narrowed(problem.dilation_h);
  p.dilation_w = narrowed(problem.dilation_w);
  p.by_tiles_q = D(t.tiles_q);
  p.by_tiles_p = D(t.tiles_p);
  p.x_inner = t.images * t.inside_rows.count * t.inside_units.count;
  p.first_row = t.inside_rows.first;
  p.first_unit = t.inside_units.first;
  p.has_zeros = !t.boxed && p.x_inner < t.images * t.x_rows * (t.x_columns / t.unit);
  p.y_inner = t.steps() * 2;
  p.vector = t.vector;
  p.align = t.align;
  p.raw_bytes = narrowed(t.raw_y);
  p.raw_at = narrowed(t.stages * t.stage_bytes);
  p.barriers_at = narrowed(memory_bytes(t));
  p.by_x_units = D(t.inside_units.count);
  p.by_x_rows = D(t.inside_rows.count);
  p.by_row_units = D(t.row_units());
  p.by_rows = D(t.rows);

  p.flat = t.flat;
  p.channels = t.channels;
  const ConvProblem rows = rows_of(problem, t.flat);
  p.rows_are_c = true;
  p.row_classes = logarithm(t.x_classes);
  p.along_rows = t.along_c;
  p.filter_rows = t.filter_rows;
  p.channel_blocks = t.kind().k_blocks;
  p.tap_apart = t.kind().taps > 1 ? 1 : narrowed(rows.S);
  p.by_class_chunks = D(t.kind().taps > 1 ? t.chunks : 1);
  p.by_channel_blocks = D(t.kind().k_blocks);
  p.by_k_classes = D(t.k_classes);
  p.R = narrowed(rows.R);
  p.S = narrowed(rows.S);
  p.group_C = narrowed(rows.group_C());
  p.group_K = narrowed(problem.group_K());
  p.splits = narrowed(t.splits);
  p.by_cluster = D(t.cluster);
  p.by_chunks = D(t.chunks);
  p.by_filter_sets = D(t.filter_sets);
  p.by_blocks_c = D(t.blocks_c);
  p.by_blocks_k = D(t.blocks_k);
  p.by_groups = D(problem.groups);
  p.weight = static_cast<T*>(operands.w);
  p.weight_k = problem.w_strides[0];
  p.weight_c = problem.w_strides[1];
  p.weight_r = problem.w_strides[2];
  p.weight_s = problem.w_strides[3];
  if (t.flat) {
    // In the order of the weight in memory.
    const int C = t.channels, R = narrowed(problem.R), S = narrowed(problem.S);
    const int r = narrowed(problem.dilation_h) * t.x_row;
    const int s = narrowed(problem.dilation_w * element_size(problem.dtype));
    const bool by_channels = dense_layout(problem.w_sizes(), problem.w_strides) == Layout::kNchw;
    p.by_flat[0] = D(by_channels ? S : C);
    p.by_flat[1] = D(by_channels ? R : S);
    p.flat_bytes[0] = by_channels ? s : t.x_channel;
    p.flat_bytes[1] = by_channels ? r : s;
    p.flat_bytes[2] = by_channels ? t.x_channel : r;
    p.weight_c = 1;
  }
  p.rows_follow = rows_follow(problem, t);
  p.by_minor =
      D(p.weight_c == 1 && !p.rows_follow ? t.along_c * kBlock : t.filter_rows * t.kind().taps);
  p.partial = t.is_direct() ? nullptr : static_cast<float4*>(context.workspace);
  p.from = {is_exact(problem, t) && !t.kind().halves, t.kind().halves, t.flat, p.x, p.y, problem};

  static_assert(kKernelCount == 8);
  void (*const kTable[])(Params<T>) = {kernel_of<T, 0>(fetch), kernel_of<T, 1>(fetch),
                                       kernel_of<T, 2>(fetch), kernel_of<T, 3>(fetch),
                                       kernel_of<T, 4>(fetch), kernel_of<T, 5>(fetch),
                                       kernel_of<T, 6>(fetch), kernel_of<T, 7>(fetch)};
  start(
      "implicit_gemm: the weight gradient of planes",
      {shape.blocks, shape.threads, shape.shared_bytes, context.stream, /*early=*/false, t.cluster},
      kTable[t.kernel], p);
  if (t.is_direct()) return;
  const int warpgroups = t.kind().warpgroups / t.along_p;
  Parts<T> parts{};
  parts.sums = p;
  parts.sums.splits = narrowed(t.parts());
  parts.count = narrowed(blocks_of(problem, t) * t.sums() / t.along_p / 4);
  parts.most_taps = t.kind().taps;
  parts.by_columns = D(t.kind().blocks());
  parts.by_warps = D(warpgroups * 4);
  parts.by_taps = D(t.kind().taps);
  parts.by_filter_rows = D(t.along_c > 1 ? 1 : warpgroups);
  parts.by_warpgroups = D(t.along_c > 1 ? warpgroups : 1);
  parts.taps_first = p.weight_c != 1;
  add_up(parts, context.stream);
}

}  // namespace customconv::implicit_gemm::wgrad::planes
