// The kernel and its launcher: the products of a tile's pixels of dy and all taps of a column, and
// then col2im along rows.
#pragma once

#include <algorithm>
#include <numeric>

#include "kernels/col2im/copy.cuh"
#include "kernels/col2im/gather.cuh"
#include "kernels/col2im/multiply.cuh"
#include "kernels/col2im/pack.cuh"
#include "kernels/common/start.h"
#include "kernels/launch.h"

namespace customconv::col2im {

// Which blocks of columns have a tap of the lane's shift.
template <typename T>
__device__ inline uint32_t find_used(const Params<T>& p, int first_phase) {
  static_assert(kMostShifts == 32);
  const int lane = static_cast<int>(threadIdx.x) % 32, blocks = p.phase_columns / kBlockColumns;
  uint32_t used = 0;
  if (lane < p.shift_count) {
    for (int i = 0; i < p.phases && first_phase + i < p.h.stride; ++i) {
      const int phase = first_phase + i;
      if (tap_of(phase, p.shifts[lane], p.h.stride, p.h.dilation, p.h.taps) < 0) continue;
      used |= ((1u << blocks) - 1) << (i * blocks);
    }
  }
  return used;
}

template <typename T, Order kOrder, int kColumnBlocks, int kWarpBlocks>
__global__ void __launch_bounds__(kMostThreads, blocks_of(kWarpBlocks))
    convolve(const __grid_constant__ Params<T> p) {
  extern __shared__ __align__(16) char memory[];
  constexpr int kMatrixBytes = kColumnBlocks * kBlockColumns * kChunkBytes;

  int32_t tile = static_cast<int>(blockIdx.x);
  Share share;
  const int chunk_c = p.by_channel_chunks.split(tile), chunk_h = p.by_phase_chunks.split(tile);
  share.channel = chunk_c * p.channels;
  share.phase = chunk_h * p.phases;
  share.column = p.w.first + p.by_tiles_w.split(tile) * p.columns;
  share.row = p.h.first + p.by_tiles_h.split(tile) * p.rows;
  share.n = tile;
  const Origin origin{share.n, share.row - p.h.reach, share.column - p.lead};
  const char* packed = p.packed + (int64_t{chunk_h} * p.by_channel_chunks.divisor() + chunk_c) *
                                      p.k_chunks * p.shift_count * kMatrixBytes;

  const uint32_t stages = ptx::shared_address(memory);
  const auto stage_of = [&](int chunk) { return stages + chunk % kStages * p.stage_bytes; };
  // Some phases have no taps: their outputs are 0.
  const uint32_t used = find_used(p, share.phase);
  const int chunks = __any_sync(~0u, used != 0) ? p.k_chunks : 0;
  const auto copy_chunk = [&](int chunk) {
    if (chunk < chunks) {
      copy_dy<kOrder>(p, origin, chunk * (kChunkBytes / static_cast<int>(sizeof(T))),
                      stage_of(chunk));
    }
    if (chunk == 0) ptx::wait_on_dependent_grids();
    if (chunk < chunks) {
      copy_weights(packed + int64_t{chunk} * p.shift_count * kMatrixBytes,
                   p.shift_count * kColumnBlocks * kBlockColumns, stage_of(chunk) + p.dy_bytes);
    }
    ptx::commit_copies();
  };
#pragma unroll 1
  for (int chunk = 0; chunk < kStages; ++chunk) copy_chunk(chunk);

  const int first_block = static_cast<int>(threadIdx.x) / 32 * kWarpBlocks;
  uint32_t at[kWarpBlocks];
#pragma unroll
  for (int m = 0; m < kWarpBlocks; ++m) {
    // Blocks behind the last one multiply it again.
    const int pixel = min((first_block + m) * kBlockPixels, p.rows * p.width - kBlockPixels);
    at[m] = Pixels<T, kOrder>::place(p, pixel);
  }
  float sum[kWarpBlocks][kColumnBlocks][4] = {};
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    ptx::await_groups<kStages - 1>();
    __syncthreads();
    multiply_chunk<T, kOrder>(p, used, stage_of(chunk), at, sum);
    __syncthreads();
    copy_chunk(chunk + kStages);
  }
  auto* sums = reinterpret_cast<float*>(memory);
  spread_sums(p, first_block, sum, sums);
  __syncthreads();
  gather(p, share, sums);
}

template <typename T>
using KernelOf = void (*)(Params<T>);

template <typename T, Order kOrder, int kWarpBlocks>
KernelOf<T> kernel_of(int blocks) {
  static_assert(kBlocksCount == 6);
  static constexpr KernelOf<T> kTable[] = {
      convolve<T, kOrder, kBlocks[0], kWarpBlocks>, convolve<T, kOrder, kBlocks[1], kWarpBlocks>,
      convolve<T, kOrder, kBlocks[2], kWarpBlocks>, convolve<T, kOrder, kBlocks[3], kWarpBlocks>,
      convolve<T, kOrder, kBlocks[4], kWarpBlocks>, convolve<T, kOrder, kBlocks[5], kWarpBlocks>};
  return kTable[blocks];
}
template <typename T>
KernelOf<T> kernel_of(Order order, const Col2imPlan& v) {
  static_assert(kWarpBlocksCount == 2);
  const bool few = v.pixel_blocks == kWarpBlocks[0];
  const auto* const end = std::end(kBlocks);
  const auto blocks =
      static_cast<int>(std::find(std::begin(kBlocks), end, v.column_blocks) - kBlocks);
  if (order == Order::kPixels) {
    return few ? kernel_of<T, Order::kPixels, kWarpBlocks[0]>(blocks)
               : kernel_of<T, Order::kPixels, kWarpBlocks[1]>(blocks);
  }
  return few ? kernel_of<T, Order::kPlanes, kWarpBlocks[0]>(blocks)
             : kernel_of<T, Order::kPlanes, kWarpBlocks[1]>(blocks);
}

template <typename T>
Params<T> params_of(const ConvProblem& problem, const Geometry& g, const Work& w) {
  using D = Divider<int32_t>;
  Params<T> p{};
  p.y_n = problem.y_strides[0];
  p.y_k = problem.y_strides[1];
  p.y_h = problem.y_strides[2];
  p.y_w = problem.y_strides[3];
  p.x_n = problem.x_strides[0];
  p.x_c = problem.x_strides[1];
  p.x_h = problem.x_strides[2];
  p.x_w = problem.x_strides[3];
  p.C = static_cast<int>(g.C);
  p.K = static_cast<int>(g.K);
  p.h = g.h;
  p.w = g.w;
  p.vector = g.vector;
  p.rows = w.rows;
  p.width = w.width;
  p.lead = w.lead;
  p.columns = w.columns;
  p.phases = w.phases;
  p.channels = w.channels;
  p.phase_columns = w.phase_columns;
  p.k_chunks = w.k_chunks;
  p.shift_count = w.shift_count;
  std::copy_n(w.shifts, kMostShifts, p.shifts);
  p.stage_rows = w.stage_rows;
  p.plane = w.plane;
  p.dy_bytes = w.dy_bytes;
  p.stage_bytes = w.dy_bytes + w.weight_bytes;
  p.sum_pitch = w.sum_pitch;
  const bool channels_last = problem.x_strides[1] == 1;
  const int own = channels_last ? own_channels(w.channels) : w.channels;
  const Shape5& x = problem.x_strides;
  p.stores_batches = channels_last && own == kBatch && g.C % kBatch == 0 && problem.x_aligned &&
                     x[0] % kBatch == 0 && x[2] % kBatch == 0 && x[3] % kBatch == 0;
  const int common = std::gcd(g.w.stride, g.w.dilation), tap_step = g.w.stride / common;
  p.shift_step = g.w.dilation / common;
  while (int64_t{p.inverse} * p.shift_step % tap_step != 1 % tap_step) ++p.inverse;
  p.by_width = D(w.width);
  p.by_plane_vectors = D(w.stage_rows * w.width * static_cast<int>(sizeof(T)) / g.vector);
  p.by_channel_chunks = D(w.channel_chunks);
  p.by_phase_chunks = D(w.phase_chunks);
  p.by_tiles_w = D(w.tiles_w);
  p.by_tiles_h = D(w.tiles_h);
  p.by_outputs = D(int64_t{w.columns} * g.w.stride * (w.channels / own));
  p.by_sharers = D(w.channels / own);
  p.by_turns_c = D(own);
  p.by_stride_w = D(g.w.stride);
  p.by_common = D(common);
  p.by_tap_step = D(tap_step);
  return p;
}

template <typename T>
Weights<T> weights_of(const ConvProblem& problem, const Geometry& g, const Work& w, int columns,
                      int64_t bytes) {
  using D = Divider<int32_t>;
  Weights<T> from{};
  from.k = problem.w_strides[0];
  from.c = problem.w_strides[1];
  from.r = problem.w_strides[2];
  from.s = problem.w_strides[3];
  from.K = static_cast<int>(g.K);
  from.C = static_cast<int>(g.C);
  from.R = g.h.taps;
  from.S = g.w.taps;
  from.stride = g.h.stride;
  from.dilation = g.h.dilation;
  from.phases = w.phases;
  from.channels = w.channels;
  from.phase_columns = w.phase_columns;
  std::copy_n(w.shifts, kMostShifts, from.shifts);
  from.by_chunk_channels = D(w.chunk_channels);
  from.by_columns = D(columns);
  from.by_shifts = D(w.shift_count);
  from.by_k_chunks = D(w.k_chunks);
  from.by_channel_chunks = D(w.channel_chunks);
  from.count = static_cast<int>(bytes / static_cast<int64_t>(sizeof(T)));
  return from;
}

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  const Geometry g = geometry_of(problem);
  const auto way = plan.payload.as<Col2imPlan>();
  const Work w = work_of(g, way, sizeof(T));
  const LaunchShape shape = shape_of(g, w, way);
  const int columns = way.column_blocks * kBlockColumns;
  Weights<T> weights = weights_of<T>(problem, g, w, columns, shape.workspace_bytes);
  weights.w = static_cast<const T*>(operands.w);
  start<Weights<T>, T*>("col2im: weights",
                        {ceil_divide(weights.count, kPackThreads), kPackThreads, 0, context.stream},
                        pack_weights<T>, weights, static_cast<T*>(context.workspace));

  Params<T> params = params_of<T>(problem, g, w);
  params.dy = static_cast<const T*>(operands.y);
  params.dx = static_cast<T*>(operands.x);
  params.packed = static_cast<const char*>(context.workspace);
  start("col2im", {shape.blocks, shape.threads, shape.shared_bytes, context.stream, /*early=*/true},
        kernel_of<T>(g.order, way), params);
}

}  // namespace customconv::col2im
