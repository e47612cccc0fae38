// The weight gradient: tiles of both images come together. A thread has the sums of all taps of a
// pair of channels in registers while its block goes through a share of the tiles; those of a block
// are added up in shared memory. Few blocks that share channels are a cluster, which adds up theirs
// too and stores the result; what more of them leave, a second kernel adds up. The order of all
// sums is fixed.
#pragma once

#include "kernels/common/parts.cuh"
#include "kernels/depthwise/boxes/boxes.cuh"

namespace customconv::depthwise::boxes {

template <int kTaps>
__device__ inline void clear(float2 (&sum)[kTaps][kTaps]) {
#pragma unroll
  for (int i = 0; i < kTaps * kTaps; ++i) sum[i / kTaps][i % kTaps] = {};
}
template <int kTaps>
__device__ inline void add_all(const float2 (&from)[kTaps][kTaps], float2 (&to)[kTaps][kTaps]) {
#pragma unroll
  for (int i = 0; i < kTaps * kTaps; ++i) {
    to[i / kTaps][i % kTaps].x += from[i / kTaps][i % kTaps].x;
    to[i / kTaps][i % kTaps].y += from[i / kTaps][i % kTaps].y;
  }
}
template <int kTaps>
__device__ inline bool is_finite(const float2 (&sum)[kTaps][kTaps]) {
  float2 zero{};
#pragma unroll
  for (int i = 0; i < kTaps * kTaps; ++i) multiply_add(sum[i / kTaps][i % kTaps], {0, 0}, zero);
  return zero.x == 0 && zero.y == 0;
}

// What a patch adds.
template <typename T, Walk kWalk, int kTaps>
__device__ inline void add_patch(const Params<T>& p, const Columns<kWalk, kTaps>& columns,
                                 const char* stage, const Place& own, const char* from,
                                 float2 (&sum)[kTaps][kTaps]) {
  float2 gradient[kPatch][kPatch];
#pragma unroll
  for (int t = 0; t < kPatch; ++t, from += p.out_box.row_bytes) {
#pragma unroll
    for (int j = 0; j < kPatch; ++j) gradient[t][j] = read_pair<T>(from + j * p.pixel_bytes);
  }
  walk_window(p, columns, stage, own, [&](int t, int j, int r, int s, float2 value) {
    multiply_add(gradient[t][j], value, sum[r][s]);
  });
}

// Whether zeros times what a patch reads are zeros.
template <typename T, Walk kWalk, int kTaps>
__device__ inline bool reads_finite(const Params<T>& p, const Columns<kWalk, kTaps>& columns,
                                    const char* stage, const Place& own) {
  constexpr int kWindow = window_of(kWalk, kTaps);
  const char* row = window_at(p, stage, own);
  float2 zero{};
#pragma unroll 2
  for (int r = 0; r < kWindow; ++r, row += p.in_box.row_bytes) {
#pragma unroll
    for (int c = 0; c < kWindow; ++c) {
      multiply_add(read_pair<T>(row + columns.place(p, c)), {0, 0}, zero);
    }
  }
  return zero.x == 0 && zero.y == 0;
}

// What it adds where only so many rows and columns of outputs exist, and the others, zeros in the
// tile, meet a NaN. Row by row: unrolled, it would not fit the instruction cache.
template <typename T, Walk kWalk, int kTaps>
__device__ inline void add_partial_patch(const Params<T>& p, const Columns<kWalk, kTaps>& columns,
                                         const char* stage, const Place& own, const char* from,
                                         int row_count, int column_count,
                                         float2 (&sum)[kTaps][kTaps]) {
  constexpr int kStep = kWalk == Walk::kSecond ? 2 : 1, kWindow = window_of(kWalk, kTaps);
  const int rows = min(row_count, kPatch);
  const char* window = window_at(p, stage, own);
#pragma unroll 1
  for (int t = 0; t < rows; ++t) {
    float2 gradient[kPatch];
#pragma unroll
    for (int j = 0; j < kPatch; ++j) gradient[j] = read_pair<T>(from + j * p.pixel_bytes);
    const char* row = window;
#pragma unroll
    for (int r = 0; r < kTaps; ++r, row += p.in_box.row_bytes) {
      float2 value[kWindow];
#pragma unroll
      for (int c = 0; c < kWindow; ++c) value[c] = read_pair<T>(row + columns.place(p, c));
#pragma unroll
      for (int j = 0; j < kPatch; ++j) {
        if (j >= column_count) break;
#pragma unroll
        for (int s = 0; s < kTaps; ++s) {
          multiply_add(gradient[j], value[j * kStep + s], sum[r][s]);
        }
      }
    }
    from += p.out_box.row_bytes;
    window += kStep * p.in_box.row_bytes;
  }
}

// Adds up what the block's threads have, and stores it, or leaves it as a part: tap by tap of all
// channels. A cluster's parts lie behind what the threads have.
template <int kTaps, typename T>
__device__ inline void store_sums(const Params<T>& p, const Share<T>& share, float* totals,
                                  const float2 (&sum)[kTaps][kTaps]) {
  constexpr int kKernel = kTaps * kTaps;
  const int thread = static_cast<int>(threadIdx.x);
  ptx::named_barrier_sync(1, p.work.threads);  // the stages are no longer read
  const float* flat = &sum[0][0].x;
#pragma unroll
  for (int i = 0; i < 2 * kKernel; ++i) totals[i * p.work.threads + thread] = flat[i];
  ptx::named_barrier_sync(1, p.work.threads);
  const int pairs = p.pairs.divisor(), lanes = p.columns.divisor() * p.work.down;
  const int sums = kKernel * p.work.tile.channels;
  float* const parts = totals + 2 * kKernel * p.work.threads;
  // Leaves of a sum's number its tap's, and returns its channel.
  const auto split = [&](int32_t& number) {
    const int own = number % 2;
    number /= 2;
    return p.pairs.split(number) * 2 + own;
  };
  const auto store = [&](int32_t tap, float total) {
    const int c = share.channel + split(tap);
    if (c >= p.C) return;
    if (p.partial != nullptr) {
      p.partial[(int64_t{share.first_tile} * kKernel + tap) * p.C + c] = total;
    } else {
      p.weight[c * p.weight_k + tap / kTaps * p.weight_r + tap % kTaps * p.weight_s] =
          narrow<T>(total);
    }
  };
#pragma unroll 1
  for (int i = thread; i < sums; i += p.work.threads) {
    int32_t tap = i;
    const int own = split(tap);
    const float* from = totals + (tap * 2 + own % 2) * p.work.threads + own / 2;
    const float total = sum_of(lanes, [&](int n) { return from[n * pairs]; });
    if (p.clustered) {
      parts[i] = total;
    } else {
      store(i, total);
    }
  }
  if (p.clustered) add_in_cluster(parts, sums, p.tile_blocks, thread, p.work.threads, store);
}

template <typename T, Walk kWalk, int kTaps>
__global__ void __launch_bounds__(most_threads(kTaps) + kLoaderThreads, blocks_of(kTaps))
    sum_weights(const __grid_constant__ Params<T> p) {
  if constexpr (ptx::kHasTma) {
    extern __shared__ __align__(128) char boxes[];
    const Memory memory(p, boxes);
    const Share<T> share(p);
    const int thread = static_cast<int>(threadIdx.x);
    ptx::launch_dependent_grids();
    init_barriers(p, memory);
    if (thread >= p.work.threads) {
      load_tiles<true>(p, memory, share);
      return;
    }
    const Lane lane(p, share);
    const Columns<kWalk, kTaps> of_window(p, lane);
    // Where the patch's columns of the second image are.
    const int column = p.in_box.count * p.in_box.bytes +
                       p.out_box.column_at(p.pixel_bytes, lane.column * kPatch) +
                       lane.pair * static_cast<int>(sizeof(T));
    float2 total[kTaps][kTaps] = {};
    walk_tiles(
        p, memory, share, lane, [&](const Place& where, const Place& own, const char* stage) {
          const int rows = p.h.out - where.h * kPatch, columns = p.w.out - where.w * kPatch;
          const bool partial = rows < kPatch || columns < kPatch;
          const char* from =
              stage + own.n * p.out_box.image_bytes + own.h * kPatch * p.out_box.row_bytes + column;
          if constexpr (sums_patches(kTaps)) {
            float2 part[kTaps][kTaps] = {};
            add_patch(p, of_window, stage, own, from, part);
            // What does not exist has added zeros, unless it met a NaN or an infinity.
            if (partial && !is_finite(part)) {
              clear(part);
              add_partial_patch(p, of_window, stage, own, from, rows, columns, part);
            }
            add_all(part, total);
          } else if (partial && !reads_finite(p, of_window, stage, own)) {
            add_partial_patch(p, of_window, stage, own, from, rows, columns, total);
          } else {
            add_patch(p, of_window, stage, own, from, total);
          }
        });
    store_sums<kTaps>(p, share, reinterpret_cast<float*>(boxes), total);
  }
}

}  // namespace customconv::depthwise::boxes
