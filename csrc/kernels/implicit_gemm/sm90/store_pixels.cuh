// Channels-last results that threads store, a pixel's channels 16 bytes at a time: of positions
// that are not all pixels of the output, or not one after the other.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/store_rows.cuh"

namespace customconv::implicit_gemm::sm90 {

// `slabs`: of a warpgroup, of which a warp uses its own rows.
template <typename T, int kBlocks, int kN>
__device__ inline void store_pixels(const Params& p, const Work& work,
                                    float (&sum)[kBlocks][kN / 2], char* slabs, int own_row) {
  using S = Slab<T, kN>;
  constexpr int kUnit = 16 / S::kSize, kUnits = S::kRowBytes / 16;  // of a slab's row
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
  const uint32_t base = ptx::shared_address(slabs);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const int position = work.position + own_row + b * 64 + warp * 16 + lane % 16;
    const int64_t own = Place(p, position).offset(p, p.phase[work.phase]);
#pragma unroll
    for (int first = 0; first < S::kAcross; first += S::kAtOnce) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < S::kAtOnce; ++i) {
        S::write(base + i * S::kBytes, sum[b] + (first + i) * S::kChannels / 2, warp, lane);
      }
      __syncwarp();
#pragma unroll 4
      for (int i = lane; i < 16 * kUnits * S::kAtOnce; i += 32) {
        const int row = i / (kUnits * S::kAtOnce), unit = i % (kUnits * S::kAtOnce);
        const int64_t offset = __shfl_sync(~0u, own, row);
        const int k = work.k + first * S::kChannels + unit * kUnit;
        if (offset < 0 || k >= work.last_k) continue;
        const uint32_t from =
            S::unit(base + unit / kUnits * S::kBytes, warp * 16 + row, unit % kUnits);
        const uint4 v = ptx::load_shared<uint4>(from);
        T* to = static_cast<T*>(p.out) + offset + k;
        if (p.vectors) {
          *reinterpret_cast<uint4*>(to) = v;
        } else {
          const T* values = reinterpret_cast<const T*>(&v);
#pragma unroll
          for (int e = 0; e < kUnit; ++e) {
            if (k + e < work.last_k) to[e] = values[e];
          }
        }
      }
    }
  }
}

}  // namespace customconv::implicit_gemm::sm90
