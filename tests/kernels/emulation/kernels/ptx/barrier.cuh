// Stands in for csrc/kernels/ptx/barrier.cuh.
#pragma once

#include "gpu.h"

namespace customconv::ptx {

inline uint32_t shared_address(const void* pointer) {
  const auto offset = static_cast<const char*>(pointer) - emulation::here().block->memory;
  return static_cast<uint32_t>(offset) + emulation::kFirstAddress;
}

using Barrier = uint64_t;

// What a barrier's 64 bits hold: of the phase under way, what is still to come.
struct Phase {
  int32_t bytes;
  uint16_t arrivals;
  uint16_t all : 15, parity : 1;  // arrivals of each phase
};
static_assert(sizeof(Phase) == sizeof(Barrier));

inline Phase& phase_at(uint32_t address) {
  return *reinterpret_cast<Phase*>(emulation::at(address));
}
inline Phase& phase_of(Barrier* barrier) { return *reinterpret_cast<Phase*>(barrier); }

inline void count(Phase& phase, int arrivals, int bytes) {
  if (arrivals > phase.arrivals) emulation::fail("more arrivals than a barrier awaits");
  phase.arrivals = static_cast<uint16_t>(phase.arrivals - arrivals);
  phase.bytes += bytes;
  if (phase.arrivals > 0 || phase.bytes != 0) return;
  phase.parity ^= 1;
  phase.arrivals = phase.all;
}

inline void init_barrier(Barrier* barrier, int arrivals) {
  const auto all = static_cast<uint16_t>(arrivals);
  phase_of(barrier) = {0, all, all, 0};
}
inline void init_barriers(Barrier* first, int count, int arrivals) {
  for (int i = 0; i < count; ++i) init_barrier(first + i, arrivals);
}
inline void fence_barrier_init() {}
inline void arrive(Barrier* barrier) { count(phase_of(barrier), 1, 0); }
inline void expect_tx(Barrier* barrier, int bytes) { count(phase_of(barrier), 0, bytes); }
inline void arrive_and_expect_tx(Barrier* barrier, int bytes) {
  count(phase_of(barrier), 1, bytes);
}
inline void wait(Barrier* barrier, uint32_t parity) {
  emulation::wait_until([=] { return phase_of(barrier).parity != parity; });
}

struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;

  void advance(int stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
  template <typename Divider>
  void advance(int steps, const Divider& by_stages) {
    for (int i = 0; i < steps; ++i) advance(by_stages.divisor());
  }
};

inline bool elect_one() { return threadIdx.x % 32 == 0; }

inline void named_barrier_sync(int barrier, int threads) {
  emulation::meet(emulation::here().block->barriers[barrier], threads);
}
inline void named_barrier_arrive(int barrier, int threads) {
  emulation::arrive(emulation::here().block->barriers[barrier], threads);
}
template <int kThreads>
void named_barrier_sync(int barrier) {
  named_barrier_sync(barrier, kThreads);
}

inline void fence_shared_writes() {}
template <int kRegisters>
void warpgroup_reg_alloc() {}
template <int kRegisters>
void warpgroup_reg_dealloc() {}

}  // namespace customconv::ptx
