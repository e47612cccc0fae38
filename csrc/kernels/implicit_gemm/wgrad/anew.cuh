// Sums that have met what they should not are computed anew.
#pragma once

#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/halves.cuh"
#include "plan/problem.h"

namespace customconv::implicit_gemm::wgrad {

template <typename T>
struct Source {
  bool exact;   // else what follows is needed
  bool halves;  // sums are of halves (../halves.cuh)
  bool flat;    // input channels are channels and taps, in the order of the weight in memory
  const T *x, *y;
  ConvProblem problem;

  // Whether a sum need not be computed anew. Sums of halves must be finite.
  __device__ bool is_right(float sum) const { return halves ? is_finite(sum) : sum == sum; }
};

// Zeros of dy, of pixels that do not exist, have met pixels of x that the tap does not meet: with a
// NaN or an infinity there they have made a NaN. Such a sum is computed anew, until it is known to
// be one.
template <typename T>
__device__ __noinline__ float sum_anew(const Source<T>& from, int group, int c, int k, int r,
                                       int s) {
  const ConvProblem& p = from.problem;
  const auto C = static_cast<int>(p.C / p.groups);
  if (from.flat) {
    const auto R = static_cast<int>(p.R), S = static_cast<int>(p.S);
    const bool by_channels = p.w_strides[1] == R * S;
    s = by_channels ? c % S : c / C % S;
    r = by_channels ? c / S % R : c / C / S;
    c = by_channels ? c / S / R : c % C;
  }
  const int channel = group * C + c;
  float total = 0;
  for (int64_t n = 0; n < p.N; ++n) {
    for (int64_t row = 0; row < p.P; ++row) {
      const int64_t h = row * p.stride_h + r * p.dilation_h - p.pad_h;
      const bool has_row = h >= 0 && h < p.H;
      const auto* x =
          from.x + n * p.x_strides[0] + int64_t{channel} * p.x_strides[1] + h * p.x_strides[2];
      const auto* y = from.y + n * p.y_strides[0] + k * p.y_strides[1] + row * p.y_strides[2];
      for (int64_t column = 0; column < p.Q; ++column) {
        const int64_t w = column * p.stride_w + s * p.dilation_w - p.pad_w;
        const bool inside = has_row && w >= 0 && w < p.W;  // zeros are outside
        total = fmaf(inside ? widen(x[w * p.x_strides[3]]) : 0.0f,
                     widen(y[column * p.y_strides[3]]), total);
      }
      if (total != total) return total;
    }
  }
  return total;
}

}  // namespace customconv::implicit_gemm::wgrad
