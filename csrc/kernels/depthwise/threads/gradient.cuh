// The weight gradient: a block goes through its share of the pixels with the gradients of some taps
// in its threads' registers; where a tap has several blocks, a second kernel adds them up. Sums are
// sums of sums of a few, so that errors of rounding stay small, and always in the same order.
#pragma once

#include "kernels/common/parts.cuh"
#include "kernels/depthwise/threads/lines.cuh"
#include "kernels/depthwise/threads/windows.cuh"

namespace customconv::depthwise::threads {

// A block's taps and pixels.
struct Share {
  int unit;  // a channel, or a group of vectors of channels
  int r, s;  // the first tap
  int split;
  int begin, end;  // of the items
};
template <int kCount, int kAcross, typename T>
__device__ inline Share share_of(const Params<T>& p, int block) {
  int32_t rest = block;
  Share share;
  share.s = p.chunks_s.split(rest) * kAcross;
  share.r = p.chunks_r.split(rest) * kCount;
  share.split = p.splits.split(rest);
  share.unit = rest;
  const int each = (p.items + p.splits.divisor() - 1) / p.splits.divisor();
  share.begin = min(share.split * each, p.items);
  share.end = min(share.begin + each, p.items);
  return share;
}

// What an item adds to the taps.
template <Walk kWalk, int kCount, int kAcross, int kKept, int kWidth, typename T>
__device__ inline void sum_taps(const Params<T>& p, const Share& share, const Item& item,
                                float (&sum)[kCount][kAcross][kWidth]) {
  const T* in = channel_of(p, item, 0);
  const T* from = p.out + item.n * p.out_stride.n + item.k * p.out_stride.c +
                  item.p * p.out_stride.h + item.q * p.out_stride.w;
  const int left = p.P - item.p;
  const Rows<T> rows =
      rows_of<row_count(kWalk, kCount, kKept)>(p, in, first_row<kWalk, kCount>(p, item.p, share.r));
  float gradient[kKept][kWidth];
#pragma unroll
  for (int t = 0; t < kKept; ++t) read(from + t * p.out_stride.h, t < left, gradient[t]);
#pragma unroll
  for (int s = 0; s < kAcross; ++s) {
    const int w = column_of(p, item.q, share.s + s);
    if (w < 0 || share.s + s >= p.S) continue;
    walk_taps<kWalk, kCount, kKept, kWidth>(
        p, in, rows, item.p, share.r, w, [&](int t, int r, const float (&value)[kWidth]) {
          if (t >= left) return;
#pragma unroll
          for (int i = 0; i < kWidth; ++i) {
            sum[r][s][i] = fmaf(gradient[t][i], value[i], sum[r][s][i]);
          }
        });
  }
}

// Adds a thread's share of the block's to `sum`.
template <Order kOrder, Walk kWalk, int kShape, int kCount, int kKept, int kAcross, int kWidth,
          typename T>
__device__ inline void sum_share(const Params<T>& p, const Share& share, int thread,
                                 float (&sum)[kCount][kAcross][kWidth]) {
  Item item{};
  int32_t pixel = thread;
  int apart = kThreads;
  if constexpr (is_planar(kOrder)) {
    item.k = share.unit;
  } else {
    apart = kThreads / p.vectors.divisor();
    item.vector = p.vectors.split(pixel);
    item.k = (share.unit * p.vectors.divisor() + item.vector) * kWidth;
    if (pixel >= apart || item.k >= p.K) return;
  }
#pragma unroll 1
  for (int i = share.begin + pixel; i < share.end; i += apart) {
    int32_t rest = i;
    constexpr int kColumns = columns_of(kOrder, kCount, sizeof(T));
    set_pixels<kKept, kColumns>(p, rest, item);
    item.n = rest;
    if constexpr (kOrder == Order::kWindows) {
      if (item.p + kKept <= p.P && item.q + kColumns <= p.Q) {
        sum_gradient_window<kShape, kKept, kColumns, false>(p, item, share.r, share.s, sum);
      } else {
        sum_gradient_window<kShape, kKept, kColumns, true>(p, item, share.r, share.s, sum);
      }
    } else if constexpr (kOrder == Order::kLines) {
      sum_gradient_line<kLineTaps[kShape], kColumns>(p, item, share.s, sum);
    } else {
      sum_taps<kWalk, kCount, kAcross, kKept>(p, share, item, sum);
    }
  }
}

template <typename T>
__device__ inline void store_weight(const Params<T>& p, int k, int r, int s, float total) {
  p.weight[k * p.weight_k + int64_t{r} * p.weight_r + int64_t{s} * p.weight_s] = narrow<T>(total);
}

// Stores what the block's threads have in `totals`, in shared memory: gradients, or their parts.
template <Order kOrder, int kCount, int kAcross, int kWidth, typename T>
__device__ inline void store_share(const Params<T>& p, const Share& share, int thread,
                                   const float* totals) {
  constexpr int kSums = kCount * kAcross * kWidth;
  const auto store = [&](int number, int vector, float total) {
    const int s = share.s + number / kWidth % kAcross, r = share.r + number / kWidth / kAcross;
    const int k = (share.unit * p.vectors.divisor() + vector) * kWidth + number % kWidth;
    if (k >= p.K || r >= p.R || s >= p.S) return;
    if (p.partial == nullptr) {
      store_weight(p, k, r, s, total);
    } else {
      const int64_t part = int64_t{share.split} * p.R + r;
      p.partial[(part * p.S + s) * p.K + k] = total;
    }
  };
  if constexpr (is_planar(kOrder)) {  // a warp for each sum
    for (int i = thread / 32; i < kSums; i += kThreads / 32) {
      const float* from = totals + i * kThreads + thread % 32;
      float total = sum_of(kThreads / 32, [&](int n) { return from[n * 32]; });
#pragma unroll
      for (int apart = 16; apart > 0; apart /= 2) total += __shfl_xor_sync(~0u, total, apart);
      if (thread % 32 == 0) store(i, 0, total);
    }
  } else {  // a thread for each
    const int vectors = p.vectors.divisor(), others = kThreads / vectors;
    for (int i = thread; i < kSums * vectors; i += kThreads) {
      const int vector = i % vectors, number = i / vectors;
      const float* from = totals + number * kThreads + vector;
      store(number, vector, sum_of(others, [&](int n) { return from[n * vectors]; }));
    }
  }
}

}  // namespace customconv::depthwise::threads
