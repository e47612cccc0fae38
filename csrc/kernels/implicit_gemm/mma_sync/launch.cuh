// Starts the kernels of warps: packed weights, parameters.
#pragma once

#include <algorithm>

#include "kernels/common/aligned.cuh"
#include "kernels/common/start.h"
#include "kernels/implicit_gemm/mma_sync/kernels.h"
#include "kernels/implicit_gemm/mma_sync/launch.h"
#include "kernels/implicit_gemm/mma_sync/pack_units.cuh"
#include "kernels/implicit_gemm/mma_sync/payload.h"
#include "kernels/implicit_gemm/pack_weights.h"
#include "kernels/implicit_gemm/weave.h"

namespace customconv::implicit_gemm::mma_sync {

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
  s.n = p.x_strides[0];
  s.c = p.x_strides[1];
  s.h = p.x_strides[2];
  s.w = p.x_strides[3];
  s.N = static_cast<int>(p.N);
  s.C = static_cast<int>(p.C);
  s.H = static_cast<int>(p.H);
  s.W = static_cast<int>(p.W);
  using D = Divider<int32_t>;
  s.row = tile.row;
  if (tile.fetch == Fetch::kShared) {
    s.vectors = tile.positions;
    s.vectors_in_row = D(tile.pitch);
    s.period = D(tile.plane_rows);
    return s;
  }
  s.reach = tile.h.reach;
  s.vectors = static_cast<int>(tile.positions * static_cast<int64_t>(sizeof(T)) / tile.row.vector);
  s.flat = tile.is_flat();
  s.flat_taps = static_cast<int>(p.R * p.S);
  s.flat_S = static_cast<int>(p.S);
  s.flat_C = static_cast<int>(asked.C);
  s.flat_bytes = tile.row.interleaved ? static_cast<int>(sizeof(T)) : tile.row.channel_bytes;
  s.vectors_in_row =
      D(std::max<int64_t>(tile.pitch * static_cast<int64_t>(sizeof(T)) / tile.row.vector, 1));
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
  const Forward problem = as_one_row(as_forward(asked));
  const Tile tile = make_tile(problem, plan.payload.as<MmaSyncPlan>(), plan.splits);
  const LaunchShape shape = shape_of(problem, tile);
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
      pack_weight_matrix(problem, /*transposed=*/false, packed, w, to, context.stream);
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
  p.weights = w;
  p.weight_row = static_cast<int>(packed.row);
  p.weight_taps = static_cast<int>(problem.taps_h * problem.taps_w);
  p.out = make_output(problem, tile, y, operands.epilogue);
  p.source = make_source(problem, tile, x);
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
  p.staging_bytes = staging(problem, tile);
  p.stage_bytes = tile.stage_bytes;
  for (int i = 0; i < tile.kind().blocks(); ++i) {
    int position = i * kBlockPixels;
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
  p.items = static_cast<int>(tile.tiles()) * tile.splits;
  p.pieces = tile.pieces;
  p.chunk = tile.chunk;
  p.group_C = static_cast<int>(problem.group_C());
  p.planes_first = tile.planes_first;
  using D = Divider<int32_t>;
  p.tiles_k = D(tile.tiles_k);
  p.tiles_x = D(tile.tiles_q * tile.tiles_p * tile.tiles_n);
  p.in_group = D(tile.tiles_k / problem.groups);
  p.tiles_q = D(tile.tiles_q);
  p.tiles_p = D(tile.tiles_p);
  p.tiles_n = D(tile.tiles_n);
  p.planes_h = D(tile.h.planes);
  p.planes_w = D(tile.w.planes);
  p.partial = reinterpret_cast<float*>(static_cast<char*>(context.workspace) +
                                       shape.workspace_bytes - partial_bytes(tile));

  start("implicit_gemm",
        {std::min(plan.blocks, shape.blocks), shape.threads, shape.shared_bytes, context.stream},
        kernel_of<T>(tile), p);
  if (tile.splits > 1) {
    start("implicit_gemm: the parts of sums",
          {tile.tiles() * split_parts(tile.kind()), 128,
           4 * static_cast<int>(warp_staging(sizeof(T), kSplitColumns)), context.stream},
          adder_of<T>(tile), p);
  }
  if (problem.woven > 0) {
    weave_phases(asked, problem, y, result, /*early=*/false, context.stream);
  }
}

}  // namespace customconv::implicit_gemm::mma_sync
