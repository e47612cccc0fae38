// Copies from global to shared memory, where every element becomes a float.
#pragma once

#include <cstdint>

#include "kernels/common/scalar.cuh"

namespace customconv::tiled {

// Copies an element, or a zero if it does not exist, into shared memory; perhaps only by the time
// of `await_copies`.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
__device__ inline void copy(float* to, const float* from, bool exists = true) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile(
      "{ .reg .pred absent; setp.eq.s32 absent, %2, 0;\n"
      "cp.async.ca.shared.global [%0], [%1], 4, absent; }" ::"r"(address),
      "l"(from), "r"(static_cast<int>(exists))
      : "memory");
}
__device__ inline void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
__device__ inline void await_copies() {}
#endif
template <typename T>
__device__ inline void copy(float* to, const T* from, bool exists = true) {
  *to = exists ? widen(*from) : 0.0f;
}

// Copies `count` elements at regular distances. 16-bit loads are issued four at a time, so that
// their latencies overlap.
template <typename T>
__device__ inline void copy_line(float* to, int to_step, const T* from, int64_t from_step,
                                 int count, bool exists) {
  if constexpr (sizeof(T) == sizeof(float)) {
#pragma unroll 4
    for (int i = 0; i < count; ++i, to += to_step, from += from_step) copy(to, from, exists);
  } else {
    constexpr int kBatch = 4;
    for (int i = 0; i < count; i += kBatch) {
      float value[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b, from += from_step) {
        value[b] = exists && i + b < count ? widen(*from) : 0.0f;
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b, to += to_step) {
        if (i + b < count) *to = value[b];
      }
    }
  }
}

// Copies the elements at table[0], table[step], ... up to `end`, zeros where the table says -1.
template <typename T>
__device__ inline void copy_listed(float* to, const T* from, const int64_t* table, int step,
                                   int end) {
  constexpr int kBatch = 4;
  for (int i = 0; i < end; i += kBatch * step) {
    int64_t offset[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) offset[b] = i + b * step < end ? table[i + b * step] : -1;
    if constexpr (sizeof(T) == sizeof(float)) {
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (i + b * step < end) copy(to + i + b * step, from + offset[b], offset[b] >= 0);
      }
    } else {
      float value[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) value[b] = offset[b] >= 0 ? widen(from[offset[b]]) : 0.0f;
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (i + b * step < end) to[i + b * step] = value[b];
      }
    }
  }
}

}  // namespace customconv::tiled
