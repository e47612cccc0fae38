// Forward and input gradient: a thread sums a patch of outputs of a pair of channels at a time from
// the tile's window. All taps of the usual filters are in its registers.
#pragma once

#include "kernels/common/activate.cuh"
#include "kernels/common/channel_value.cuh"
#include "kernels/depthwise/boxes/boxes.cuh"
#include "kernels/ptx/grid.cuh"

namespace customconv::depthwise::boxes {

// The block's filters as floats, tap by tap; the channels of a tap and a pad, for the banks' sake.
template <typename T>
__device__ inline void stage_filters(const Params<T>& p, int channel, float* filters) {
  constexpr int kAtOnce = 8;
  const int count = p.work.tile.channels * p.kernel.divisor();
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < count;
       first += kAtOnce * p.work.threads) {
    T value[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      // Where there is none, some that exists, which nothing will read.
      int32_t c = min(first + i * p.work.threads, count - 1);
      int32_t r = p.kernel.split(c);
      const int s = p.by_S.split(r);
      value[i] = p.weight[min(channel + c, p.C - 1) * p.weight_k + r * p.weight_r + s * p.weight_s];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      int32_t c = first + i * p.work.threads;
      if (c >= count) break;
      const int tap = p.kernel.split(c);
      filters[tap * (p.work.tile.channels + 1) + c] = widen(value[i]);
    }
  }
}
__device__ inline float2 read_weight(const float* from) { return {from[0], from[1]}; }

// Sums so many rows of a patch by any filter, whose taps are in shared memory: some of a row of
// the filter at a time.
template <int kTaps, typename T>
__device__ inline void sum_any(const Params<T>& p, const char* from, const float* weights, int rows,
                               float2 (&sum)[kPatch][kPatch]) {
  constexpr int kColumns = kPatch + kTaps - 1, kRows = 2;  // that are read at once
  const int apart = p.w.step * p.pixel_bytes, down = p.h.step * p.in_box.row_bytes;
#pragma unroll 1
  for (int r = 0; r < p.h.taps; ++r, from += p.h.dilation * p.in_box.row_bytes) {
    const char* column = from;
#pragma unroll 1
    for (int s = 0; s < p.w.taps; s += kTaps, column += kTaps * p.w.dilation * p.pixel_bytes) {
      float2 weight[kTaps];
#pragma unroll
      for (int i = 0; i < kTaps; ++i, weights += p.work.tile.channels + 1) {
        if (s + i >= p.w.taps) break;
        weight[i] = read_weight(weights);
      }
#pragma unroll
      for (int first = 0; first < kPatch; first += kRows) {
        if (first >= rows) break;
        Pair<T> pair[kRows][kColumns] = {};
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          if (c >= kPatch && s + c >= p.w.window) break;
#pragma unroll
          for (int t = 0; t < kRows; ++t) {
            const char* at = column + (first + t) * down + c * apart;
            pair[t][c] = *reinterpret_cast<const Pair<T>*>(at);
          }
        }
        float2 value[kRows][kColumns];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
#pragma unroll
          for (int t = 0; t < kRows; ++t) value[t][c] = widen_pair<T>(pair[t][c]);
        }
#pragma unroll
        for (int i = 0; i < kTaps; ++i) {
          if (s + i >= p.w.taps) break;
#pragma unroll
          for (int t = 0; t < kRows; ++t) {
#pragma unroll
            for (int j = 0; j < kPatch; ++j) {
              multiply_add(weight[i], value[t][i + j], sum[first + t][j]);
            }
          }
        }
      }
    }
  }
}

// The epilogue, of outputs at `first` and beside it, of which some don't exist.
template <typename T, typename Exists>
__device__ inline void finish_patch(const Params<T>& p, int channel, int64_t first,
                                    const Exists& exists, float2 (&sum)[kPatch][kPatch]) {
  const Epilogue& e = p.epilogue;
  const auto pair_of = [&e, channel](const void* values) {
    return float2{channel_value<T>(e, values, channel), channel_value<T>(e, values, channel + 1)};
  };
  if (e.scale != nullptr || e.bias != nullptr) {
    const float2 scale = e.scale != nullptr ? pair_of(e.scale) : float2{1, 1};
    const float2 bias = e.bias != nullptr ? pair_of(e.bias) : float2{0, 0};
#pragma unroll
    for (int i = 0; i < kPatch * kPatch; ++i) {
      float2& v = sum[i / kPatch][i % kPatch];
      v = {fmaf(v.x, scale.x, bias.x), fmaf(v.y, scale.y, bias.y)};
    }
  }
  const T* residual = static_cast<const T*>(e.residual);
  const auto add_residual = [&] {
#pragma unroll
    for (int i = 0; i < kPatch * kPatch; ++i) {
      const int t = i / kPatch, j = i % kPatch;
      if (!exists(t, j)) continue;
      const float2 r = read_pair<T>(residual + first + t * p.out_h + j * p.out_w);
      sum[t][j].x += r.x;
      sum[t][j].y += r.y;
    }
  };
  if (residual != nullptr && !e.residual_last) add_residual();
  activate<2 * kPatch * kPatch>(&sum[0][0].x, e.activation, e.negative_slope);
  if (residual != nullptr && e.residual_last) add_residual();
}

template <bool kFinishes, typename T>
__device__ inline void store_patch(const Params<T>& p, int channel, const Place& where,
                                   float2 (&sum)[kPatch][kPatch]) {
  const int h = p.h.first + where.h * kPatch, w = p.w.first + where.w * kPatch;
  const auto is_within = [](int i, int size) {
    return static_cast<unsigned>(i) < static_cast<unsigned>(size);
  };
  const auto exists = [&](int t, int j) {
    return is_within(h + t, p.h.out) && is_within(w + j, p.w.out);
  };
  const int64_t first = where.n * p.out_n + h * p.out_h + w * p.out_w + channel;
  if (kFinishes) finish_patch(p, channel, first, exists, sum);
  const auto store = [&](const auto& is_stored) {
    T* row = p.out + first;
#pragma unroll
    for (int t = 0; t < kPatch; ++t, row += p.out_h) {
      T* to = row;
#pragma unroll
      for (int j = 0; j < kPatch; ++j, to += p.out_w) {
        if (is_stored(t, j)) *reinterpret_cast<Pair<T>*>(to) = narrow_pair<T>(sum[t][j]);
      }
    }
  };
  if (exists(0, 0) && exists(kPatch - 1, kPatch - 1)) {
    store([](int, int) { return true; });
  } else {
    store(exists);
  }
}

// `kTaps`: of a row of the filter, or of kAny so many as are computed at once. `kFinishes`: there
// is an epilogue, which would take the others' registers.
template <typename T, Walk kWalk, int kTaps, bool kFinishes>
__global__ void __launch_bounds__(most_threads(kTaps) + kLoaderThreads, blocks_of(kTaps))
    convolve(const __grid_constant__ Params<T> p) {
  if constexpr (ptx::kHasTma) {
    extern __shared__ __align__(128) char boxes[];
    const Memory memory(p, boxes);
    const Share<T> share(p);
    const int thread = static_cast<int>(threadIdx.x);
    ptx::launch_dependent_grids();
    init_barriers(p, memory);
    ptx::wait_on_dependent_grids();
    if (thread >= p.work.threads) {
      load_tiles<false>(p, memory, share);
      return;
    }
    stage_filters(p, share.channel, memory.floats);
    ptx::named_barrier_sync(1, p.work.threads);
    const Lane lane(p, share);
    const int channel = share.channel + lane.pair;
    const float* const weights = memory.floats + lane.pair;
    if constexpr (kWalk == Walk::kAny) {
      const int column = lane.column * p.w.advance * p.pixel_bytes + lane.pair * sizeof(T);
      walk_tiles(p, memory, share, lane,
                 [&](const Place& where, const Place& own, const char* stage) {
                   const char* from = window_at(p, stage, own) + column;
                   float2 sum[kPatch][kPatch] = {};
                   sum_any<kTaps>(p, from, weights, p.h.out - where.h * kPatch, sum);
                   store_patch<kFinishes>(p, channel, where, sum);
                 });
    } else {
      const Columns<kWalk, kTaps> columns(p, lane);
      float2 weight[kTaps][kTaps];
#pragma unroll
      for (int i = 0; i < kTaps * kTaps; ++i) {
        weight[i / kTaps][i % kTaps] = read_weight(weights + i * (p.work.tile.channels + 1));
      }
      walk_tiles(
          p, memory, share, lane, [&](const Place& where, const Place& own, const char* stage) {
            float2 sum[kPatch][kPatch] = {};
            walk_window(p, columns, stage, own, [&](int t, int j, int r, int s, float2 value) {
              multiply_add(weight[r][s], value, sum[t][j]);
            });
            store_patch<kFinishes>(p, channel, where, sum);
          });
    }
  }
}

}  // namespace customconv::depthwise::boxes
