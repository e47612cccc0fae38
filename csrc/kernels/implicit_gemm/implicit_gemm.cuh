// The family's launcher: tensor maps, packed filters, kernels.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "kernels/common/aligned.cuh"
#include "kernels/common/check.h"
#include "kernels/common/map.cuh"
#include "kernels/common/start.h"
#include "kernels/implicit_gemm/kernels.cuh"
#include "kernels/implicit_gemm/pack_weights.cuh"
#include "kernels/implicit_gemm/payload.h"
#include "kernels/implicit_gemm/sm90/launch.h"
#include "kernels/implicit_gemm/weave.cuh"
#include "kernels/implicit_gemm/wgrad/launch.h"
#include "kernels/launch.h"

namespace customconv::implicit_gemm {

template <typename T>
CUtensorMap map_input(const ConvProblem& p, const Tile& tile, const T* x) {
  Boxes<4> boxes{{static_cast<cuuint64_t>(p.C), static_cast<cuuint64_t>(p.W),
                  static_cast<cuuint64_t>(p.H), static_cast<cuuint64_t>(p.N)},
                 {map_stride<T>(p.W, p.x_strides[3]), map_stride<T>(p.H, p.x_strides[2]),
                  map_stride<T>(p.N, p.x_strides[0])},
                 {kRowBytes / sizeof(T), static_cast<cuuint32_t>(tile.pitch),
                  static_cast<cuuint32_t>(tile.plane_rows), static_cast<cuuint32_t>(tile.images)},
                 {1, 1, 1, 1}};
  return make_map(x, kMapType<T>, boxes);
}

// Slabs of planes of pixels: of 16 bits all channels of a stage one after the other; of 32 bits
// those of each piece in the order 0, 4, 1, 5, 2, 6, 3, 7, which keeps the two of a thread
// together.
template <typename T>
CUtensorMap map_planes(const ConvProblem& p, const Tile& tile, const T* x) {
  const auto Q = static_cast<cuuint64_t>(p.W), C = static_cast<cuuint64_t>(p.C);
  const cuuint64_t plane = Q * sizeof(T);  // bytes; the input is dense
  const auto N = static_cast<cuuint64_t>(p.N);
  const auto pieces = static_cast<cuuint32_t>(tile.chunk);
  constexpr cuuint32_t kInner = kRowBytes / sizeof(T);
  if constexpr (sizeof(T) == 4) {
    Boxes<4> boxes{
        {Q, 2, 4, N * C / 8}, {4 * plane, plane, 8 * plane}, {kInner, 2, 4, pieces}, {1, 1, 1, 1}};
    return make_map(x, kMapType<T>, boxes);
  } else {
    Boxes<4> boxes{{Q, 1, C, N}, {16, plane, C * plane}, {kInner, 1, 16 * pieces, 1}, {1, 1, 1, 1}};
    return make_map(x, kMapType<T>, boxes);
  }
}

// Rows of pixels of a stage's channels, which follow each other.
template <typename T>
CUtensorMap map_rows(const ConvProblem& asked, const Tile& tile, const T* x) {
  const ConvProblem p = source_problem(asked, tile);
  constexpr int kSize = static_cast<int>(sizeof(T));
  const auto row = static_cast<cuuint32_t>(tile.row.channel_bytes / kSize / tile.row.boxes);
  const auto channels =
      static_cast<cuuint32_t>(tile.is_flat() ? 1 : tile.chunk * kPieceBytes / kSize);
  Boxes<4> boxes{{static_cast<cuuint64_t>(p.W), static_cast<cuuint64_t>(p.C),
                  static_cast<cuuint64_t>(p.H), static_cast<cuuint64_t>(p.N)},
                 {map_stride<T>(p.C, p.x_strides[1]), map_stride<T>(p.H, p.x_strides[2]),
                  map_stride<T>(p.N, p.x_strides[0])},
                 {row, channels, 1, 1},
                 {1, 1, 1, 1}};
  return make_map(x, kMapType<T>, boxes, CU_TENSOR_MAP_SWIZZLE_NONE);
}

template <typename T>
CUtensorMap map_output(const Forward& p, const Tile& tile, const T* y) {
  const auto type = kExactMapType<T>;
  const auto K = static_cast<cuuint64_t>(p.K), N = static_cast<cuuint64_t>(p.N);
  constexpr cuuint32_t kInner = kRowBytes / sizeof(T);
  if (tile.fetch == Fetch::kShared) {
    const bool squares = tile.shape == Shape::kSquares;
    Boxes<4> boxes{{K, static_cast<cuuint64_t>(p.Q), static_cast<cuuint64_t>(p.P), N},
                   {map_stride<T>(p.Q, p.y_strides[3]), map_stride<T>(p.P, p.y_strides[2]),
                    map_stride<T>(p.N, p.y_strides[0])},
                   {kInner, squares ? 8u : 64u, squares ? 8u : 1u, 1},
                   {1, 1, 1, 1}};
    return make_map(y, type, boxes);
  }
  // Planes of pixels; in a run their rows are one.
  const bool run = tile.shape == Shape::kRun;
  const int64_t rows = run ? 1 : p.P, row = run ? p.P * p.Q : p.Q;
  Boxes<4> boxes{{static_cast<cuuint64_t>(row), static_cast<cuuint64_t>(rows), K, N},
                 {map_stride<T>(rows, p.y_strides[2]), map_stride<T>(p.K, p.y_strides[1]),
                  map_stride<T>(p.N, p.y_strides[0])},
                 {kInner, 1, static_cast<cuuint32_t>(slab_channels(tile.kind().channels)), 1},
                 {1, 1, 1, 1}};
  return make_map(y, type, boxes);
}

// The map of a weight that is a matrix.
template <typename T>
CUtensorMap map_weight(const Forward& p, const Tile& tile, const PackedWeight& packed, const T* w) {
  const auto row = static_cast<cuuint64_t>(packed.row) * sizeof(T);
  const auto taps = static_cast<cuuint64_t>(p.taps_h * p.taps_w);
  constexpr cuuint32_t kInner = kRowBytes / sizeof(T);
  const auto rows = static_cast<cuuint64_t>(tile.transposed ? p.C : p.K);
  const int row_box = tile.transposed ? static_cast<int>(kInner) : tile.kind().channels;
  Boxes<3> boxes{{static_cast<cuuint64_t>(packed.row), taps, rows},
                 {row, taps * row},
                 {kInner, 1, static_cast<cuuint32_t>(row_box)},
                 {1, 1, 1}};
  return make_map(w, kMapType<T>, boxes);
}

template <typename T>
Output<T> make_output(const Forward& p, const Tile& tile, T* y, const Epilogue& epilogue) {
  constexpr int64_t kSize = sizeof(T);
  Output<T> out{};
  out.data = y;
  out.epilogue = epilogue;
  out.n = p.y_strides[0];
  out.k = p.y_strides[1];
  out.p = p.y_strides[2];
  out.q = p.y_strides[3];
  out.N = static_cast<int>(p.N);
  out.K = static_cast<int>(p.K);
  out.P = static_cast<int>(p.P);
  out.Q = static_cast<int>(p.Q);
  out.planar = tile.fetch != Fetch::kShared && stores_planes(p);
  // Strides of dimensions of one do not matter: their index is zero.
  const bool one_row = out.P == 1 && out.K == 1 && out.N == 1;
  const bool even = !out.planar ? out.K % 2 == 0 : out.Q % 2 == 0 || one_row;
  out.vectors = is_aligned(out.data, 16) && even && (out.planar || kSize == 4 || out.K % 8 == 0);
  out.channel_pairs = is_aligned(out.epilogue.scale, 2 * kSize) &&
                      is_aligned(out.epilogue.bias, 2 * kSize) && out.K % 2 == 0;
  const bool run = tile.shape == Shape::kRun;
  out.images = run ? INT32_MAX : tile.images;
  out.rows = tile.rows;
  out.columns = tile.columns;
  out.lines = tile.shape == Shape::kLines;
  using D = Divider<int32_t>;
  out.pitch = D(std::max(tile.pitch, 1));
  out.squares_w = D(std::max(tile.columns / 8, 1));
  out.squares_h = D(std::max(tile.rows / 8, 1));
  return out;
}

template <typename T>
RowSource<T> make_source(const ConvProblem& asked, const Tile& tile, const T* x) {
  const ConvProblem p = source_problem(asked, tile);
  RowSource<T> s{};
  s.x = x;
  s.end = x + max_offset(p.x_sizes(), p.x_strides) + 1;
  s.n = p.x_strides[0];
  s.c = p.x_strides[1];
  s.h = p.x_strides[2];
  s.w = p.x_strides[3];
  s.N = static_cast<int>(p.N);
  s.C = static_cast<int>(p.C);
  s.H = static_cast<int>(p.H);
  s.W = static_cast<int>(p.W);
  using D = Divider<int32_t>;
  s.plane_rows = tile.plane_rows;
  if (tile.fetch == Fetch::kShared) {
    s.row = tile.row;
    s.vectors = tile.positions;
    s.vectors_in_row = D(tile.pitch);
    s.period = D(tile.plane_rows);
    return s;
  }
  s.row = tile.row;
  s.reach = tile.h.reach;
  s.vectors = static_cast<int>(tile.positions * static_cast<int64_t>(sizeof(T)) / tile.row.vector);
  s.flat = tile.is_flat();
  s.flat_taps = static_cast<int>(p.R * p.S);
  s.flat_S = static_cast<int>(p.S);
  s.flat_C = static_cast<int>(asked.C);
  s.flat_bytes = tile.row.interleaved ? static_cast<int>(sizeof(T)) : tile.row.channel_bytes;
  s.vectors_in_row =
      D(std::max<int64_t>(tile.pitch * static_cast<int64_t>(sizeof(T)) / tile.row.vector, 1));
  s.image_pixels = static_cast<int>(std::min<int64_t>(p.P * p.Q, INT32_MAX));
  s.columns = D(p.Q);
  s.pairs = D(tile.row.pairs);
  const bool run = tile.shape == Shape::kRun;
  s.last_pair = static_cast<int>((run ? p.N * p.P : tile.rows) * tile.row.pairs - 1);
  s.output_rows = D(run ? p.P : INT32_MAX);
  s.period = D(run ? tile.row.period : INT32_MAX);
  return s;
}

template <typename T>
void launch(const ConvProblem& asked, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  if constexpr (sizeof(T) < 8) {
    if (plan.payload.kind() == PlanKind::implicit_gemm_main_loop) {
      return sm90::launch<T>(asked, plan, operands, context);
    }
  }
  if (asked.pass == Pass::kWgrad) return wgrad::launch<T>(asked, plan, operands, context);
  const Forward problem = as_one_row(as_forward(asked));
  const Tile tile = make_tile(problem, plan.payload.as<BoxesRowsPlan>(), plan.splits);
  const LaunchShape shape = shape_of(problem, tile);
  const bool boxes = tile.fetch == Fetch::kShared;
  const bool gradient = asked.pass == Pass::kDgrad;
  const auto* x = static_cast<const T*>(gradient ? operands.y : operands.x);
  auto* const result = static_cast<T*>(gradient ? operands.x : operands.y);
  T* y = result;
  const auto* w = static_cast<const T*>(operands.w);
  Params<T> p{};
  const PackedWeight packed = packed_weight(problem, tile);
  if (!packed.in_place) {
    auto* to = static_cast<T*>(context.workspace);
    if (has_matrix(tile.fetch)) {
      pack_weight_matrix(problem, tile.transposed, packed, w, to, context.stream);
    } else {
      pack_weight_units(problem, tile, packed, w, to, context.stream);
    }
    w = to;
  }
  if (problem.woven > 0) {
    const int64_t packed_bytes =
        packed.in_place ? 0 : packed.rows * packed.row * static_cast<int64_t>(sizeof(T));
    y = reinterpret_cast<T*>(static_cast<char*>(context.workspace) + round_up(packed_bytes, 256));
  }
  p.units = w;
  p.weight_row = static_cast<int>(packed.row);
  p.weight_taps = static_cast<int>(problem.taps_h * problem.taps_w);
  if (has_matrix(tile.fetch) && !tile.by_warps) p.w = map_weight(problem, tile, packed, w);
  p.out = make_output(problem, tile, y, operands.epilogue);
  if (boxes && !tile.by_warps) {
    p.x = map_input(problem, tile, x);
  } else {
    p.source = make_source(problem, tile, x);
    if (tile.fetch == Fetch::kBoxedPieces) p.x = map_planes(problem, tile, x);
    if (tile.row.boxes > 0) p.x = map_rows(problem, tile, x);
  }
  p.h = tile.h;
  p.w_axis = tile.w;
  p.R = static_cast<int>(tile.is_flat() ? 1 : problem.R);
  p.S = static_cast<int>(tile.is_flat() ? 1 : problem.S);
  const ConvProblem source = source_problem(problem, tile);
  p.stride_h = static_cast<int>(source.stride_h);
  p.stride_w = static_cast<int>(source.stride_w);
  p.dilation_h = static_cast<int>(source.dilation_h);
  p.dilation_w = static_cast<int>(source.dilation_w);
  p.pad_h = static_cast<int>(source.pad_h);
  p.pad_w = static_cast<int>(source.pad_w);
  p.rows = tile.rows;
  p.columns = tile.columns;
  p.images = tile.images;
  p.run = tile.shape == Shape::kRun ? tile.kind().pixels / 2 : 0;
  p.pitch = tile.pitch;
  p.x_stages = tile.x_stages;
  p.w_stages = tile.w_stages;
  p.boxed_out = tile.boxed_out;
  if (p.boxed_out) {
    p.y = map_output(problem, tile, p.out.data);
    const auto* residual = static_cast<const T*>(operands.epilogue.residual);
    if (residual != nullptr) p.residual = map_output(problem, tile, residual);
  }
  p.staging_bytes = staging(problem, tile);
  p.stage_bytes = tile.stage_bytes;
  p.weight_bytes = tile.weight_bytes();
  p.boxed_bytes = tile.positions * kRowBytes;
  p.cluster = tile.cluster();
  for (int i = 0; i < tile.kind().blocks(); ++i) {
    int position = i * kInstructionRows;
    if (tile.shape == Shape::kSquares) {
      const int across = tile.columns / 8, down = tile.rows / 8;
      const int column = i % across * 8, row = i / across % down * 8, image = i / across / down;
      position = (image * tile.plane_rows + row) * tile.pitch + column;
    }
    p.block_at[i] = static_cast<uint32_t>(position * kRowBytes);
  }
  p.group_bytes =
      static_cast<uint32_t>((tile.shape == Shape::kSquares ? tile.pitch : 8) * kRowBytes);
  p.splits = tile.splits;
  p.split_steps = tile.steps() / tile.splits;
  p.longer_splits = tile.steps() % tile.splits;
  p.clustered = tile.clustered;
  p.items = static_cast<int>(tile.tiles()) * tile.splits;
  p.pieces = tile.pieces;
  p.chunk = tile.chunk;
  p.group_C = static_cast<int>(problem.group_C());
  p.planes_first = tile.planes_first;
  using D = Divider<int32_t>;
  p.in_cluster = D(tile.cluster());
  p.tiles_k = D(tile.tiles_k);
  p.tiles_x = D(tile.tiles_q * tile.tiles_p * tile.tiles_n);
  p.group_K = D(problem.group_K());
  p.in_group = D(tile.tiles_k / problem.groups);
  p.tiles_q = D(tile.tiles_q);
  p.tiles_p = D(tile.tiles_p);
  p.tiles_n = D(tile.tiles_n);
  p.planes_h = D(tile.h.planes);
  p.planes_w = D(tile.w.planes);
  p.partial = reinterpret_cast<float*>(static_cast<char*>(context.workspace) +
                                       shape.workspace_bytes - partial_bytes(tile));

  const bool fused = !operands.epilogue.is_empty();
  const auto kernel = [&]() -> KernelOf<T> {
    if (tile.by_warps) return kernel_by_warps<T>(tile);
    if constexpr (sizeof(T) == 2) {
      if (tile.transposed) return kernel_of_gradient<T>(tile);
    }
    return fused ? kernel_of<T, true>(tile) : kernel_of<T, false>(tile);
  }();
  start("implicit_gemm",
        {std::min(plan.blocks, shape.blocks), shape.threads, shape.shared_bytes, context.stream,
         /*early=*/!tile.by_warps, tile.cluster()},
        kernel, p);
  if (partial_bytes(tile) > 0) {
    const KernelOf<T> add = fused ? reducer_of<T, true>(tile) : reducer_of<T, false>(tile);
    const int64_t parts =
        tile.tiles() * tile.kind().blocks() * (tile.kind().channels / kSplitColumns);
    start("implicit_gemm: the parts of sums",
          {parts, 128, 4 * warp_staging(sizeof(T), kSplitColumns), context.stream,
           /*early=*/!tile.by_warps},
          add, p);
  }
  if (problem.woven > 0) {
    weave_phases(asked, problem, y, result, /*early=*/!tile.by_warps, context.stream);
  }
}

}  // namespace customconv::implicit_gemm
