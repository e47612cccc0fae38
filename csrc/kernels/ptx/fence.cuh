// Between thread blocks of a grid: counters in memory, and fences for copies of what was written.
#pragma once

#include <cstdint>

namespace customconv::ptx {

// Orders this thread's writes to memory, and what it has seen of others', with copies.
__device__ inline void fence_global_writes() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

__device__ inline void add_release(int* counter, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}
__device__ inline int load_acquire(const int* counter) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

}  // namespace customconv::ptx
