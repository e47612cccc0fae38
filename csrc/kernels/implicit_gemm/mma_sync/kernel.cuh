// The kernels: one warpgroup copies (cp.async), two multiply (mma.sync) and store.
#pragma once

#include "kernels/implicit_gemm/mma_sync/epilogue.cuh"
#include "kernels/implicit_gemm/mma_sync/planes.cuh"
#include "kernels/implicit_gemm/mma_sync/products.cuh"
#include "kernels/implicit_gemm/mma_sync/rows.cuh"
#include "kernels/implicit_gemm/mma_sync/splits.cuh"
#include "kernels/implicit_gemm/mma_sync/weights.cuh"

namespace customconv::implicit_gemm::mma_sync {

template <typename T, int kKernel, Fetch kFetch>
__device__ inline void multiply(const Params<T>& p, const Shared& shared, int warpgroup) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kBlocks = kKind.blocks() / kWarpgroups;
  constexpr int kChannels = kKind.channels;
  constexpr bool kBoxes = kFetch == Fetch::kShared;
  char* staging = shared.staging + warpgroup * (p.staging_bytes / kWarpgroups);
  Place x, w;
  for (int item = blockIdx.x; item < p.items; item += gridDim.x) {
    const Work work = work_at(p, item, kChannels);
    float sum[kBlocks][kChannels / 2];
    if constexpr (kBoxes) {
      multiply_planes<T, kChannels, kBlocks>(p, shared, work, warpgroup, x, w, sum);
    } else {
      multiply_rows<T, kChannels, kFetch>(p, shared, work, warpgroup, x, w, sum[0]);
    }
    if (p.splits > 1) {
      store_partial<kKernel>(p, item, warpgroup, sum);
      continue;
    }
    finish<T, kBoxes>(p, work.at, work.at.k, warpgroup * kBlocks, sum);
    if constexpr (!kBoxes) {
      if (p.out.planar) {
        store_planes<T, kChannels>(p, work.at, sum[0], warpgroup, staging);
        continue;
      }
    }
    store_blocks<T, kBoxes, kChannels>(p, work.at, sum, warpgroup, staging);
  }
}

template <typename T, int kKernel, Fetch kFetch>
__global__ void __launch_bounds__(kThreads, 1) convolve(const __grid_constant__ Params<T> p) {
#if __CUDA_ARCH__ >= 800
  constexpr int kChannels = kKernels[kKernel].channels;
  extern __shared__ __align__(1024) char memory[];
  const Shared shared(p, memory, kFetch == Fetch::kFlat);
  if (threadIdx.x == 0) {
    ptx::init_barriers(shared.x_full, kMostStages, kRowThreads);
    ptx::init_barriers(shared.x_empty, kMostStages, 128 * kWarpgroups);
    ptx::init_barriers(shared.w_full, kMostStages, 32);
    ptx::init_barriers(shared.w_empty, kMostStages, 128 * kWarpgroups);
  }
  if constexpr (kFetch == Fetch::kFlat) list_flat(p, shared.flat);
  __syncthreads();
  const int warpgroup = threadIdx.x / 128;
  if (warpgroup > 0) {
    multiply<T, kKernel, kFetch>(p, shared, warpgroup - 1);
  } else if (threadIdx.x < 32) {
    if constexpr (kFetch == Fetch::kShared) {
      copy_tap_weights<T, kChannels>(p, shared);
    } else {
      copy_row_weights<T, kChannels, kFetch>(p, shared);
    }
  } else if constexpr (kFetch == Fetch::kShared) {
    copy_planes<T, kChannels>(p, shared, threadIdx.x - 32);
  } else {
    copy_rows<T, kChannels, kFetch>(p, shared, threadIdx.x - 32);
  }
#endif
}

}  // namespace customconv::implicit_gemm::mma_sync
