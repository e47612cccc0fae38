// Copies of boxes of tensors from global to shared memory by TMA (TMA).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/ptx/barrier.cuh"

namespace customconv::ptx {

#if __CUDA_ARCH__ >= 900
inline constexpr bool kHasTma = true;
#else
inline constexpr bool kHasTma = false;
#endif

// Brings the description of a tensor near, which the first copy would wait for.
__device__ inline void prefetch_tma_descriptor(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Coordinates are of the box's first element, innermost dimension first; what lies outside the
// tensor arrives as zeros.
__device__ inline void tma_load(void* to, const CUtensorMap* map, Barrier* barrier, int c0, int c1,
                                int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
__device__ inline void tma_load(void* to, const CUtensorMap* map, Barrier* barrier, int c0, int c1,
                                int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// Whole 16 bytes, aligned to 16 on both sides.
__device__ inline void bulk_load(void* to, const void* from, int bytes, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// The same from shared memory. The thread's copies since the last commit are a group.
__device__ inline void bulk_store(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}

// From shared memory to the tensor; what lies outside it is not written. The thread's copies since
// the last commit are a group.
__device__ inline void tma_store(const CUtensorMap* map, const void* from, int c0, int c1, int c2,
                                 int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(shared_address(from)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
__device__ inline void tma_store_arrive() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until the thread's stores have read what they store.
__device__ inline void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

}  // namespace customconv::ptx
