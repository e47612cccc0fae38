// Filters of one row, of planes: a thread sums neighbouring columns of a row. They begin where 16
// bytes of the input's row do, wherever that lies, and the filter goes by a few taps at a time.
#pragma once

#include "kernels/depthwise/threads/windows.cuh"

namespace customconv::depthwise::threads {

// Neighbours in a row, some of which may not exist: by units where all do and `first` begins one.
template <typename T, int kCount>
__device__ inline void read_line(const T* row, int first, int size, float (&to)[kCount]) {
  constexpr int kUnit = line_unit(sizeof(T));
  static_assert(kCount % kUnit == 0);
  const bool aligned = reinterpret_cast<uintptr_t>(row + first) % 16 == 0;
  if (aligned && first >= 0 && first <= size - kCount) {
    read_strip<kUnit>(row, first, size, true, to);
  } else {
    read_strip<1>(row, first, size, true, to);
  }
}

// The row that an item reads, null where there is none. The item's columns then begin where a unit
// of the row is its first tap's.
template <typename T>
__device__ inline const T* begin_line(const Params<T>& p, Item& item) {
  const int h = item.p * p.step_h - p.pad_h;
  if (!is_within(h, p.H)) return nullptr;
  const T* row = channel_of(p, item, 0) + h * p.in_stride.h;
  const auto at = static_cast<int>(reinterpret_cast<uintptr_t>(row) / sizeof(T));
  item.q -= (at - p.pad_w) & (line_unit(sizeof(T)) - 1);
  return row;
}

// What a thread's columns and so many taps need of a row, in whole units.
template <typename T, int kColumns, int kTaps>
inline constexpr int kLineWindow =
    (kColumns + kTaps - 1 + line_unit(sizeof(T)) - 1) / line_unit(sizeof(T)) * line_unit(sizeof(T));

// Moves a window on to the taps behind kTaps; `first` is where it then begins.
template <int kTaps, typename T, int kSize>
__device__ inline void move_line(const T* row, int first, int size, float (&value)[kSize]) {
  float next[kTaps];
  read_line(row, first + kSize - kTaps, size, next);
#pragma unroll
  for (int i = 0; i < kSize - kTaps; ++i) value[i] = value[i + kTaps];
#pragma unroll
  for (int i = 0; i < kTaps; ++i) value[kSize - kTaps + i] = next[i];
}

template <int kTaps, int kColumns, typename T>
__device__ inline void sum_line(const Params<T>& p, Item& item, float (&sum)[kColumns]) {
  const T* row = begin_line(p, item);
  if (row == nullptr) return;
  const T* filter = filter_of(p, item.k, 0);
  const int w = item.q - p.pad_w;
  float value[kLineWindow<T, kColumns, kTaps>];
  read_line(row, w, p.W, value);
  for (int s = 0;;) {
    const int left = p.S - s;
    float weight[kTaps];
    read_taps(p, filter + s * p.weight_s, left, weight);
    if (left >= kTaps) {
      add_window<0, false>(value, weight, kTaps, sum);
    } else {
      add_window<0, true>(value, weight, left, sum);
    }
    if (kTaps < kBandTaps || left <= kTaps) return;
    s += kTaps;
    if constexpr (kTaps == kBandTaps) move_line<kTaps>(row, w + s, p.W, value);
  }
}

// What an item adds to the gradients of some taps from `first` on. `kPartial`: some of its columns
// do not exist.
template <int kTaps, bool kPartial, int kColumns, int kAcross, typename T>
__device__ inline void add_gradient_line(const Params<T>& p, const T* row, int q, int first,
                                         const float (&gradient)[kColumns],
                                         float (&sum)[1][kAcross][1]) {
  const int w = q - p.pad_w + first;
  float value[kLineWindow<T, kColumns, kTaps>];
  read_line(row, w, p.W, value);
#pragma unroll
  for (int begin = 0; begin < kAcross; begin += kTaps) {
    if (begin > 0) {
      if (first + begin >= p.S) return;
      if constexpr (kAcross > kTaps) move_line<kTaps>(row, w + begin, p.W, value);
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if (kPartial && !is_within(q + j, p.Q)) continue;
#pragma unroll
      for (int s = 0; s < kTaps; ++s) {
        sum[0][begin + s][0] = fmaf(gradient[j], value[j + s], sum[0][begin + s][0]);
      }
    }
  }
}
template <int kTaps, int kColumns, int kAcross, typename T>
__device__ inline void sum_gradient_line(const Params<T>& p, Item item, int first,
                                         float (&sum)[1][kAcross][1]) {
  const T* row = begin_line(p, item);
  if (row == nullptr) return;
  const T* from =
      p.out + item.n * p.out_stride.n + item.k * p.out_stride.c + item.p * p.out_stride.h;
  float gradient[kColumns];
  read_line(from, item.q, p.Q, gradient);
  if (item.q >= 0 && item.q + kColumns <= p.Q) {
    add_gradient_line<kTaps, false>(p, row, item.q, first, gradient, sum);
  } else {
    add_gradient_line<kTaps, true>(p, row, item.q, first, gradient, sum);
  }
}

}  // namespace customconv::depthwise::threads
