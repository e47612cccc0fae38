// Weights of 32 bits, of which the matrix instruction wants input channels side by side, but an
// input gradient has output channels there: warps that have nothing to load transpose each stage
// where it lies.
#pragma once

#include "kernels/implicit_gemm/work.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm {

// A block of 32 x 32, by a warp: both ways its rows have the swizzle.
__device__ inline void transpose_block(uint32_t block) {
  const int lane = threadIdx.x % 32;
  const uint32_t column = block + lane * 4, row = block + lane * kRowBytes;
  uint32_t value[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    value[i] = ptx::load_shared<uint32_t>((column ^ i % 8 * 16) + i * kRowBytes);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    ptx::store_shared(row + ((i / 4 ^ lane % 8) * 16),
                      make_uint4(value[i], value[i + 1], value[i + 2], value[i + 3]));
  }
}

// Called by kSpareWarps. As many stages as all steps of all tiles have groups of products.
template <typename T, int kChannels, Fetch kFetch, Mode kMode>
__device__ inline void transpose_weights(const Params<T>& p, const Shared& shared, int warp,
                                         Walk<T, kMode> walk) {
  constexpr int kBlockBytes = 32 * kRowBytes, kBlocks = kChannels / 32;
  Place w;
  for (; !walk.is_over(); walk.advance()) {
    const Phase& phase = p.out.phase[walk.work.at.phase];
    const auto taps = [](int all, int first, int step) { return (all - first + step - 1) / step; };
    const int stages = kFetch == Fetch::kShared
                           ? taps(phase.R, walk.step.plane_h, p.h.planes) *
                                 taps(phase.S, walk.step.plane_w, p.w_axis.planes)
                           : 1;
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
      const uint32_t stage = ptx::shared_address(shared.weights) + w.stage * kChannels * kRowBytes;
      ptx::wait(&shared.w_full[w.stage], w.parity);
#pragma unroll 1
      for (int b = warp; b < kBlocks; b += kSpareWarps) transpose_block(stage + b * kBlockBytes);
      ptx::fence_shared_writes();
      ptx::arrive(&shared.w_transposed[w.stage]);
      w.advance(p.w_stages);
    }
  }
}

}  // namespace customconv::implicit_gemm
