// Activations of values in registers, as PyTorch defines them. NaN stays NaN.
#pragma once

#include "kernels/common/scalar.cuh"
#include "kernels/epilogue.h"

namespace customconv {

__device__ inline float relu(float v) {
  asm("max.NaN.f32 %0, %0, 0f00000000;" : "+f"(v));
  return v;
}
__device__ inline float leaky_relu(float v, float slope) { return v > 0 ? v : v * slope; }

// To two units in the last place, without care for numbers below 2^-126.
__device__ inline float fast_exp(float v) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v * 1.44269504f));
  return result;
}
__device__ inline float fast_reciprocal(float v) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
  return result;
}

__device__ inline float sigmoid(float v) { return fast_reciprocal(1 + fast_exp(-v)); }
__device__ inline float silu(float v) { return v * sigmoid(v); }

// By Abramowitz and Stegun's 7.1.26 of the error function, to 1.5e-7: erff's tables of coefficients
// would take the registers that sums are in.
__device__ inline float gelu(float v) {
  const float t = fast_reciprocal(fmaf(fabsf(v), 0.3275911f * 0.70710678f, 1.0f));
  float series = fmaf(t, 0.5f * 1.061405429f, 0.5f * -1.453152027f);
  series = fmaf(t, series, 0.5f * 1.421413741f);
  series = fmaf(t, series, 0.5f * -0.284496736f);
  series = fmaf(t, series, 0.5f * 0.254829592f) * t;
  const float tail = series * fast_exp(-0.5f * v * v);  // of the normal distribution, beyond |v|
  return v * (v >= 0 ? 1 - tail : tail);
}

// By a hyperbolic tangent, which a sigmoid is too.
__device__ inline float gelu_tanh(float v) {
  const float argument = v * fmaf(v * v, 0.044715f, 1.0f);
  return v * sigmoid(2 * 0.79788456f * argument);
}

// The smaller one, or NaN if either is.
__device__ inline float min_or_nan(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ inline float relu6(float v) { return min_or_nan(relu(v), 6); }
__device__ inline float hardsigmoid(float v) { return relu6(v + 3) * (1.0f / 6); }
__device__ inline float hardswish(float v) {
  return v * (1.0f / 6) * fminf(fmaxf(v + 3, 0.0f), 6.0f);
}

// All threads take the same branch, once for all their values.
template <int kCount>
__device__ inline void activate(float* values, Activation activation, float slope) {
  const auto each = [&](auto function) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = function(values[i]);
  };
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      each(relu);
      break;
    case Activation::kRelu6:
      each(relu6);
      break;
    case Activation::kLeakyRelu:
      each([slope](float v) { return leaky_relu(v, slope); });
      break;
    case Activation::kSigmoid:
      each(sigmoid);
      break;
    case Activation::kHardsigmoid:
      each(hardsigmoid);
      break;
    case Activation::kSilu:
      each(silu);
      break;
    case Activation::kHardswish:
      each(hardswish);
      break;
    case Activation::kGelu:
      each(gelu);
      break;
    case Activation::kGeluTanh:
      each(gelu_tanh);
      break;
  }
}

}  // namespace customconv
