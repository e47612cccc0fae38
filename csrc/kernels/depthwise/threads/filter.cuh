// The depthwise kernels' walk through a filter. Nothing is shared through shared memory but
// filters: a row of the input that several threads need is near in the first-level cache.
//
// A thread sums some outputs, one below the other, of a column. It goes through the filter column
// by column: a column's taps are in registers, the rows of the input go by, each is read once and
// added to every output that it belongs to.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/depthwise/threads/work.h"
#include "kernels/epilogue.h"

namespace customconv::depthwise::threads {

template <typename T>
struct Params {
  const T* in;
  T* weight;
  T* out;
  Epilogue epilogue;
  struct {
    int64_t n, c, h, w;
  } in_stride, out_stride;
  int64_t weight_k;
  int weight_r, weight_s;
  int K, H, W, P, Q, R, S;
  int step_h, step_w, pad_h, pad_w, dilation_h, dilation_w;
  bool transposed;
  int sources;    // channels of `in` that one of `out` reads
  int first_row;  // of the first strip
  int items;
  int stage_columns;  // of the filters, in shared memory
  int store_unit;     // windows: neighbouring columns that are stored at once
  Divider<int32_t> channels, multiplier, columns, strips, vectors, units;
  Divider<int32_t> by_step_h, by_step_w, filter_rows, by_stage_columns;
  // For a weight gradient, where `out` is only read: the parts of sums, null where there is one of
  // each; how many there are; and the parts of the filter that blocks share.
  float* partial;
  Divider<int32_t> splits, chunks_r, chunks_s;
};

// What a thread sums: some outputs, one below the other.
struct Item {
  bool exists;
  int n, k;    // the first channel
  int p, q;    // the first row and column; the row may lie above the image
  int vector;  // channels: which of the block's
};

// The pixels of an item, by number.
template <int kKept, int kColumns, typename T>
__device__ inline void set_pixels(const Params<T>& p, int32_t& number, Item& item) {
  item.q = p.columns.split(number) * kColumns;
  item.p = p.first_row + p.strips.split(number) * kKept;
}

template <Order kOrder, int kKept, int kColumns, typename T>
__device__ inline Item item_of(const Params<T>& p, int block, int thread) {
  Item item{};
  int32_t rest = block;
  if constexpr (is_planar(kOrder)) {
    rest = block * kThreads + thread;
    item.exists = rest < p.items;
    set_pixels<kKept, kColumns>(p, rest, item);
    item.k = p.channels.split(rest);
  } else {
    const int unit = p.units.split(rest);
    int32_t pixel = thread;
    item.vector = p.vectors.split(pixel);
    item.k = (unit * p.vectors.divisor() + item.vector) * width_of(kOrder);
    const int pixels = kThreads / p.vectors.divisor();
    item.exists = pixel < pixels && item.k < p.K;
    rest = rest * pixels + pixel;
    item.exists = item.exists && rest < p.items;
    set_pixels<kKept, kColumns>(p, rest, item);
  }
  item.n = rest;
  return item;
}

// Where the channel begins that an item reads, of several the one with number `source`.
template <typename T>
__device__ inline const T* channel_of(const Params<T>& p, const Item& item, int source) {
  const int channel = p.multiplier.quotient(item.k) * p.sources + source;
  return p.in + item.n * p.in_stride.n + channel * p.in_stride.c;
}
template <typename T>
__device__ inline const T* filter_of(const Params<T>& p, int k, int source) {
  return p.weight + (int64_t{k} * p.sources + source) * p.weight_k;
}

__device__ inline bool is_within(int i, int size) {
  return static_cast<unsigned>(i) < static_cast<unsigned>(size);
}

// Neighbouring rows of the input, some of which may not exist.
template <typename T>
struct Rows {
  const T* first;
  uint32_t exist;  // bits

  __device__ bool has(int i) const { return (exist >> i & 1) != 0; }
};
template <int kCount, typename T>
__device__ inline Rows<T> rows_of(const Params<T>& p, const T* in, int h) {
  static_assert(kCount < 32);
  const int begin = min(max(-h, 0), kCount), end = min(max(p.H - h, 0), kCount);
  const uint32_t until_end = (1u << end) - 1, until_begin = (1u << begin) - 1;
  return {in + h * p.in_stride.h, until_end & ~until_begin};
}

// Neighbours in memory, all aligned together; zeros where they don't exist.
template <typename T, int kWidth>
using Bits = std::conditional_t<
    kWidth * sizeof(T) == 2, uint16_t,
    std::conditional_t<kWidth * sizeof(T) == 4, uint32_t,
                       std::conditional_t<kWidth * sizeof(T) == 8, uint2, uint4>>>;
template <typename T, int kWidth>
__device__ inline Bits<T, kWidth> fetch(const T* from, bool exists) {
  static_assert(sizeof(Bits<T, kWidth>) == kWidth * sizeof(T));
  Bits<T, kWidth> bits{};
  if (exists) bits = *reinterpret_cast<const Bits<T, kWidth>*>(from);
  return bits;
}
template <typename T, int kWidth>
__device__ inline void widen_all(const Bits<T, kWidth>& bits, float (&to)[kWidth]) {
  const T* values = reinterpret_cast<const T*>(&bits);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) to[i] = widen(values[i]);
}
template <typename T, int kWidth>
__device__ inline void read(const T* from, bool exists, float (&to)[kWidth]) {
  widen_all<T>(fetch<T, kWidth>(from, exists), to);
}

// Brings columns of the filters of a block's channels from `first` on to shared memory, with zeros
// behind the last row: by column, row and channel.
template <Order kOrder, typename T>
__device__ inline void stage_filters(const Params<T>& p, const Item& item, int source, int first,
                                     int thread, float* filters) {
  const int channels = p.vectors.divisor() * width_of(kOrder);
  const int rows = p.filter_rows.divisor();
  const int begin = item.k - item.vector * width_of(kOrder);  // the block's first channel
  const int count = channels * rows * p.stage_columns;
  for (int i = thread; i < count; i += kThreads) {
    int32_t channel = i;
    const int s = p.by_stage_columns.split(channel);
    const int r = p.filter_rows.split(channel);
    const int k = begin + channel;
    float weight = 0;
    if (k < p.K && r < p.R && first + s < p.S) {
      weight = widen(filter_of(p, k, source)[r * p.weight_r + (first + s) * p.weight_s]);
    }
    filters[(s * rows + r) * channels + channel] = weight;
  }
}

// The first of the rows that go by in a turn.
template <Walk kWalk, int kCount, typename T>
__device__ inline int first_row(const Params<T>& p, int out, int first) {
  if (kWalk == Walk::kHalf) return (out + p.pad_h - first) / 2 - (kCount - 1) / 2;
  return out * (kWalk == Walk::kSecond ? 2 : 1) - p.pad_h + first;
}

// The rows of a column of the input that `kKept` outputs and `kCount` taps meet, each read once:
// `meet` gets the output, the tap and the values. `kPartial`: only `left` taps exist.
template <Walk kWalk, int kCount, int kKept, int kWidth, bool kPartial, typename T, typename Meet>
__device__ inline void walk_rows(const Params<T>& p, const Rows<T>& rows, int64_t column, int left,
                                 Meet meet) {
  const T* from = rows.first + column;
#pragma unroll
  for (int i = 0; i < row_count(kWalk, kCount, kKept); ++i, from += p.in_stride.h) {
    float value[kWidth];
    read(from, rows.has(i), value);
#pragma unroll
    for (int t = 0; t < kKept; ++t) {
      // With a transposed walk the first output and the first tap meet a row in the middle.
      const int r = kWalk == Walk::kHalf     ? t - 2 * (i - (kCount - 1) / 2)
                    : kWalk == Walk::kSecond ? i - 2 * t
                                             : i - t;
      if (r >= 0 && r < kCount && (!kPartial || r < left)) meet(t, r, value);
    }
  }
}

// One tap, of any stride and dilation.
template <int kKept, int kWidth, typename T, typename Meet>
__device__ inline void walk_any(const Params<T>& p, const T* in, int out, int tap, int64_t column,
                                Meet meet) {
#pragma unroll
  for (int t = 0; t < kKept; ++t) {
    int h = (out + t) * p.step_h - p.pad_h + tap * p.dilation_h;
    if (p.transposed) {
      h = out + t + p.pad_h - tap * p.dilation_h;
      if (h < 0) continue;
      const int whole = p.by_step_h.quotient(h);
      if (whole * p.step_h != h) continue;
      h = whole;
    }
    float value[kWidth];
    read(in + h * p.in_stride.h + column, is_within(h, p.H), value);
    meet(t, 0, value);
  }
}

// What a turn of taps from row `first` of the filter on meets in a column.
template <Walk kWalk, int kCount, int kKept, int kWidth, typename T, typename Meet>
__device__ inline void walk_taps(const Params<T>& p, const T* in, const Rows<T>& rows, int out,
                                 int first, int w, Meet meet) {
  const int64_t column = w * p.in_stride.w;
  const int left = p.R - first;
  if constexpr (kWalk == Walk::kAny) {
    walk_any<kKept, kWidth>(p, in, out, first, column, meet);
  } else if (left >= kCount) {
    walk_rows<kWalk, kCount, kKept, kWidth, false>(p, rows, column, left, meet);
  } else {
    walk_rows<kWalk, kCount, kKept, kWidth, true>(p, rows, column, left, meet);
  }
}

// The column of the input that a column of taps meets, -1 where there is none.
template <typename T>
__device__ inline int column_of(const Params<T>& p, int q, int s) {
  int w = q * p.step_w - p.pad_w + s * p.dilation_w;
  if (p.transposed) {
    w = q + p.pad_w - s * p.dilation_w;
    if (w < 0) return -1;
    const int whole = p.by_step_w.quotient(w);
    if (whole * p.step_w != w) return -1;
    w = whole;
  }
  return is_within(w, p.W) ? w : -1;
}

// Adds what the filter's columns from `begin` to `end` give. `filters`: of channels, in shared
// memory.
template <Order kOrder, Walk kWalk, int kCount, int kKept, int kWidth, typename T>
__device__ inline void sum_columns(const Params<T>& p, const Item& item, int source, int begin,
                                   int end, const float* filters, float (&sum)[kKept][kWidth]) {
  const T* in = channel_of(p, item, source);
  const T* filter = filter_of(p, item.k, source);
  const int channels = p.vectors.divisor() * kWidth;
#pragma unroll 1
  for (int first = 0; first < p.R; first += kCount) {
    const Rows<T> rows =
        rows_of<row_count(kWalk, kCount, kKept)>(p, in, first_row<kWalk, kCount>(p, item.p, first));
#pragma unroll 1
    for (int s = begin; s < end; ++s) {
      const int w = column_of(p, item.q, s);
      if (w < 0) continue;
      float weight[kCount][kWidth];
      const int place =
          ((s - begin) * p.filter_rows.divisor() + first) * channels + item.vector * kWidth;
#pragma unroll
      for (int r = 0; r < kCount; ++r) {
        if constexpr (is_planar(kOrder)) {
          const T* tap = filter + (first + r) * p.weight_r + s * p.weight_s;
          read(tap, first + r < p.R, weight[r]);
        } else {
          read(filters + place + r * channels, true, weight[r]);
        }
      }
      walk_taps<kWalk, kCount, kKept, kWidth>(
          p, in, rows, item.p, first, w, [&](int t, int r, const float (&value)[kWidth]) {
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
              sum[t][i] = fmaf(weight[r][i], value[i], sum[t][i]);
            }
          });
    }
  }
}

template <int kRows, int kWidth>
__device__ inline void add_all(const float (&part)[kRows][kWidth], float (&sum)[kRows][kWidth]) {
#pragma unroll
  for (int t = 0; t < kRows; ++t) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[t][i] += part[t][i];
  }
}

}  // namespace customconv::depthwise::threads
