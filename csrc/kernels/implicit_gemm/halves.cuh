// A float32 as two numbers of TF32, its high and its low half: their sum is off by at most a bit or
// so of float32. Three products of halves make one of float32, but for the last bits: high by high,
// high by low and low by high (3xTF32; Markidis et al., 2018, and CUTLASS's OpMultiplyAddFastF32).
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/forward.h"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm {

// Rounded, unless that would make a finite number infinite.
__device__ inline float high_half(float v) {
  const float rounded = __uint_as_float(ptx::round_tf32(__float_as_uint(v)));
  constexpr uint32_t kTf32Bits = 0xFFFFE000;
  return isinf(rounded) ? __uint_as_float(__float_as_uint(v) & kTf32Bits) : rounded;
}
// Zero where the number is not finite: its high half says so.
__device__ inline float low_half(float v) {
  const float rest = v - high_half(v);
  return isfinite(rest) ? __uint_as_float(ptx::round_tf32(__float_as_uint(rest))) : 0.0f;
}

// The same of a float32's bits, where sums that are not finite are formed again from such numbers:
// a number that is not finite, or near the largest, has a half that is not finite. Tensor cores cut
// the last bit of some low halves, which rounding would change by as much.
struct Halved {
  uint32_t high, low;
};
__device__ inline Halved halve(uint32_t bits) {
  constexpr uint32_t kHalfOfLast = 0x1000, kTf32Bits = 0xFFFFE000;
  const uint32_t high = (bits + kHalfOfLast) & kTf32Bits;
  return {high, __float_as_uint(__uint_as_float(bits) - __uint_as_float(high))};
}

// Halves what is at an address of shared memory: the low halves come `low` bytes further on.
__device__ inline void halve_unit(uint32_t at, int low, const uint4& v) {
  const Halved x = halve(v.x), y = halve(v.y), z = halve(v.z), w = halve(v.w);
  ptx::store_shared(at, make_uint4(x.high, y.high, z.high, w.high));
  ptx::store_shared(at + low, make_uint4(x.low, y.low, z.low, w.low));
}

// Whether a sum of halves is what float32 would give: it is neither infinite nor a NaN.
__device__ inline bool is_finite(float v) { return v * 0 == 0; }

// A value as it is packed at a place of a row.
template <typename T>
__device__ inline T packed_value(const ChannelOrder&, int, T v) {
  return v;
}
template <>
__device__ inline float packed_value<float>(const ChannelOrder& order, int place, float v) {
  if (order.half_bits == 0) return v;
  return order.is_low(place) ? low_half(v) : high_half(v);
}

}  // namespace customconv::implicit_gemm
