// Asynchronous copies from global to shared memory by threads (cp.async).
#pragma once

#include <cstdint>

#include "kernels/ptx/barrier.cuh"

namespace customconv::ptx {

// Copies the first `bytes` of kBytes (4, 8 or 16, aligned to as many), and zeros behind them;
// `from` must be a legal address also where there are none.
template <int kBytes>
__device__ inline void copy_async_part(uint32_t to, const void* from, int bytes) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes),
                 "r"(bytes)
                 : "memory");
  }
}

// All of kBytes, or zeros.
template <int kBytes>
__device__ inline void copy_async(uint32_t to, const void* from, bool exists) {
  copy_async_part<kBytes>(to, from, exists ? kBytes : 0);
}

// Arrives once all copies that this thread has started are complete.
__device__ inline void arrive_after_copies(Barrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Makes a group of the copies that this thread has started since the last one.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all groups of copies but the last so many.
template <int kLeft>
__device__ inline void await_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Waits for all copies that this thread has started.
__device__ inline void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace customconv::ptx
