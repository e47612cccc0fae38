// Storage types and the types that sums are kept in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace customconv {

template <typename T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <typename T>
using Accumulator = typename AccumulatorOf<T>::type;

// Explicit, because PyTorch's build flags switch the implicit conversions off.
__device__ inline double widen(double v) { return v; }
__device__ inline float widen(float v) { return v; }
__device__ inline float widen(__half v) { return __half2float(v); }
__device__ inline float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename T>
__device__ inline T narrow(Accumulator<T> v) {
  return v;
}
template <>
__device__ inline __half narrow<__half>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

// Two of sixteen bits.
template <typename T>
__device__ inline uint32_t pack_pair(float a, float b) {
  alignas(4) const T pair[2] = {narrow<T>(a), narrow<T>(b)};
  return *reinterpret_cast<const uint32_t*>(pair);
}

}  // namespace customconv
