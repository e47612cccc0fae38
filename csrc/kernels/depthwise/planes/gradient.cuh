// The weight gradient. A block goes through its part of the tiles of some channels with the
// gradients of a strip's taps in each thread's registers; TMA is some tiles ahead.
#pragma once

#include "kernels/common/parts.cuh"
#include "kernels/depthwise/planes/run.cuh"
#include "kernels/depthwise/planes/share.cuh"
#include "kernels/depthwise/planes/window.cuh"

namespace customconv::depthwise::planes {

template <int kCount>
__device__ inline void clear(float (&sum)[kCount][kCount]) {
#pragma unroll
  for (int i = 0; i < kCount * kCount; ++i) sum[i / kCount][i % kCount] = 0;
}
template <int kCount>
__device__ inline void add_all(const float (&from)[kCount][kCount], float (&to)[kCount][kCount]) {
#pragma unroll
  for (int i = 0; i < kCount * kCount; ++i)
    to[i / kCount][i % kCount] += from[i / kCount][i % kCount];
}
template <int kCount>
__device__ inline bool is_finite(const float (&sum)[kCount][kCount]) {
  float zero = 0;
#pragma unroll
  for (int i = 0; i < kCount * kCount; ++i) zero = fmaf(sum[i / kCount][i % kCount], 0.0f, zero);
  return zero == 0;
}

// What a strip adds to the taps. Outputs that do not exist are zeros; `kPartial`: they are left
// out. `in`, `out`: the addresses of its first row and column, and of those of the input that it
// meets; `h`: that row of the input.
template <Walk kWalk, bool kPartial, int kKept, int kColumns, int kCount, int kAcross, typename T>
__device__ inline void add_strip(const Params<T>& p, uint32_t in, int h,
                                 const typename Window<T, kAcross>::Mask& mask, uint32_t out,
                                 int rows, int columns,
                                 const typename Window<T, kColumns>::Mask& out_mask, uint32_t zeros,
                                 float (&sum)[kCount][kCount]) {
  Window<T, kColumns> gradient[kKept];
#pragma unroll
  for (int t = 0; t < kKept; ++t) {
    gradient[t].load(row_address<T>(out, t, p.Q, t < rows, zeros), out_mask);
  }
#pragma unroll
  for (int i = 0; i < reach_of(kWalk, kCount, kKept); ++i) {
    Window<T, kAcross> window;
    window.load(row_address<T>(in, i, p.W, is_within(h + i, p.H), zeros), mask);
#pragma unroll
    for (int t = 0; t < kKept; ++t) {
      const int r = tap_of(kWalk, kCount, t, i);
      if (r < 0 || r >= kCount || (kPartial && t >= rows)) continue;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (kPartial && j >= columns) continue;
#pragma unroll
        for (int x = 0; x < kAcross; ++x) {
          const int s = tap_of(kWalk, kCount, j, x);
          if (s >= 0 && s < kCount) sum[r][s] = fmaf(gradient[t][j], window[x], sum[r][s]);
        }
      }
    }
  }
}

// The same, element by element, of only so many rows and columns. `w`: the first column of the
// input.
template <Walk kWalk, int kCount, typename T>
__device__ inline void add_elements(const Params<T>& p, const T* in, int h, int w, const T* out,
                                    int rows, int columns, float (&sum)[kCount][kCount]) {
  constexpr int kStep = kWalk == Walk::kSecond ? 2 : 1;
#pragma unroll 1
  for (int t = 0; t < rows; ++t) {
#pragma unroll 1
    for (int j = 0; j < columns; ++j) {
      const float gradient = widen(out[t * p.Q + j]);
#pragma unroll
      for (int i = 0; i < kCount * kCount; ++i) {
        const int r = t * kStep + i / kCount, s = j * kStep + i % kCount;
        if (!is_within(h + r, p.H) || !is_within(w + s, p.W)) continue;
        float& to = sum[i / kCount][i % kCount];
        to = fmaf(gradient, widen(in[r * p.W + s]), to);
      }
    }
  }
}

// Adds up what the threads of a plane have in `totals`, in a fixed order, and stores it, or leaves
// it as a part. A warp shares a sum where it is long.
template <int kCount, typename T>
__device__ inline void store_sums(const Params<T>& p, int channel, int planes, int split,
                                  int thread, const float* totals) {
  constexpr int kSums = kCount * kCount, kWarp = 32;
  const int threads = static_cast<int>(blockDim.x);
  const int terms = p.tile_images.divisor() * p.row_strips.divisor() * p.column_strips.divisor();
  const bool shared = terms >= kWarp;
  const int sharers = shared ? kWarp : 1, sharer = shared ? thread % kWarp : 0;
#pragma unroll 1
  for (int i = shared ? thread / kWarp : thread; i < planes * kSums; i += threads / sharers) {
    const int plane = i % planes, tap = i / planes;
    const float* from = totals + tap * threads + plane * terms + sharer;
    float total =
        sum_of((terms - sharer + sharers - 1) / sharers, [&](int n) { return from[n * sharers]; });
    if (shared) {
#pragma unroll
      for (int apart = kWarp / 2; apart > 0; apart /= 2) {
        total += __shfl_xor_sync(~0u, total, apart);
      }
      if (sharer > 0) continue;
    }
    const int64_t k = channel + plane;
    if (p.partial == nullptr) {
      p.weight[k * kSums + tap] = narrow<T>(total);
    } else {
      p.partial[(int64_t{split} * kSums + tap) * p.channels.divisor() + k] = total;
    }
  }
}

template <typename T, int kIndex>
__global__ void __launch_bounds__(kMostThreads, blocks_of(Variant::at(kIndex), sizeof(T)))
    sum_weights(const __grid_constant__ Params<T> p) {
  if constexpr (ptx::kHasTma) {
    constexpr Variant kVariant = Variant::at(kIndex);
    constexpr Walk kWalk = kVariant.walk;
    constexpr int kCount = kTaps[kVariant.taps], kKept = kRows[kVariant.rows];
    constexpr int kColumns = kVariant.columns(sizeof(T));
    constexpr int kAcross = reach_of(kWalk, kCount, kColumns), kWarp = 32;
    extern __shared__ __align__(16) char memory[];
    __shared__ ptx::Barrier full[kMostStages];
    const int thread = static_cast<int>(threadIdx.x);
    int32_t group = static_cast<int32_t>(blockIdx.x);
    const int split = p.splits.split(group);
    const int channel = group * p.tile_planes;
    const int planes = min(p.tile_planes, p.channels.divisor() - channel);
    const int each = (p.steps + p.splits.divisor() - 1) / p.splits.divisor();
    const int begin = min(split * each, p.steps), end = min(begin + each, p.steps);
    // No planes where there is no such image.
    const auto share = [&](int step, int image) {
      int32_t first = step;
      const int band = p.bands.split(first);
      image += first * p.tile_images.divisor();
      return share_of<kWalk, kCount, kKept>(p, image * p.channels.divisor() + channel,
                                            image < p.N ? planes : 0, band);
    };
    const auto stage_in = [&](int stage, int image) {
      return reinterpret_cast<T*>(memory + kFrontBytes + stage * p.stage_bytes + image * p.in_run);
    };
    const auto stage_out = [&](int stage, int image) {
      return reinterpret_cast<T*>(memory + stage * p.stage_bytes + p.out_at + image * p.out_run);
    };
    // Every warp brings some of a tile's runs, a lane each: of an image the input's and the
    // output's.
    const int lane = thread % kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
    const auto bring = [&](int step, int stage) {
      const int runs = 2 * p.tile_images.divisor();
      for (int i = thread / kWarp + lane * warps; i < runs; i += kWarp * warps) {
        const Share own = share(step, i / 2);
        if (own.planes == 0) continue;
        const bool is_in = i % 2 == 0;
        bring_run(is_in ? p.in : p.out, is_in ? p.in_count : p.out_count,
                  is_in ? own.first_in(p) : own.first_out(p),
                  is_in ? own.in_count(p) : own.out_count(p),
                  is_in ? stage_in(stage, i / 2) : stage_out(stage, i / 2), &full[stage]);
      }
      __syncwarp();
      if (lane == 0) ptx::arrive(&full[stage]);
    };
    if (thread == 0) {
      for (ptx::Barrier& barrier : full) ptx::init_barrier(&barrier, warps);
      ptx::fence_barrier_init();
    }
    const uint32_t zeros = write_zeros(memory + p.zeros_at, thread);
    __syncthreads();
    for (int i = 0; i < p.stages && begin + i < end; ++i) bring(begin + i, i);
    Item item = item_of<kKept, kColumns>(p, thread);
    const int image = p.tile_images.split(item.plane);
    const int w = input_of(kWalk, item.q, p.first_w), columns = min(p.Q - item.q, kColumns);
    const typename Window<T, kAcross>::Mask mask(w, p.W);
    const typename Window<T, kColumns>::Mask out_mask(0, columns);
    float total[kCount][kCount] = {};
    ptx::PipelineState state;
#pragma unroll 1
    for (int step = begin; step < end; ++step) {
      const Share own = share(step, image);
      const int rows = item.plane < own.planes ? min(own.rows - item.p, kKept) : 0;
      const bool cut = rows > 0 && (rows < kKept || columns < kColumns);
      // A warp goes one way or the other.
      const bool partial = sums_strips(kCount) ? cut : __any_sync(~0u, cut);
      ptx::wait(&full[state.stage], state.parity);
      if (rows > 0) {
        const int h = input_of(kWalk, own.p + item.p, p.first_h);
        const int first_in = own.lead_in(p) + (item.plane * p.H + h - own.h) * p.W + w;
        const T* const in_strip = stage_in(state.stage, image) + first_in;
        const uint32_t in = ptx::shared_address(in_strip);
        const int first_out = own.lead_out(p) + (item.plane * p.P + item.p) * p.Q + item.q;
        const T* const out_strip = stage_out(state.stage, image) + first_out;
        const uint32_t out = ptx::shared_address(out_strip);
        if constexpr (sums_strips(kCount)) {
          float part[kCount][kCount] = {};
          add_strip<kWalk, false, kKept, kColumns, kCount, kAcross>(p, in, h, mask, out, rows,
                                                                    columns, out_mask, zeros, part);
          // What does not exist has added zeros, unless it met a NaN or an infinity.
          if (partial && !is_finite(part)) {
            clear(part);
            add_elements<kWalk>(p, in_strip, h, w, out_strip, rows, columns, part);
          }
          add_all(part, total);
        } else if (partial) {
          add_strip<kWalk, true, kKept, kColumns, kCount, kAcross>(p, in, h, mask, out, rows,
                                                                   columns, out_mask, zeros, total);
        } else {
          add_strip<kWalk, false, kKept, kColumns, kCount, kAcross>(
              p, in, h, mask, out, rows, columns, out_mask, zeros, total);
        }
      }
      __syncthreads();
      if (step + p.stages < end) bring(step + p.stages, state.stage);
      state.advance(p.stages);
    }
    auto* totals = reinterpret_cast<float*>(memory);
#pragma unroll
    for (int i = 0; i < kCount * kCount; ++i) {
      totals[i * blockDim.x + thread] = total[i / kCount][i % kCount];
    }
    __syncthreads();
    store_sums<kCount>(p, channel, planes, split, thread, totals);
  }
}

}  // namespace customconv::depthwise::planes
