// Forward and input gradient. A block goes from tile to tile: each is brought by one copy, of which
// some are on their way, and its results are stored by another.
#pragma once

#include "kernels/common/activate.cuh"
#include "kernels/common/channel_value.cuh"
#include "kernels/depthwise/planes/run.cuh"
#include "kernels/depthwise/planes/share.cuh"
#include "kernels/depthwise/planes/window.cuh"

namespace customconv::depthwise::planes {

// What the sums of a thread become. `first`: where the first one lies in the output.
template <int kKept, int kColumns, typename T>
__device__ inline void finish_sums(const Params<T>& p, int channel, int64_t first, int rows,
                                   int columns, float (&sum)[kKept][kColumns]) {
  const Epilogue& e = p.epilogue;
  float scale = 1, bias = 0;
  if (e.scale != nullptr) scale = channel_value<T>(e, e.scale, channel);
  if (e.bias != nullptr) bias = channel_value<T>(e, e.bias, channel);
  const T* residual = static_cast<const T*>(e.residual) + first;
  const auto add_residual = [&] {
#pragma unroll
    for (int t = 0; t < kKept; ++t) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (t < rows && j < columns) sum[t][j] += widen(residual[int64_t{t} * p.Q + j]);
      }
    }
  };
#pragma unroll
  for (int t = 0; t < kKept; ++t) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sum[t][j] = fmaf(sum[t][j], scale, bias);
  }
  if (e.residual != nullptr && !e.residual_last) add_residual();
  activate<kKept * kColumns>(sum[0], e.activation, e.negative_slope);
  if (e.residual != nullptr && e.residual_last) add_residual();
}

// Writes a thread's results where they wait to be stored.
template <int kKept, int kColumns, typename T>
__device__ inline void stage_sums(const Params<T>& p, T* to, int rows, int columns,
                                  const float (&sum)[kKept][kColumns]) {
#pragma unroll
  for (int t = 0; t < kKept; ++t, to += p.Q) {
    if (t >= rows) break;
    if (sizeof(T) == 2 && kColumns % 2 == 0 && p.paired) {
#pragma unroll
      for (int j = 0; j < kColumns; j += 2) {
        if (j < columns) {
          *reinterpret_cast<uint32_t*>(to + j) = pack_pair<T>(sum[t][j], sum[t][j + 1]);
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (j < columns) to[j] = narrow<T>(sum[t][j]);
      }
    }
  }
}

// Sums a thread's outputs. `in`: the address of the first row and column of the input that they
// meet; `h`: that row.
template <Walk kWalk, int kCount, int kAcross, int kKept, int kColumns, typename T>
__device__ inline void sum_strip(const Params<T>& p, uint32_t in, int h, uint32_t zeros,
                                 const typename Window<T, kAcross>::Mask& mask,
                                 const float (&weight)[kCount][kCount],
                                 float (&sum)[kKept][kColumns]) {
#pragma unroll
  for (int i = 0; i < reach_of(kWalk, kCount, kKept); ++i) {
    Window<T, kAcross> window;
    window.load(row_address<T>(in, i, p.W, is_within(h + i, p.H), zeros), mask);
#pragma unroll
    for (int t = 0; t < kKept; ++t) {
      const int r = tap_of(kWalk, kCount, t, i);
      if (r < 0 || r >= kCount) continue;
#pragma unroll
      for (int x = 0; x < kAcross; ++x) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const int s = tap_of(kWalk, kCount, j, x);
          if (s >= 0 && s < kCount) sum[t][j] = fmaf(weight[r][s], window[x], sum[t][j]);
        }
      }
    }
  }
}

template <typename T, int kIndex>
__global__ void __launch_bounds__(kMostThreads, blocks_of(Variant::at(kIndex), sizeof(T)))
    convolve(const __grid_constant__ Params<T> p) {
  if constexpr (ptx::kHasTma) {
    constexpr Variant kVariant = Variant::at(kIndex);
    constexpr Walk kWalk = kVariant.walk;
    constexpr int kCount = kTaps[kVariant.taps], kKept = kRows[kVariant.rows];
    constexpr int kColumns = kVariant.columns(sizeof(T));
    constexpr int kAcross = reach_of(kWalk, kCount, kColumns);
    extern __shared__ __align__(16) char memory[];
    __shared__ ptx::Barrier full[kMostStages];
    const int thread = static_cast<int>(threadIdx.x), tile_blocks = static_cast<int>(gridDim.x);
    const auto share = [&](int tile) {
      int32_t rest = tile;
      const int band = p.bands.split(rest), plane = rest * p.tile_planes;
      return share_of<kWalk, kCount, kKept>(p, plane, min(p.tile_planes, p.planes - plane), band);
    };
    const auto stage_in = [&](int stage) {
      return reinterpret_cast<T*>(memory + kFrontBytes + stage * p.stage_bytes);
    };
    const auto bring = [&](int tile, int stage) {
      const Share own = share(tile);
      bring_run(p.in, p.in_count, own.first_in(p), own.in_count(p), stage_in(stage), &full[stage]);
      ptx::arrive(&full[stage]);
    };
    const int first_tile = static_cast<int>(blockIdx.x);
    if (thread == 0) {
      for (ptx::Barrier& barrier : full) ptx::init_barrier(&barrier, 1);
      ptx::fence_barrier_init();
      for (int i = 0; i < p.stages && first_tile + i * tile_blocks < p.tiles; ++i) {
        bring(first_tile + i * tile_blocks, i);
      }
    }
    const uint32_t zeros = write_zeros(memory + p.zeros_at, thread);
    const Item item = item_of<kKept, kColumns>(p, thread);
    const int w = input_of(kWalk, item.q, p.first_w), columns = min(p.Q - item.q, kColumns);
    const typename Window<T, kAcross>::Mask mask(w, p.W);
    __syncthreads();
    ptx::PipelineState state;
    int out_stage = 0;
#pragma unroll 1
    for (int tile = first_tile; tile < p.tiles; tile += tile_blocks) {
      const Share own = share(tile);
      const int rows = item.plane < own.planes ? min(own.rows - item.p, kKept) : 0;
      T* const out = reinterpret_cast<T*>(memory + p.out_at + out_stage * p.out_bytes);
      if (rows > 0) {
        int32_t rest = own.plane + item.plane;
        const int channel = p.channels.split(rest);
        const T* filter = p.weight + int64_t{channel} * (kCount * kCount);
        float weight[kCount][kCount], sum[kKept][kColumns] = {};
#pragma unroll
        for (int i = 0; i < kCount * kCount; ++i) weight[i / kCount][i % kCount] = widen(filter[i]);
        ptx::wait(&full[state.stage], state.parity);
        const int h = input_of(kWalk, own.p + item.p, p.first_h);
        const int first = own.lead_in(p) + (item.plane * p.H + h - own.h) * p.W + w;
        sum_strip<kWalk, kCount, kAcross>(p, ptx::shared_address(stage_in(state.stage) + first), h,
                                          zeros, mask, weight, sum);
        const int at = (item.plane * p.P + item.p) * p.Q + item.q;
        if (p.finishes) finish_sums(p, channel, own.first_out(p) + at, rows, columns, sum);
        stage_sums(p, out + own.lead_out(p) + at, rows, columns, sum);
        ptx::fence_shared_writes();
      }
      // The stores of the tile before have been read, so that their place can be filled again.
      if (thread == 0) ptx::tma_store_wait();
      __syncthreads();
      if (thread < 32) {
        store_run(p.out + own.first_out(p), out, own.out_count(p), thread);
        const int next = tile + p.stages * tile_blocks;
        if (thread == 0 && next < p.tiles) bring(next, state.stage);
      }
      out_stage ^= 1;
      state.advance(p.stages);
    }
    if (thread == 0) ptx::tma_store_wait();
  }
}

}  // namespace customconv::depthwise::planes
