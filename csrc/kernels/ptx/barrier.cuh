// mbarriers in shared memory (PTX ISA, "mbarrier"), and the other fences between agents of a block.
#pragma once

#include <cstdint>

namespace customconv::ptx {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

using Barrier = uint64_t;

__device__ inline void init_barrier(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}

// By one thread, some 10 clocks each. If threads of a warp initialise a barrier each, the warp
// takes one after the other, 70 clocks each: the instruction has its address in a uniform register.
__device__ inline void init_barriers(Barrier* first, int count, int arrivals) {
#pragma unroll 4
  for (int i = 0; i < count; ++i) init_barrier(first + i, arrivals);
}

// Makes initialised barriers visible to TMA.
__device__ inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Arrives, and announces bytes that copies will bring.
__device__ inline void arrive_and_expect_tx(Barrier* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

// Announces bytes without arriving.
__device__ inline void expect_tx(Barrier* barrier, int bytes) {
  asm volatile(
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

// Waits until the phase of this parity is complete; from compute capability 9.0 on the thread
// sleeps meanwhile.
#if __CUDA_ARCH__ >= 900
#define CUSTOMCONV_WAIT "try_wait"
#else
#define CUSTOMCONV_WAIT "test_wait"
#endif
__device__ inline void wait(Barrier* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred complete;\n"
      "again:\n"
      "mbarrier." CUSTOMCONV_WAIT
      ".parity.shared::cta.b64 complete, [%0], %1;\n"
      "@!complete bra again;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
#undef CUSTOMCONV_WAIT

// The stage of a ring that comes next, and the parity of its round.
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance(int stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
  // By several stages; `by_stages` divides by how many there are.
  template <typename Divider>
  __device__ void advance(int count, const Divider& by_stages) {
    int rounds = stage + count;
    stage = by_stages.split(rounds);
    parity ^= rounds & 1;
  }
};

// Chooses one thread of a warp, all of whose threads are here.
__device__ inline bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// Among some warps of a block; barrier 0 is __syncthreads's.
template <int kThreads>
__device__ inline void named_barrier_sync(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// The same of so many threads, whole warps.
__device__ inline void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Arrives there without waiting, for those that do.
__device__ inline void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Writes of this thread to shared memory become visible to wgmma and to TMA.
__device__ inline void fence_shared_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int kRegisters>
__device__ inline void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace customconv::ptx
