// Stream-K (Osama et al., PPoPP 2023): thread blocks share the steps of tiles. The block with a
// tile's last step adds to its own sums what the others have stored, always in the same order.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/work.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/memory.cuh"

namespace customconv::implicit_gemm::sm90 {

// The partial sums of a block's warpgroup, each of all threads side by side. By single floats: more
// at a time take registers that sums need.
template <int kWarpgroups, int kSums>
__device__ inline float* partial_sums(const Params& p, int block, int own) {
  const int64_t place = int64_t{block} * kWarpgroups + own;
  return p.partials.sums + place * (kSums * 128) + threadIdx.x % 128;
}

// `own`: which of the tile's warpgroups it is.
template <int kWarpgroups, int kBlocks, int kSums>
__device__ inline void store_partial_sums(const Params& p, const float (&sum)[kBlocks][kSums],
                                          int own, int barrier) {
  float* const to = partial_sums<kWarpgroups, kBlocks * kSums>(p, blockIdx.x, own);
  ptx::wait_on_dependent_grids();  // whoever used this memory before
#pragma unroll
  for (int i = 0; i < kBlocks * kSums; ++i) {
    ptx::store_to_l2(to + i * 128, sum[i / kSums][i % kSums]);
  }
  ptx::named_barrier_sync<128>(barrier);
  if (threadIdx.x % 128 == 0) {
    ptx::store_release(p.partials.flags + blockIdx.x * kWarpgroups + own, p.partials.token);
  }
}

// Blocks with smaller numbers are waited for: they began before this one, whatever else runs on the
// GPU, and wait for none with a larger number.
template <int kWarpgroups, int kBlocks, int kSums>
__device__ inline void add_partial_sums(const Params& p, const Work& work,
                                        float (&sum)[kBlocks][kSums], int own, int barrier) {
  const int tile_begin = first_shared_step(p, blockIdx.x) - work.first;
  int block = blockIdx.x;
  do {
    --block;
    if (threadIdx.x % 128 == 0) {
      uint64_t* const flag = p.partials.flags + block * kWarpgroups + own;
      while (ptx::load_acquire(flag) != p.partials.token) {
      }
      *flag = 0;  // a captured launch has the same token at each replay
    }
    ptx::named_barrier_sync<128>(barrier);
    const float* const from = partial_sums<kWarpgroups, kBlocks * kSums>(p, block, own);
#pragma unroll
    for (int i = 0; i < kBlocks * kSums; ++i) {
      sum[i / kSums][i % kSums] += ptx::load_from_l2(from + i * 128);
    }
  } while (first_shared_step(p, block) > tile_begin);
}

}  // namespace customconv::implicit_gemm::sm90
