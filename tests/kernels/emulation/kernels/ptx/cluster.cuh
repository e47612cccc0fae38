// Stands in for csrc/kernels/ptx/cluster.cuh.
#pragma once

#include "kernels/ptx/barrier.cuh"

namespace customconv::ptx {

inline void meet_cluster() { emulation::meet_cluster(); }
inline void sync_cluster() { emulation::meet_cluster(); }
inline int cluster_rank() { return emulation::here().block->rank; }

inline uint32_t cluster_address(uint32_t own, int rank) {
  return own | static_cast<uint32_t>(rank + 1) << emulation::kRankShift;
}
inline float load_cluster_float(uint32_t address) {
  float value;
  std::memcpy(&value, emulation::at(address), sizeof(value));
  return value;
}
inline void send_cluster(uint32_t address, const float4& v, uint32_t barrier) {
  emulation::later([=] {
    std::memcpy(emulation::at(address), &v, sizeof(v));
    count(phase_at(barrier), 0, -static_cast<int>(sizeof(v)));
  });
}
inline void wait_cluster(Barrier* barrier, uint32_t parity) { wait(barrier, parity); }

}  // namespace customconv::ptx
