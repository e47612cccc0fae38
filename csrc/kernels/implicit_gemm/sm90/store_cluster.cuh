// Sums that are split among the thread blocks of a cluster: each adds up a part of a tile's
// columns, in order of rank, and stores it.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/finish.cuh"
#include "kernels/implicit_gemm/sm90/sum_again.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm::sm90 {

// All threads of the cluster call it, also those that load and hold no sums. `exchange`: room for
// a block's sums; no copy to it is under way.
template <typename T, int kLoaders, int kWarpgroups, int kBlocks, int kN, bool kHalves>
__device__ inline void store_cluster(const Params& p, const Work& work,
                                     const float (&sum)[kBlocks][kN / 2], char* exchange, int rank,
                                     int warpgroup) {
  constexpr int kSums = kBlocks * kN / 2, kThreads = kWarpgroups * 128;
  const bool multiplies = warpgroup >= 0;
  const int thread = static_cast<int>(threadIdx.x) - 128 * kLoaders;
  const uint32_t own = ptx::shared_address(exchange) + static_cast<uint32_t>(thread) * 4;
  if (multiplies) {
    ptx::named_barrier_sync(1, kThreads);  // none of them reads stages any more
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      ptx::store_shared(own + i * kThreads * 4, sum[i / (kN / 2)][i % (kN / 2)]);
    }
  }
  ptx::sync_cluster();
  if (multiplies) {
    const int count = kSums / p.splits, lane = thread % 32;
    T* const out = static_cast<T*>(p.out);
#pragma unroll 4
    for (int i = rank * count; i < (rank + 1) * count; i += 2) {
      float total[2] = {};
      for (int from = 0; from < p.splits; ++from) {
        const uint32_t at = ptx::cluster_address(own + i * kThreads * 4, from);
        total[0] += ptx::load_cluster_float(at);
        total[1] += ptx::load_cluster_float(at + kThreads * 4);
      }
      const int b = warpgroup * kBlocks + i / (kN / 2), half = i / 2 % 2;
      const int k = work.k + b * kBlockChannels + own_channel() + half * 8;
      const int position = work.position + i % (kN / 2) / 4 * 8 + lane % 4 * 2;
      if (k >= work.last_k) continue;
      int64_t offset[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        offset[n] = Place(p, position + n).offset(p, p.phase[work.phase]);
      }
      if constexpr (kHalves) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          if (offset[n] >= 0 && !is_finite(total[n])) {
            total[n] = sum_again(p, work, position + n, k);
          }
        }
      }
      finish_pair<T>(p, k, offset, total);
      T* const to = out + k * p.out_k;
      if (!p.pixel_pairs) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          if (offset[n] >= 0) to[offset[n]] = narrow<T>(total[n]);
        }
      } else if (offset[0] >= 0) {
        if constexpr (sizeof(T) == 2) {
          *reinterpret_cast<uint32_t*>(to + offset[0]) = pack_pair<T>(total[0], total[1]);
        } else {
          *reinterpret_cast<float2*>(to + offset[0]) = make_float2(total[0], total[1]);
        }
      }
    }
  }
  ptx::sync_cluster();  // the others have read this block's sums
}

}  // namespace customconv::implicit_gemm::sm90
