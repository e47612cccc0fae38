// Device memory through which thread blocks of a kernel tell each other something (PTX ISA, "Memory
// Consistency Model").
#pragma once

#include <cstdint>

namespace customconv::ptx {

// Past the first-level cache, which does not see what other multiprocessors write.
__device__ inline void store_to_l2(float* to, float value) {
  asm volatile("st.global.cg.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}
__device__ inline float load_from_l2(const float* from) {
  float value;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
  return value;
}

// Whoever loads the value sees what was written before, also by threads that were waited for.
__device__ inline void store_release(uint64_t* to, uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ inline uint64_t load_acquire(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

}  // namespace customconv::ptx
