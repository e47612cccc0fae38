// Activations of values in registers, as PyTorch defines them. NaN stays NaN.
#pragma once

#include "kernels/epilogue.h"

namespace customconv {

__device__ inline float relu(float v) { return v < 0 ? 0.0f : v; }
__device__ inline float leaky_relu(float v, float slope) { return v > 0 ? v : v * slope; }
__device__ inline float silu(float v) { return __fdividef(v, 1 + __expf(-v)); }
// By Abramowitz and Stegun's 7.1.26 of the error function, to 1.5e-7: erff's tables of coefficients
// would take the registers that sums are in.
__device__ inline float gelu(float v) {
  const float t = __fdividef(1.0f, fmaf(fabsf(v), 0.3275911f * 0.70710678f, 1.0f));
  float series = fmaf(t, 0.5f * 1.061405429f, 0.5f * -1.453152027f);
  series = fmaf(t, series, 0.5f * 1.421413741f);
  series = fmaf(t, series, 0.5f * -0.284496736f);
  series = fmaf(t, series, 0.5f * 0.254829592f) * t;
  const float tail = series * __expf(-0.5f * v * v);  // of the normal distribution, beyond |v|
  return v * (v >= 0 ? 1 - tail : tail);
}
__device__ inline float hardswish(float v) {
  return v * (1.0f / 6) * fminf(fmaxf(v + 3, 0.0f), 6.0f);
}

// All threads take the same branch, once for all their values.
template <int kCount>
__device__ inline void activate(float (&value)[kCount], Activation activation, float slope) {
  const auto each = [&](auto function) {
#pragma unroll
    for (float& v : value) v = function(v);
  };
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      each(relu);
      break;
    case Activation::kSilu:
      each(silu);
      break;
    case Activation::kGelu:
      each(gelu);
      break;
    case Activation::kHardswish:
      each(hardswish);
      break;
    case Activation::kLeakyRelu:
      each([slope](float v) { return leaky_relu(v, slope); });
      break;
  }
}

}  // namespace customconv
