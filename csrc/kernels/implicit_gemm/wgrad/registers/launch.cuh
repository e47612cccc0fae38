// The launcher of weight gradients with x in registers.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <type_traits>

#include "kernels/common/map.cuh"
#include "kernels/common/start.h"
#include "kernels/implicit_gemm/wgrad/registers/launch.h"
#include "kernels/implicit_gemm/wgrad/registers/parts.cuh"
#include "kernels/implicit_gemm/wgrad/registers/sums.cuh"

namespace customconv::implicit_gemm::wgrad::registers {

inline cuuint64_t map_size(int64_t value) { return static_cast<cuuint64_t>(value); }
inline cuuint32_t map_count(int64_t value) { return static_cast<cuuint32_t>(value); }

// What is halved is not rounded on the way.
template <typename T>
CUtensorMapDataType map_type(const Tile& t) {
  return t.kind().halves ? kExactMapType<T> : kMapType<T>;
}

// Boxes of pixels; of few channels rows of elements.
template <typename T>
CUtensorMap map_x(const ConvProblem& p, const Tile& t, const T* x) {
  const Shape5 &sizes = p.x_sizes(), &strides = p.x_strides;
  const auto stride = [&](int i) { return map_stride<T>(sizes[i], strides[i]); };
  if (t.kind().few) {
    const Boxes<3> boxes{{map_size(p.W * p.C), map_size(p.H), map_size(p.N)},
                         {stride(2), stride(0)},
                         {map_count(t.x_columns), map_count(t.x_rows), map_count(t.images)},
                         {1, 1, 1}};
    return make_map(x, map_type<T>(t), boxes, CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  const Boxes<4> boxes{{map_size(p.C), map_size(p.W), map_size(p.H), map_size(p.N)},
                       {stride(3), stride(2), stride(0)},
                       {kXBlock, map_count((t.x_columns - 1) * t.step_w + 1),
                        map_count((t.x_rows - 1) * t.step_h + 1), map_count(t.images)},
                       {1, map_count(t.step_w), map_count(t.step_h), 1}};
  return make_map(x, map_type<T>(t), boxes);
}

// The lines of a column follow each other.
template <typename T>
CUtensorMap map_y(const ConvProblem& p, const Tile& t, const T* y) {
  const Shape5 &sizes = p.y_sizes(), &strides = p.y_strides;
  const int lines = t.by_images ? 0 : 2, others = 2 - lines;
  const auto stride = [&](int i) { return map_stride<T>(sizes[i], strides[i]); };
  const Boxes<4> boxes{
      {map_size(p.K), map_size(sizes[lines]), map_size(p.Q), map_size(sizes[others])},
      {stride(lines), stride(3), stride(others)},
      {kBlock, map_count(t.by_images ? t.images : t.rows), map_count(t.columns),
       map_count(t.by_images ? t.rows : t.images)},
      {1, 1, 1, 1}};
  return make_map(y, map_type<T>(t), boxes,
                  sizeof(T) == 2 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE);
}

// The same boxes for threads to fill.
template <typename T>
Filled<T> fill_x(const ConvProblem& p, const Tile& t, const T* x) {
  if (t.kind().few) {
    return fill_elements(x, p.x_sizes(), p.x_strides, {t.x_columns, t.x_rows, t.images});
  }
  return fill_pixels(x, p.x_sizes(), p.x_strides, {3, 2, 0}, {t.x_columns, t.x_rows, t.images},
                     {t.step_w, t.step_h, 1});
}
template <typename T>
Filled<T> fill_y(const ConvProblem& p, const Tile& t, const T* y) {
  const int lines = t.by_images ? 0 : 2, others = 2 - lines;
  const int counts[] = {t.by_images ? t.images : t.rows, t.columns,
                        t.by_images ? t.rows : t.images};
  return fill_pixels(y, p.y_sizes(), p.y_strides, {lines, 3, others}, counts, {1, 1, 1});
}

template <typename T>
void add_up(const ConvProblem& problem, const Tile& t, const Params<T>& sums, cudaStream_t stream) {
  using D = Divider<int32_t>;
  Parts<T> p{};
  p.sums = sums;
  p.kind = t.kind();
  p.count = static_cast<int>(blocks_of(problem, t) * t.sums() / 4);
  p.by_vectors = D(t.kind().products() * 8);
  p.by_warps = D(t.kind().warpgroups * 4);
  p.by_taps = D(t.kind().taps);
  p.by_blocks = D(t.kind().blocks);
  p.by_filter_rows = D(t.along_k * t.along_c > 1 ? 1 : t.kind().warpgroups);
  p.by_warpgroups = D(t.along_k * t.along_c);
  p.taps_first = !t.kind().few && p.sums.weight_c != 1;
  constexpr int kFewParts = 16, kSomeParts = 64;
  const int sharers = sums.splits <= kFewParts ? 1 : sums.splits <= kSomeParts ? 8 : 32;
  Start how{ceil_divide(p.count, kPartThreads / sharers), kPartThreads};
  how.stream = stream;
  how.early = true;
  start("implicit_gemm: the parts of the weight gradient", how,
        sharers == 1   ? add_parts<1, T>
        : sharers == 8 ? add_parts<8, T>
                       : add_parts<32, T>,
        p);
}

template <typename T>
Params<T> params_of(const ConvProblem& problem, const Tile& t) {
  using D = Divider<int32_t>;
  const auto bytes = [](int64_t value) { return static_cast<uint32_t>(value); };
  const int64_t lines = t.by_images ? t.images : t.rows;
  const int64_t column = t.kind().few ? problem.C * t.element_bytes : kXRowBytes;
  Params<T> p{};
  p.x_line = bytes(t.line_bytes);
  p.x_column = bytes(t.column_step * column);
  p.x_tap = bytes(problem.dilation_w * kXRowBytes);
  p.x_filter_row = bytes(problem.dilation_h * t.x_row_bytes);
  p.y_column = bytes(lines * kBlock * t.element_bytes);
  p.loops[0] = {t.by_images ? t.rows : t.images,
                bytes((t.by_images ? t.row_step : t.x_rows) * t.x_row_bytes),
                p.y_column * static_cast<uint32_t>(t.columns)};
  p.loops[1] = {static_cast<int>(lines / t.lines()), p.x_line * static_cast<uint32_t>(t.lines()),
                kUnitBytes};
  p.loops[2] = {t.columns / kPair, kPair * p.x_column, kPair * p.y_column};
  if (t.kind().taps == 1) {
    std::sort(p.loops, p.loops + 3, [](const Loop& a, const Loop& b) { return a.count < b.count; });
  }
  p.x_lead = bytes(t.lead * t.element_bytes);
  p.x_box_bytes = static_cast<int>(t.x_box_bytes);
  p.y_box_bytes = static_cast<int>(t.y_box_bytes);
  p.low_y = static_cast<int>(t.y_bytes());
  p.x_brought = static_cast<int>(t.images * t.x_rows * t.x_row_bytes);
  p.x_at = static_cast<int>(t.stage_bytes - t.x_boxes() * t.x_box_bytes);
  p.stage_bytes = static_cast<int>(t.stage_bytes);
  p.stages = t.stages;
  p.along_k = t.along_k;
  p.along_c = t.along_c;
  p.filter_rows = t.filter_rows;
  p.by_images = t.by_images;
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
  p.by_chunks = D(t.chunks);
  p.by_filter_sets = D(t.filter_sets);
  p.by_blocks_c = D(t.blocks_c);
  p.by_blocks_k = D(t.blocks_k);
  p.by_groups = D(problem.groups);
  p.by_tiles_q = D(t.tiles_q);
  p.by_tiles_p = D(t.tiles_p);
  p.product_rows = static_cast<int>(product_rows(problem, t.kind()));
  p.by_S = D(problem.S);
  p.by_C = D(problem.group_C());
  return p;
}

template <typename T>
void (*kernel_of(int kernel))(Params<T>) {
  static_assert(kKernelCount == 9);
  if constexpr (std::is_same_v<T, float>) {
    static constexpr void (*kTable[])(Params<T>) = {
        sum_weights<T, 0>, sum_weights<T, 1>, sum_weights<T, 2>,
        sum_weights<T, 3>, sum_weights<T, 4>, sum_weights<T, 5>,
        sum_weights<T, 6>, sum_weights<T, 7>, sum_weights<T, 8>};
    return kTable[kernel];
  } else {
    return sum_weights<T, kFewKernel>;
  }
}

template <typename T>
void launch(const ConvProblem& asked, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  const ConvProblem problem = as_columns(asked);
  const Tile t = make_tile(problem, plan.payload.as<RegistersPlan>(), plan.splits);
  const LaunchShape shape = shape_of(problem, t);
  const auto* x = static_cast<const T*>(operands.x);
  const auto* y = static_cast<const T*>(operands.y);
  Params<T> p = params_of<T>(problem, t);
  if (t.fills_x) {
    p.filled_x = fill_x(problem, t, x);
  } else {
    p.x = map_x(problem, t, x);
  }
  if (t.fills_y) {
    p.filled_y = fill_y(problem, t, y);
  } else {
    p.y = map_y(problem, t, y);
  }
  p.weight = static_cast<T*>(operands.w);
  p.weight_k = problem.w_strides[0];
  p.weight_c = problem.w_strides[1];
  p.weight_r = problem.w_strides[2];
  p.weight_s = problem.w_strides[3];
  const auto even = [](int64_t size, int64_t stride) { return size == 1 || stride % 2 == 0; };
  p.pairs_c = !t.kind().few && problem.w_aligned && p.weight_c == 1 && p.group_C % 2 == 0 &&
              even(problem.K, p.weight_k) && even(problem.R, p.weight_r) &&
              even(problem.S, p.weight_s);
  const int cluster = t.clustered ? p.splits : 1;
  p.clustered = t.clustered;
  p.by_cluster = Divider<int32_t>(cluster);
  p.from = {
      is_exact(problem, t) && !t.kind().halves, t.kind().halves, /*flat=*/false, x, y, problem};
  p.partial = t.clustered ? nullptr : static_cast<float4*>(context.workspace);

  start("implicit_gemm: the weight gradient",
        {shape.blocks, shape.threads, shape.shared_bytes, context.stream, /*early=*/false, cluster},
        kernel_of<T>(t.kernel), p);
  if (!t.clustered) add_up(problem, t, p, context.stream);
}

}  // namespace customconv::implicit_gemm::wgrad::registers
