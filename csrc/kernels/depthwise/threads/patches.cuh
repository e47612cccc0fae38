// Filters of three by three, of vectors of channels: a thread sums a patch of neighbouring outputs
// of a pixel's channels. All taps are in registers, and every pixel that the patch needs is read
// once.
#pragma once

#include "kernels/depthwise/threads/filter.cuh"

namespace customconv::depthwise::threads {

// The pixels that a patch of kKept rows and kColumns columns of outputs needs.
template <Walk kWalk, int kKept, int kColumns, typename T>
class Patch {
 public:
  static constexpr int kStep = kWalk == Walk::kSecond ? 2 : 1;
  static constexpr int kRowCount = row_count(kWalk, 3, kKept);
  static constexpr int kColumnCount = (kColumns - 1) * kStep + 3;

  __device__ Patch(const Params<T>& p, const T* in, const Item& item)
      : p_(p), rows_(rows_of<kRowCount>(p, in, first_row<kWalk, 3>(p, item.p, 0))) {
    const int w = item.q * kStep - p.pad_w;
#pragma unroll
    for (int c = 0; c < kColumnCount; ++c) {
      offset_[c] = (w + c) * p.in_stride.w;
      exists_[c] = is_within(w + c, p.W);
    }
  }

  // `meet` gets the row and the column of an output and of the tap that it meets, and the values.
  template <int kWidth, typename Meet>
  __device__ void walk(Meet meet) const {
    const T* row = rows_.first;
#pragma unroll
    for (int i = 0; i < kRowCount; ++i, row += p_.in_stride.h) {
#pragma unroll
      for (int c = 0; c < kColumnCount; ++c) {
        float value[kWidth];
        read(row + offset_[c], rows_.has(i) && exists_[c], value);
#pragma unroll
        for (int t = 0; t < kKept; ++t) {
          const int r = i - t * kStep;
          if (r < 0 || r >= 3) continue;
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
            const int s = c - j * kStep;
            if (s >= 0 && s < 3) meet(t, j, r, s, value);
          }
        }
      }
    }
  }

 private:
  const Params<T>& p_;
  Rows<T> rows_;
  int64_t offset_[kColumnCount];
  bool exists_[kColumnCount];
};

template <Walk kWalk, int kKept, int kColumns, int kWidth, typename T>
__device__ inline void sum_patch(const Params<T>& p, const Item& item, const float* filters,
                                 float (&sum)[kColumns][kKept][kWidth]) {
  const int channels = p.vectors.divisor() * kWidth;
  float weight[3][3][kWidth];
#pragma unroll
  for (int s = 0; s < 3; ++s) {
#pragma unroll
    for (int r = 0; r < 3; ++r) {
      read(filters + (s * 3 + r) * channels + item.vector * kWidth, true, weight[r][s]);
    }
  }
  const Patch<kWalk, kKept, kColumns, T> patch(p, channel_of(p, item, 0), item);
  patch.template walk<kWidth>([&](int t, int j, int r, int s, const float (&value)[kWidth]) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      sum[j][t][i] = fmaf(weight[r][s][i], value[i], sum[j][t][i]);
    }
  });
}

// What a patch adds to the gradients of the taps. `kPartial`: only so many of its rows and columns
// exist.
template <Walk kWalk, int kKept, int kColumns, bool kPartial, int kWidth, typename T>
__device__ inline void sum_gradient_patch(const Params<T>& p, const Item& item,
                                          float (&sum)[3][3][kWidth]) {
  const int left_p = p.P - item.p, left_q = p.Q - item.q;
  const T* from = p.out + item.n * p.out_stride.n + item.k * p.out_stride.c +
                  item.p * p.out_stride.h + item.q * p.out_stride.w;
  float gradient[kKept][kColumns][kWidth];
#pragma unroll
  for (int t = 0; t < kKept; ++t) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      read(from + t * p.out_stride.h + j * p.out_stride.w, !kPartial || (t < left_p && j < left_q),
           gradient[t][j]);
    }
  }
  const Patch<kWalk, kKept, kColumns, T> patch(p, channel_of(p, item, 0), item);
  patch.template walk<kWidth>([&](int t, int j, int r, int s, const float (&value)[kWidth]) {
    if (kPartial && (t >= left_p || j >= left_q)) return;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      sum[r][s][i] = fmaf(gradient[t][j][i], value[i], sum[r][s][i]);
    }
  });
}

}  // namespace customconv::depthwise::threads
