// Channels-last results that threads store, a pixel's channels 16 bytes at a time: of positions
// that are not all pixels of the output, or not one after the other.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/slab.cuh"
#include "kernels/ptx/barrier.cuh"

namespace customconv::implicit_gemm::sm90 {

// Moves a slab's channels between shared memory and the tensor at `pixels`, in the direction that
// `kLoads` says. A warp has sixteen positions.
template <typename T, bool kLoads, typename Pixels>
__device__ inline void move_slab(const Params& p, const Work& work, uint32_t slab, Pixels* pixels,
                                 int k, int position) {
  using S = Slabs<T, 64>;
  constexpr int kUnit = 16 / S::kSize;
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
  const int own_row = warp * 16 + lane % 16;
  const int64_t own = Place(p, position + own_row).offset(p, p.phase[work.phase]);
#pragma unroll
  for (int i = lane; i < 16 * 8; i += 32) {
    const int64_t offset = __shfl_sync(~0u, own, i / 8);
    const int channel = k + i % 8 * kUnit;
    if (offset < 0 || channel >= work.last_k) continue;
    const uint32_t at = S::unit(slab, warp * 16 + i / 8, i % 8);
    Pixels* const pixel = pixels + offset + channel;
    if (p.vectors) {
      if constexpr (kLoads) {
        ptx::store_shared(at, *reinterpret_cast<const uint4*>(pixel));
      } else {
        *reinterpret_cast<uint4*>(pixel) = ptx::load_shared<uint4>(at);
      }
      continue;
    }
    uint4 bits{};
    if constexpr (!kLoads) bits = ptx::load_shared<uint4>(at);
    T* const values = reinterpret_cast<T*>(&bits);
#pragma unroll
    for (int e = 0; e < kUnit; ++e) {
      if (channel + e >= work.last_k) continue;
      if constexpr (kLoads) {
        values[e] = pixel[e];
      } else {
        pixel[e] = values[e];
      }
    }
    if constexpr (kLoads) ptx::store_shared(at, bits);
  }
}

// `slabs`: of a warpgroup; `k`: its first channel.
template <typename T, bool kFused, int kSpans, int kBlocks, int kN>
__device__ inline void store_pixels(const Params& p, const Work& work,
                                    float (&sum)[kBlocks][kN / 2], char* slabs, int k,
                                    int barrier) {
  using S = Slabs<T, kN>;
  const uint32_t base = ptx::shared_address(slabs);
  const auto* residual = static_cast<const T*>(p.epilogue.residual);
  const auto each = [&](int b, int round, auto move) {
#pragma unroll
    for (int i = 0; i < S::kCount; ++i) {
      move(base + i * S::kBytes, k + b / kSpans * kBlockChannels + S::channel(i),
           work.position + b % kSpans * kN + S::position(round, i));
    }
  };
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int round = 0; round < S::kRounds; ++round) {
      ptx::sync_threads<128>(barrier);
      if (kFused && residual != nullptr) {
        each(b, round, [&](uint32_t slab, int channel, int position) {
          move_slab<T, true>(p, work, slab, residual, channel, position);
        });
        ptx::sync_threads<128>(barrier);
        S::add(p.epilogue, base, round, sum[b]);
      }
      S::write(base, round, sum[b]);
      ptx::sync_threads<128>(barrier);
      each(b, round, [&](uint32_t slab, int channel, int position) {
        move_slab<T, false>(p, work, slab, static_cast<T*>(p.out), channel, position);
      });
    }
  }
}

}  // namespace customconv::implicit_gemm::sm90
