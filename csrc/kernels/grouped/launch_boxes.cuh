// Launches the kernels of boxes.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/common/map.cuh"
#include "kernels/grouped/boxes.cuh"
#include "kernels/grouped/gradient_boxes.cuh"
#include "kernels/grouped/launch.cuh"

namespace customconv::grouped {

template <typename T>
using BoxKernelOf = void (*)(BoxParams<T>);
template <typename T>
using GradientBoxKernelOf = void (*)(GradientBoxParams<T>);

template <typename T, Loading kLoading, size_t... kIndex>
BoxKernelOf<T> box_kernel_at(int index, std::index_sequence<kIndex...>) {
  static constexpr BoxKernelOf<T> kTable[] = {
      convolve_boxes<T, static_cast<int>(kIndex), kLoading>...};
  return kTable[index];
}

template <typename T>
BoxKernelOf<T> box_kernel_of(Loading loading, int index) {
  const auto indices = std::make_index_sequence<kBoxKernelCount>();
  switch (loading) {
    case Loading::kBoxes:
      return box_kernel_at<T, Loading::kBoxes>(index, indices);
    case Loading::kStrips:
      return box_kernel_at<T, Loading::kStrips>(index, indices);
    default:
      return box_kernel_at<T, Loading::kThreads>(index, indices);
  }
}

template <typename T, Loading kLoading, size_t... kIndex>
GradientBoxKernelOf<T> gradient_box_kernel_at(int index, std::index_sequence<kIndex...>) {
  static constexpr GradientBoxKernelOf<T> kTable[] = {
      sum_boxes<T, static_cast<int>(kIndex), kLoading>...};
  return kTable[index];
}

template <typename T>
GradientBoxKernelOf<T> gradient_box_kernel_of(Loading loading, int index) {
  const auto indices = std::make_index_sequence<kGradientBoxKernelCount>();
  switch (loading) {
    case Loading::kBoxes:
      return gradient_box_kernel_at<T, Loading::kBoxes>(index, indices);
    case Loading::kStrips:
      return gradient_box_kernel_at<T, Loading::kStrips>(index, indices);
    default:
      return gradient_box_kernel_at<T, Loading::kThreads>(index, indices);
  }
}

// How rows of so many bytes are laid out.
inline CUtensorMapSwizzle swizzle_of(int row_bytes) {
  return row_bytes == kBoxRowBytes       ? CU_TENSOR_MAP_SWIZZLE_128B
         : row_bytes == kBoxRowBytes / 2 ? CU_TENSOR_MAP_SWIZZLE_64B
                                         : CU_TENSOR_MAP_SWIZZLE_NONE;
}

// Boxes of the pixels that tiles read, of a class of columns, and of those at their positions.
template <typename T>
CUtensorMap map_boxes(const Geometry& g, const Tile& tile, const T* in, int row_bytes) {
  const auto span = [](int count, int step) {
    return static_cast<cuuint32_t>((count - 1) * step + 1);
  };
  const Boxes<4> boxes{
      {static_cast<cuuint64_t>(g.groups * g.C), static_cast<cuuint64_t>(g.w.in),
       static_cast<cuuint64_t>(g.h.in), static_cast<cuuint64_t>(g.N)},
      {map_stride<T>(g.w.in, g.in[3]), map_stride<T>(g.h.in, g.in[2]), map_stride<T>(g.N, g.in[0])},
      {static_cast<cuuint32_t>(row_bytes / sizeof(T)), span(tile.kept_columns, g.w.step),
       span(tile.kept_rows, g.h.class_step), static_cast<cuuint32_t>(tile.images)},
      {1, static_cast<cuuint32_t>(g.w.step), static_cast<cuuint32_t>(g.h.class_step), 1}};
  return make_map(in, kMapType<T>, boxes, swizzle_of(row_bytes));
}

// `phase`: that many pixels further on, and so many apart.
template <typename T>
CUtensorMap map_positions(const Geometry& g, const Tile& tile, const T* out, int row_channels,
                          int phase_h = 0, int phase_w = 0) {
  const auto count = [](const Axis& axis, int phase) {
    return std::max<int64_t>(ceil_divide(int64_t{axis.out} - phase, axis.phases), 1);
  };
  const int64_t high = count(g.h, phase_h), wide = count(g.w, phase_w);
  const Boxes<4> boxes{
      {static_cast<cuuint64_t>(g.groups * g.K), static_cast<cuuint64_t>(wide),
       static_cast<cuuint64_t>(high), static_cast<cuuint64_t>(g.N)},
      {map_stride<T>(wide, g.w.phases * g.out[3]), map_stride<T>(high, g.h.phases * g.out[2]),
       map_stride<T>(g.N, g.out[0])},
      {static_cast<cuuint32_t>(row_channels), static_cast<cuuint32_t>(tile.columns),
       static_cast<cuuint32_t>(tile.rows), static_cast<cuuint32_t>(tile.images)},
      {1, 1, 1, 1}};
  const auto type = kExactMapType<T>;
  // A phase without a pixel is never stored; its strides may be any.
  const bool exists = phase_h < g.h.out && phase_w < g.w.out;
  const T* first = exists ? out + phase_h * g.out[2] + phase_w * g.out[3] : out;
  return make_map(first, type, boxes, swizzle_of(row_channels * static_cast<int>(sizeof(T))));
}

// Pairs of neighbours of a row, both of which exist or none, and four aligned bytes; else one
// pixel.
template <typename T>
int brought_pixels(const T* data, const Shape5& strides, const Shape5& sizes) {
  const auto even = [&](int axis) { return sizes[axis] == 1 || strides[axis] % 2 == 0; };
  const bool pairs = sizeof(T) == 2 && reinterpret_cast<uintptr_t>(data) % 4 == 0 &&
                     strides[3] == 1 && sizes[3] % 2 == 0 && even(0) && even(1) && even(2);
  return pairs ? 2 : 1;
}

inline PlaneBox plane_box(const Geometry& g, const Tile& tile, int vector) {
  using D = Divider<int32_t>;
  PlaneBox box{};
  box.vector = g.w.class_step == 1 ? vector : 1;
  box.step = g.w.step;
  box.class_step = g.w.class_step;
  box.row_step = g.h.class_step;
  box.pitch = tile.pitch;
  box.class_rows = tile.class_slots;
  box.count = box_vectors(g, tile, box.vector);
  box.across = D(box.count / (tile.images * tile.kept_rows));
  box.down = D(tile.kept_rows);
  box.by_pitch = D(tile.pitch);
  box.by_step = D(g.w.step);
  return box;
}

inline PlaneBox position_box(const Tile& tile, int vector) {
  using D = Divider<int32_t>;
  PlaneBox box{};
  box.vector = vector;
  box.step = box.class_step = box.row_step = 1;
  box.pitch = tile.columns;
  box.count = position_vectors(tile, vector);
  box.across = D(box.count / (tile.images * tile.rows));
  box.down = D(tile.rows);
  box.by_pitch = D(tile.columns);
  box.by_step = D(1);
  return box;
}

// Strips of planes.
template <typename T>
CUtensorMap map_strips(const Strips& s, const T* data, const Shape5& strides, const Shape5& sizes) {
  const int64_t plane = sizes[2] * sizes[3];
  const Boxes<3> boxes{{static_cast<cuuint64_t>(plane), static_cast<cuuint64_t>(sizes[1]),
                        static_cast<cuuint64_t>(sizes[0])},
                       {map_stride<T>(2, plane), map_stride<T>(sizes[0], strides[0])},
                       {kStripPixels<T>, static_cast<cuuint32_t>(s.channels), 1},
                       {1, 1, 1}};
  return make_map(data, kMapType<T>, boxes);
}

inline StripBox strip_box_of(const Strips& s, int images, int pieces, int box_bytes) {
  using D = Divider<int32_t>;
  StripBox box{};
  box.strips = s;
  box.images = images;
  box.pieces = pieces;
  box.box_bytes = box_bytes;
  box.by_parts = D(s.parts / (images * s.runs));
  box.by_runs = D(s.runs);
  return box;
}

inline StripBox strip_box(const Geometry& g, const Tile& tile, const Strips& strips, int pieces,
                          int box_bytes) {
  using D = Divider<int32_t>;
  StripBox box = strip_box_of(strips, tile.images, pieces, box_bytes);
  box.H = g.h.in;
  box.W = g.w.in;
  box.first_column = g.w.first;
  box.row_step = g.h.class_step;
  box.pitch = tile.pitch;
  box.class_rows = tile.class_slots;
  box.image_rows = tile.image_slots;
  box.by_width = D(g.w.in);
  box.by_step = D(g.w.step);
  box.by_class_step = D(g.w.class_step);
  return box;
}

inline StripBox position_strip_box(const Geometry& g, const Tile& tile, const Strips& strips,
                                   int pieces, int box_bytes) {
  using D = Divider<int32_t>;
  StripBox box = strip_box_of(strips, tile.images, pieces, box_bytes);
  box.H = g.h.out;
  box.W = g.w.out;
  box.row_step = 1;
  box.pitch = tile.columns;
  box.image_rows = tile.rows * tile.columns;
  box.by_width = D(g.w.out);
  box.by_step = box.by_class_step = D(1);
  return box;
}

template <typename T>
void launch_gradient_boxes(const ConvProblem& problem, const ConvPlan& plan,
                           const Operands& operands, const LaunchContext& context) {
  const Geometry g = geometry_of(problem);
  const auto way = plan.payload.as<BoxGradientsPlan>();
  const Tile tile = box_of(g, way.tile[2], way.tile[0], way.tile[1]);
  const GradientBoxWork work = gradient_box_work_of(g, way, tile);
  const GradientCut& cut = work.cut;
  const auto* x = static_cast<const T*>(operands.x);
  const auto* dy = static_cast<const T*>(operands.y);
  GradientBoxParams<T> p{};
  if (work.loading == Loading::kBoxes) {
    p.in = map_boxes(g, tile, x, work.row_bytes);
    p.out = map_positions(g, tile, dy, work.row_bytes / static_cast<int>(sizeof(T)));
  }
  if (work.loading == Loading::kStrips) {
    p.in = map_strips(work.strips, x, g.in, problem.x_sizes());
    p.out = map_strips(work.out_strips, dy, g.out, problem.y_sizes());
    p.in_strip_box = strip_box(g, tile, work.strips, cut.sets * cut.octets, work.box_bytes);
    p.out_strip_box =
        position_strip_box(g, tile, work.out_strips, cut.sets * cut.columns, work.out_box_bytes);
  }
  p.in_image = make_image(x, g.in, problem.x_sizes(), g.C, g.groups, g.C);
  p.out_image = make_image(dy, g.out, problem.y_sizes(), g.K, g.groups, g.K);
  p.in_box = plane_box(g, tile, brought_pixels(x, g.in, problem.x_sizes()));
  p.out_box = position_box(tile, brought_pixels(dy, g.out, problem.y_sizes()));
  p.shares =
      make_shares(g, cut, problem, way.pixel_warps, way.cluster, plan.splits, context.workspace);
  p.tile = tile_params(g, tile);
  p.work = work;
  p.stage_bytes = work.stage_bytes();
  p.brought_bytes = work.brought_bytes();
  p.warps = cut.threads / 32;
  p.pixels = static_cast<int>(ceil_divide(tile.pixels(), kStepPixels) * kStepPixels);
  p.by_rows = Divider<int32_t>(2 * way.own_kernel().pairs * cut.pair_warps);
  const bool leaves_parts = plan.splits > way.cluster;
  p.weight = leaves_parts ? nullptr : static_cast<T*>(operands.w);
  p.weight_k = problem.w_strides[0];
  p.weight_c = problem.w_strides[1];
  p.weight_r = problem.w_strides[2];
  p.weight_s = problem.w_strides[3];
  start("grouped: the weight gradient",
        start_of(shape_of(work, way, plan.splits), context.stream, false, way.cluster),
        gradient_box_kernel_of<T>(work.loading, way.kernel), p);
  if (!leaves_parts) return;
  const GradientKernel& sizes = way.own_kernel();
  const int count = sizes.pairs * sizes.channels;
  const SumOfPart place{p.shares,
                        sizes.pairs,
                        sizes.channels,
                        Divider<int32_t>(count),
                        Divider<int32_t>(sizes.channels),
                        Divider<int32_t>(p.warps / way.pixel_warps),
                        p.weight_k,
                        p.weight_c,
                        p.weight_r,
                        p.weight_s};
  add_parts_up<T>(context, work.part * 4, plan.splits / way.cluster, operands.w, place);
}

// Bytes of a plane that can be stored at once: neighbours of a row, all or none of which exist.
template <typename T>
int plane_vector(const Geometry& g, const Tile& tile, const T* out) {
  const auto fits = [&](int64_t count) {
    const auto even = [&](int64_t size, int64_t stride) {
      return size == 1 || stride % count == 0;
    };
    return is_aligned(out, 16) && g.w.phases == 1 && g.out[3] == 1 && tile.columns % count == 0 &&
           g.w.out % count == 0 && even(g.N, g.out[0]) && even(g.groups * g.K, g.out[1]) &&
           even(g.h.out, g.out[2]);
  };
  int bytes = 16;
  while (bytes > static_cast<int>(sizeof(T)) && !fits(bytes / static_cast<int>(sizeof(T)))) {
    bytes /= 2;
  }
  return bytes;
}

// Whether so many bytes of the weights can be read at once: of neighbouring input channels, or
// where transposed output channels, of which all are a group's or none.
template <typename T>
bool has_weight_vectors(const ConvProblem& problem, const Geometry& g, const T* weights, int bytes,
                        bool transposed) {
  const auto even = [&](int64_t size, int64_t stride) {
    return size == 1 || stride * static_cast<int64_t>(sizeof(T)) % bytes == 0;
  };
  const int64_t near = transposed ? g.weight_k : g.weight_c, count = transposed ? g.K : g.C;
  const int64_t far = transposed ? g.weight_c : g.weight_k, others = transposed ? g.C : g.K;
  return near == 1 && reinterpret_cast<uintptr_t>(weights) % bytes == 0 && even(2, count) &&
         even(others, far) && even(g.groups, g.weight_group) && even(problem.R, g.weight_r) &&
         even(problem.S, g.weight_s);
}

template <typename T>
void launch_boxes(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
                  const LaunchContext& context) {
  using D = Divider<int32_t>;
  const bool backward = problem.pass == Pass::kDgrad;
  const Geometry g = geometry_of(problem);
  const auto way = plan.payload.as<BoxesPlan>();
  const Tile tile = box_of(g, way.tile[2], way.tile[0], way.tile[1]);
  const BoxWork work = box_work_of(g, way, tile, sizeof(T));
  auto* x = static_cast<T*>(operands.x);
  auto* y = static_cast<T*>(operands.y);
  BoxParams<T> p{};
  const T* in = backward ? y : x;
  const Shape5 in_sizes = backward ? problem.y_sizes() : problem.x_sizes();
  if (work.loading == Loading::kBoxes) p.in = map_boxes(g, tile, in, kBoxRowBytes);
  if (work.loading == Loading::kStrips) {
    p.in = map_strips(work.strips, in, g.in, in_sizes);
    p.strip_box = strip_box(g, tile, work.strips, work.sets * work.pieces, work.box_bytes);
  }
  p.image = make_image(in, g.in, in_sizes, g.C, g.groups, g.C);
  p.box = plane_box(g, tile, brought_pixels(in, g.in, in_sizes));
  p.tile = tile_params(g, tile);
  p.out = backward ? x : y;
  p.out_n = g.out[0];
  p.out_c = g.out[1];
  p.out_h = g.out[2];
  p.out_w = g.out[3];
  p.weights = static_cast<const T*>(operands.w);
  p.weight_group = g.weight_group;
  p.weight_k = g.weight_k;
  p.weight_c = g.weight_c;
  p.weight_r = g.weight_r;
  p.weight_s = g.weight_s;
  const auto has_vectors = [&](int bytes, bool transposed) {
    return has_weight_vectors(problem, g, p.weights, bytes, transposed);
  };
  p.weight_vector = has_vectors(16, false) ? 16 : has_vectors(8, false) ? 8 : sizeof(T);
  p.weight_transposed = p.weight_vector < 16 && work.pack == 1 && has_vectors(16, true);
  const int64_t group_weights = g.K * g.C * g.kernel;
  if (g.weight_group == group_weights)
    p.group_weights = static_cast<int>(group_weights * sizeof(T));
  p.epilogue = operands.epilogue;
  p.work = work;
  p.groups = static_cast<int>(g.groups);
  p.all_K = static_cast<int>(g.groups * g.K);
  p.pixel_warps = way.pixel_warps;
  p.loaders = box_loaders(work.loading, sizeof(T));
  p.by_pieces = D(work.pieces);
  p.by_set = D(work.steps * 2);
  p.group_C = static_cast<int>(g.C);
  p.by_K = D(g.K);
  p.by_pixel_warps = D(p.pixel_warps);
  p.by_column_warps = D(work.column_warps);
  p.by_row_bytes = D(std::max(work.out_row_bytes, 1));
  p.stage_bytes = work.stage_bytes();
  p.brought_bytes = work.brought_bytes();
  p.finishes = !operands.epilogue.is_empty();
  p.store_bytes = plane_vector(g, tile, p.out);
  p.by_vectors = D(tile.pixels() * static_cast<int>(sizeof(T)) / p.store_bytes);
  for (int phase = 0; work.out_boxes > 0 && phase < g.h.phases * g.w.phases; ++phase) {
    p.out_of[phase] = map_positions<T>(g, tile, p.out, work.out_row_bytes / sizeof(T),
                                       phase / g.w.phases, phase % g.w.phases);
  }
  p.tile_blocks = way.tile_blocks;
  p.slices = D(work.slices);
  p.parts = D(work.parts);
  start("grouped", start_of(shape_of(work, way), context.stream, false),
        box_kernel_of<T>(work.loading, way.kernel), p);
}

}  // namespace customconv::grouped
