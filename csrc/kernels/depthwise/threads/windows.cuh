// Planes with stride 1: a thread sums some neighbouring columns of some rows. A row of the input
// goes by as a window of registers that all columns share, loaded in units as large as rows are
// aligned.
#pragma once

#include "kernels/depthwise/threads/filter.cuh"

namespace customconv::depthwise::threads {

// Neighbours in a row, in units of which all or nothing exists.
template <typename T, int kCount, int kUnit>
class Strip {
 public:
  __device__ void load(const T* row, int first, int size, bool exists) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int at = first + u * kUnit;
      units_[u] = fetch<T, kUnit>(row + at, exists && is_within(at, size));
    }
  }
  __device__ void widen(float (&to)[kCount]) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      float values[kUnit];
      widen_all<T>(units_[u], values);
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        if (u * kUnit + i < kCount) to[u * kUnit + i] = values[i];
      }
    }
  }

 private:
  static constexpr int kUnits = (kCount + kUnit - 1) / kUnit;
  Bits<T, kUnit> units_[kUnits];
};
template <int kUnit, typename T, int kCount>
__device__ inline void read_strip(const T* row, int first, int size, bool exists,
                                  float (&to)[kCount]) {
  Strip<T, kCount, kUnit> strip;
  strip.load(row, first, size, exists);
  strip.widen(to);
}

// What kColumns outputs by kTaps columns of taps need of a row; the first column's first tap is
// behind the beginning, where a unit begins.
template <int kColumns, int kTaps, int kShape>
inline constexpr int kWindow = kWindowShapes[kShape].offset + kColumns + kTaps - 1;

// Adds a row of taps times a window; of the taps only so many count where not all do.
template <int kOffset, bool kPartial, int kTaps, int kColumns, int kSize>
__device__ inline void add_window(const float (&value)[kSize], const float (&weight)[kTaps],
                                  int taps, float (&sum)[kColumns]) {
#pragma unroll
  for (int s = 0; s < kTaps; ++s) {
    if (kPartial && s >= taps) break;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      sum[j] = fmaf(weight[s], value[kOffset + j + s], sum[j]);
    }
  }
}

// Some taps of a row of the filter.
template <int kTaps, typename T>
__device__ inline void read_taps(const Params<T>& p, const T* row, int count,
                                 float (&weight)[kTaps]) {
#pragma unroll
  for (int s = 0; s < kTaps; ++s) {
    float one[1];
    read(row + s * p.weight_s, s < count, one);
    weight[s] = one[0];
  }
}

// A square filter, whose taps are all in registers.
template <int kTaps, int kShape, int kKept, int kColumns, typename T>
__device__ inline void sum_square(const Params<T>& p, const T* in, const T* filter,
                                  const Item& item, float (&sum)[kKept][kColumns]) {
  constexpr int kUnit = kWindowShapes[kShape].unit, kOffset = kWindowShapes[kShape].offset;
  float weight[kTaps][kTaps];
#pragma unroll
  for (int r = 0; r < kTaps; ++r) read_taps(p, filter + r * p.weight_r, kTaps, weight[r]);
  const int w = item.q - p.pad_w - kOffset;
  const auto rows = rows_of<kKept + kTaps - 1>(p, in, item.p - p.pad_h);
  const T* row = rows.first;
#pragma unroll
  for (int i = 0; i < kKept + kTaps - 1; ++i, row += p.in_stride.h) {
    float value[kWindow<kColumns, kTaps, kShape>];
    read_strip<kUnit>(row, w, p.W, rows.has(i), value);
#pragma unroll
    for (int t = 0; t < kKept; ++t) {
      const int r = i - t;
      if (r >= 0 && r < kTaps) add_window<kOffset, false>(value, weight[r], kTaps, sum[t]);
    }
  }
}

// Sums some columns of taps of a filter of any height. Registers hold the rows of taps that the
// outputs meet at a time; the next row of the input is on its way.
template <int kTaps, int kShape, bool kPartial, int kKept, int kColumns, typename T>
__device__ inline void sum_band(const Params<T>& p, const T* in, const T* filter, int first_column,
                                int taps, const Item& item, float (&sum)[kKept][kColumns]) {
  constexpr int kUnit = kWindowShapes[kShape].unit, kOffset = kWindowShapes[kShape].offset;
  Strip<T, kWindow<kColumns, kTaps, kShape>, kUnit> window;
  float weight[kKept][kTaps];
  const int h = item.p - p.pad_h, w = item.q - p.pad_w + first_column - kOffset;
  const T* row = in + h * p.in_stride.h;
  window.load(row, w, p.W, is_within(h, p.H));
#pragma unroll 1
  for (int first = 0; first < p.R + kKept - 1; first += kKept) {
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      const int i = first + j;
      read_taps(p, filter + i * p.weight_r, i < p.R ? taps : 0, weight[j]);
      float value[kWindow<kColumns, kTaps, kShape>];
      window.widen(value);
      row += p.in_stride.h;
      window.load(row, w, p.W, is_within(h + i + 1, p.H));
      if (!is_within(h + i, p.H)) continue;
#pragma unroll
      for (int t = 0; t < kKept; ++t) {
        const int r = i - t;
        if (r < 0 || r >= p.R) continue;
        add_window<kOffset, kPartial>(value, weight[(j - t + kKept) % kKept], taps, sum[t]);
      }
    }
  }
}

template <int kTaps, int kShape, int kKept, int kColumns, typename T>
__device__ inline void sum_windows(const Params<T>& p, const Item& item,
                                   float (&sum)[kKept][kColumns]) {
  const T* in = channel_of(p, item, 0);
  const T* filter = filter_of(p, item.k, 0);
  if constexpr (kTaps < kBandTaps) {
    sum_square<kTaps, kShape>(p, in, filter, item, sum);
  } else {
#pragma unroll 1
    for (int s = 0; s < p.S; s += kTaps) {
      const int left = p.S - s;
      const T* column = filter + s * p.weight_s;
      if (left >= kTaps) {
        sum_band<kTaps, kShape, false>(p, in, column, s, kTaps, item, sum);
      } else {
        sum_band<kTaps, kShape, true>(p, in, column, s, left, item, sum);
      }
    }
  }
}

// What an item adds to the gradients of kTaps by kTaps taps from (r, s) on. `kPartial`: only so
// many rows and columns of outputs exist.
template <int kShape, int kKept, int kColumns, bool kPartial, int kTaps, typename T>
__device__ inline void sum_gradient_window(const Params<T>& p, const Item& item, int first_r,
                                           int first_s, float (&sum)[kTaps][kTaps][1]) {
  constexpr int kUnit = kWindowShapes[kShape].unit, kOffset = kWindowShapes[kShape].offset;
  const int left_p = p.P - item.p, left_q = p.Q - item.q;
  const T* from =
      p.out + item.n * p.out_stride.n + item.k * p.out_stride.c + item.p * p.out_stride.h;
  float gradient[kKept][kColumns];
#pragma unroll
  for (int t = 0; t < kKept; ++t, from += p.out_stride.h) {
    read_strip<kUnit>(from, item.q, p.Q, t < left_p, gradient[t]);
  }
  const int w = item.q - p.pad_w + first_s - kOffset;
  const auto rows =
      rows_of<kKept + kTaps - 1>(p, channel_of(p, item, 0), item.p - p.pad_h + first_r);
  const T* row = rows.first;
#pragma unroll
  for (int i = 0; i < kKept + kTaps - 1; ++i, row += p.in_stride.h) {
    float value[kWindow<kColumns, kTaps, kShape>];
    read_strip<kUnit>(row, w, p.W, rows.has(i), value);
#pragma unroll
    for (int t = 0; t < kKept; ++t) {
      const int r = i - t;
      if (r < 0 || r >= kTaps || (kPartial && t >= left_p)) continue;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (kPartial && j >= left_q) break;
#pragma unroll
        for (int s = 0; s < kTaps; ++s) {
          sum[r][s][0] = fmaf(gradient[t][j], value[kOffset + j + s], sum[r][s][0]);
        }
      }
    }
  }
}

}  // namespace customconv::depthwise::threads
