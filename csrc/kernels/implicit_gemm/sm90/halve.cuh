// Pixels that come to a stage as float32: warps leave their high halves where they are, and write
// the low halves behind all of them. It does not matter which pixel is where.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/halves.cuh"
#include "kernels/implicit_gemm/sm90/work.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm::sm90 {

// By so many warps, of which this is `warp`: the stages of a tile.
template <int kWarps>
__device__ inline void halve_stages(const Params& p, const Memory& memory, int stages,
                                    ptx::PipelineState& state, int warp, int lane) {
  constexpr int kUnits = 3, kUnitBytes = 16;  // of a thread at a time
  constexpr int kStep = kWarps * 32 * kUnitBytes;
  for (int i = 0; i < stages; ++i) {
    ptx::wait(memory.float_full + state.stage, state.parity);
    const uint32_t stage = ptx::shared_address(memory.pixels) + state.stage * p.x_bytes;
#pragma unroll 1
    for (int first = (warp * 32 + lane) * kUnitBytes; first < p.low_bytes;
         first += kUnits * kStep) {
      uint4 v[kUnits];
#pragma unroll
      for (int j = 0; j < kUnits; ++j) {
        const int at = first + j * kStep;
        if (at < p.low_bytes) v[j] = ptx::load_shared<uint4>(stage + at);
      }
#pragma unroll
      for (int j = 0; j < kUnits; ++j) {
        const int at = first + j * kStep;
        if (at < p.low_bytes) halve_unit(stage + at, p.low_bytes, v[j]);
      }
    }
    ptx::fence_shared_writes();
    __syncwarp();
    if (lane == 0) ptx::arrive(memory.x_full + state.stage);
    state.advance(p.x_stages);
  }
}

}  // namespace customconv::implicit_gemm::sm90
