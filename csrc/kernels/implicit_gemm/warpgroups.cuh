// The kernels for Hopper: one warpgroup loads, two or four multiply (wgmma) and store.
#pragma once

#include <type_traits>

#include "kernels/implicit_gemm/boxes.cuh"
#include "kernels/implicit_gemm/epilogue.cuh"
#include "kernels/implicit_gemm/fragments.cuh"
#include "kernels/implicit_gemm/rows.cuh"
#include "kernels/implicit_gemm/slabs.cuh"
#include "kernels/implicit_gemm/splits.cuh"
#include "kernels/ptx/grid.cuh"

namespace customconv::implicit_gemm {

constexpr int kBarrierKinds = 5;  // of kMostStages each, one after the other

// Registers of each thread: of those that load, and what that leaves to those that multiply.
constexpr int loader_registers(const Kernel& kernel, Fetch fetch) {
  if (fetch == Fetch::kShared) return 40;
  return warpgroups(kernel, fetch) == 4 ? 64 : 72;
}
constexpr int math_registers(const Kernel& kernel, Fetch fetch) {
  if (fetch == Fetch::kShared) return 232;
  return warpgroups(kernel, fetch) == 4 ? 104 : 216;
}

// `kFused`: there is an epilogue. Its code, unused, would keep apart what is used, and a kernel
// that runs for some microseconds waits for its instructions. `kTransposed`: the instruction
// transposes weights.
template <typename T, int kKernel, Fetch kFetch, bool kFused, bool kTransposed>
__device__ inline void multiply(const Params<T>& p, const Shared& shared, int warpgroup) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kWarpgroups = warpgroups(kKind, kFetch);
  constexpr int kBlocks = kKind.blocks() / kWarpgroups;
  constexpr int kSums = kKind.channels / 2;
  constexpr bool kBoxes = kFetch == Fetch::kShared;
  constexpr bool kSlabs = !kBoxes || kKind.channels * sizeof(T) % kRowBytes == 0;
  char* staging = shared.staging + warpgroup * (p.staging_bytes / kWarpgroups);
  Residual residual(shared, warpgroup, staging);
  const bool through_slabs = kFused && p.boxed_out && p.out.epilogue.residual != nullptr;
  Place x, w;
  for (int item = blockIdx.x; item < p.items; item += gridDim.x) {
    const Work work = work_at(p, item, kKind.channels);
    float sum[kBlocks][kSums];
    if constexpr (kSlabs && kFused) {
      using Slabs = std::conditional_t<kBoxes, ChannelSlabs<T, kKind.channels, kBlocks>,
                                       PlaneSlabs<T, kKind.channels>>;
      if (rarely(through_slabs)) residual.fetch<Slabs>(p, work.at, warpgroup, 0);
    }
    if constexpr (kBoxes) {
      multiply_planes<T, kKernel, kTransposed>(p, shared, work, warpgroup, x, w, sum);
    } else if constexpr (kTransposed) {
      multiply_rows<T, kKind.channels, kFetch, TransposedProducts>(p, shared, work, warpgroup, x, w,
                                                                   sum[0]);
    } else {
      multiply_rows<T, kKind.channels, kFetch>(p, shared, work, warpgroup, x, w, sum[0]);
    }
    if (rarely(p.clustered)) {
      add_in_cluster<T, kKernel, kFetch, kFused>(p, shared, work.at, sum, warpgroup);
      return;
    }
    if (rarely(p.splits > 1)) {
      store_partial<kKernel>(p, item, warpgroup, sum);
      continue;
    }
    if constexpr (kFused) finish<T, kBoxes>(p, work.at, work.at.k, warpgroup * kBlocks, sum);
    if constexpr (kBoxes && kSlabs) {
      if (p.boxed_out) {
        constexpr int kColumns = kKind.channels;
        if (rarely(through_slabs)) {
          store_boxes<T, kColumns, kBlocks, kFused>(p, work.at, sum, warpgroup, residual, staging);
        } else {
          store_boxes<T, kColumns, kBlocks, false>(p, work.at, sum, warpgroup, residual, staging);
        }
        continue;
      }
    }
    if constexpr (!kBoxes) {
      if (p.out.planar) {
        if (rarely(through_slabs)) {
          store_planes<T, kKind.channels, kFused>(p, work.at, sum[0], warpgroup, residual, staging);
        } else {
          store_planes<T, kKind.channels, false>(p, work.at, sum[0], warpgroup, residual, staging);
        }
        continue;
      }
    }
    store_blocks<T, kBoxes, kKind.channels>(p, work.at, sum, warpgroup, staging);
  }
  if (p.boxed_out && leads_warpgroup()) ptx::await_store_reads();
}

template <typename T, int kKernel, Fetch kFetch, bool kFused, bool kTransposed>
__global__ void __launch_bounds__(threads_of(kKernels[kKernel], kFetch), 1)
    convolve(const __grid_constant__ Params<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kChannels = kKind.channels;
  constexpr int kWarpgroups = warpgroups(kKind, kFetch);
  constexpr bool kBoxes = kFetch == Fetch::kShared, kCopied = is_copied(kFetch);
  extern __shared__ __align__(1024) char memory[];
  const Shared shared(p, memory, kCopied, kFetch == Fetch::kFlat);

  // The same for all threads of a warp, and the compiler is told so: what follows from it stays in
  // uniform registers, where copies and products want their operands.
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int warpgroup = warp / 4;
  if (threadIdx.x == 96) {  // of the warp that has least to do at first
    if (!kCopied || p.source.row.boxes > 0) ptx::prefetch_map(&p.x);
    if constexpr (has_matrix(kFetch)) ptx::prefetch_map(&p.w);
  }
  ptx::start_dependents();
  if constexpr (kFetch == Fetch::kFlat) list_flat(p, shared.flat);
  if (warpgroup > 0) {
    // Each kind of barriers by a warp, each barrier by a thread: one after the other takes as long
    // as a first copy.
    const int kind = warp - 4;
    if (kind < kBarrierKinds) {
      const int lane = threadIdx.x % 32;
      const int count = kind < 2 ? p.x_stages : kind < 4 ? p.w_stages : kWarpgroups;
      int arrivals = 1;
      if (kind == 0 && kCopied && p.source.row.boxes == 0) arrivals = kRowThreads;
      if (kind == 1) arrivals = (kBoxes ? 1 : 128) * kWarpgroups;
      if (kind == 3) arrivals = kWarpgroups;
      if (lane < count) ptx::init_barrier(&shared.x_full[kind * kMostStages + lane], arrivals);
      ptx::fence_barrier_init();
    }
  }
  // Loaders find their first tile meanwhile: parameters are not in a cache yet.
  Walk<T> walk(p, kChannels);
  __syncthreads();
  if (p.cluster > 1) ptx::meet_cluster();  // the others can be written to
  if (warpgroup == 0) {
    ptx::give_registers<loader_registers(kKind, kFetch)>();
    ptx::await_dependency();  // the kernel in front, which may write what is loaded here
    if (warp == 0) {
      if constexpr (kBoxes) {
        load_tap_weights<T, kChannels, kTransposed>(p, shared, walk);
      } else {
        load_row_weights<T, kChannels, kFetch, kTransposed>(p, shared, walk);
      }
    } else if (kCopied && p.source.row.boxes == 0) {
      load_rows<T, kFetch>(p, shared, threadIdx.x - 32, walk);
    } else if (warp == 1) {
      if constexpr (kBoxes) {
        load_planes<T>(p, shared, walk);
      } else if constexpr (kFetch == Fetch::kBoxedPieces) {
        load_slabs<T>(p, shared, walk);
      } else {
        load_boxed_rows<T>(p, shared, walk);
      }
    }
  } else {
    ptx::take_registers<math_registers(kKind, kFetch)>();
    multiply<T, kKernel, kFetch, kFused, kTransposed>(p, shared, warpgroup - 1);
  }
#endif
}

}  // namespace customconv::implicit_gemm
