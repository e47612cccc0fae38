// The kernel: one warpgroup loads, others multiply and store. A thread block stays until all tiles
// are done.
//
// It begins while the kernel in front of it may still run. Whoever starts a copy waits for that one
// first. What follows from a copy, stores too, need not wait again.
#pragma once

#include <type_traits>

#include "kernels/implicit_gemm/sm90/first_lines.cuh"
#include "kernels/implicit_gemm/sm90/gather.cuh"
#include "kernels/implicit_gemm/sm90/halo.cuh"
#include "kernels/implicit_gemm/sm90/halve.cuh"
#include "kernels/implicit_gemm/sm90/im2col.cuh"
#include "kernels/implicit_gemm/sm90/pixel_rows.cuh"
#include "kernels/implicit_gemm/sm90/planes.cuh"
#include "kernels/implicit_gemm/sm90/products.cuh"
#include "kernels/implicit_gemm/sm90/statistics.cuh"
#include "kernels/implicit_gemm/sm90/store_cluster.cuh"
#include "kernels/implicit_gemm/sm90/store_pixels.cuh"
#include "kernels/implicit_gemm/sm90/store_planes.cuh"
#include "kernels/implicit_gemm/sm90/store_rows.cuh"
#include "kernels/implicit_gemm/sm90/stream_k.cuh"
#include "kernels/implicit_gemm/sm90/sum_again.cuh"
#include "kernels/ptx/grid.cuh"

namespace customconv::implicit_gemm::sm90 {

// `kFused`: there may be an epilogue. `kAsStored`: the instruction transposes weights. `kStreamK`:
// thread blocks share the steps of some tiles.
template <typename T, int kShape, Loader kLoader, Store kStore, bool kFused, bool kAsStored,
          bool kStreamK>
__global__ void __launch_bounds__(kTileShapes[kShape].threads(writes_stages(kLoader, kStore,
                                                                            kTileShapes[kShape])),
                                  kTileShapes[kShape].occupancy)
    convolve(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr TileShape kTile = kTileShapes[kShape];
  constexpr bool kHalo = kLoader == Loader::kHalo, kClustered = kStore == Store::kCluster;
  constexpr bool kHasPlanes = has_planes(kLoader, kStore, kTile), kHalves = kTile.halves;
  constexpr bool kGathers = kLoader == Loader::kGather;
  constexpr bool kWrites = writes_stages(kLoader, kStore, kTile);
  constexpr int kLoaders = kTile.loaders(kWrites);
  // Thread blocks of a cluster have a tile each: all their warpgroups share it.
  constexpr int kTeams = kClustered ? 1 : kTile.teams;
  constexpr int kWarpgroups = kTile.multipliers() / kTeams;
  constexpr bool kPixelRows = kTile.has_pixel_rows();
  constexpr int kN = kPixelRows ? kTile.channels : kTile.columns(kWrites);
  constexpr int kSpans = kPixelRows ? 1 : kTile.own_pixels() / kN;
  constexpr int kOwnChannels =
      kTile.splits_pixels() ? kTile.channels : kTile.channels / kWarpgroups;
  constexpr int kBlocks =
      kPixelRows ? kTile.own_pixels() / kInstructionRows : kOwnChannels / kInstructionRows * kSpans;
  constexpr int kFirstHalvingWarp = kHalo ? 2 : 1, kHalvingWarps = 4 * kLoaders - kFirstHalvingWarp;
  constexpr int kOrderThreads = 2 * 128 * kWarpgroups;  // of a team that waits and one that arrives
  extern __shared__ __align__(1024) char dynamic[];
  const Memory memory(p, dynamic, kTile.multipliers() * staging_bytes(kStore));
  // The same for all threads of a warp, and the compiler is told so: what follows from it stays in
  // uniform registers, where copies and products want their operands.
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int first = kClustered ? static_cast<int>(blockIdx.x) / p.splits : blockIdx.x;
  const int rank = kClustered ? ptx::cluster_rank() : 0;
  ptx::launch_dependent_grids();
  if constexpr (kLoader == Loader::kIm2col && !kHalves) {
    constexpr int kFirstWarp = 4 - kPrefetchingWarps;
    if (warp >= kFirstWarp && warp < 4) {
      prefetch_first_tile(p, first, rank, kTile, threadIdx.x - kFirstWarp * 32);
    }
  }
  const bool transposes_planes = kHasPlanes && p.plane_boxes > 0;
  if (threadIdx.x == 0) {
    if (!kGathers) ptx::prefetch_tma_descriptor(transposes_planes ? p.planes : &p.x);
    ptx::prefetch_tma_descriptor(&p.w);
  }
  if (threadIdx.x == kLoaders * 128) {  // it has nothing to do before there are stages
    // Warps that transpose planes fill a stage, or those that halve pixels and copies of weights.
    const int halving = kHalvingWarps + (kHalo ? 0 : 1);
    const int filling = transposes_planes ? p.plane_boxes
                        : kGathers        ? 4 * kLoaders + 1
                        : p.halves_pixels ? halving
                                          : 1;
    ptx::init_barriers(memory.x_full, p.x_stages, filling);
    ptx::init_barriers(memory.x_empty, p.x_stages, kWarpgroups);
    if (kHalves) ptx::init_barriers(memory.float_full, p.x_stages, 1);
    if (kHalo) {
      ptx::init_barriers(memory.w_full, p.w_stages, 1);
      ptx::init_barriers(memory.w_empty, p.w_stages, kWarpgroups);
    }
    if (transposes_planes) {
      ptx::init_barriers(memory.slot_full, kTile.plane_warps() * kMostPlaneSlots, 1);
    }
    if (kFused) ptx::init_barriers(memory.residual_full, kTile.multipliers(), 1);
    ptx::fence_barrier_init();
  }
  if (kGathers && warp < 4 * kLoaders) {
    list_terms<T>(p.gather, memory.terms, threadIdx.x, 128 * kLoaders);
  }
  // Parameters are not in a cache yet. Finding the first tile brings them there meanwhile.
  {
    const Work work = TileScheduler<kStreamK>(p, first).current(p, kTile, kLoader);
    asm volatile("" ::"r"(work.position), "r"(work.last_k), "r"(work.taps));
  }
  __syncthreads();

  const auto each_tile = [&](auto function) {
    for (TileScheduler<kStreamK> scheduler(p, first); scheduler.is_valid(p);) {
      Work work = scheduler.current(p, kTile, kLoader);
      scheduler.advance(p);
      if constexpr (kClustered) work.split(rank, p.splits);
      function(work, !kClustered && scheduler.is_valid(p));
      if (kClustered) return;
    }
  };
  const auto help_cluster = [&](const Work& work, bool) {
    const float none[kBlocks][kN / 2] = {};
    store_cluster<T, kLoaders, kWarpgroups, kBlocks, kN, kHalves>(p, work, none, memory.weights,
                                                                  rank, -1);
  };
  // Threads that load leave registers to those that multiply.
  constexpr bool kMoves = kTile.multipliers() >= 2 && kTile.occupancy == 1;
  constexpr int kLoaderRegisters = kGathers ? 88 : kHasPlanes && kHalves ? 48 : 56;
  constexpr int kOtherRegisters =
      (kTile.registers(kWrites) * (kLoaders + kTile.multipliers()) - kLoaders * kLoaderRegisters) /
      kTile.multipliers() / 8 * 8;
  if (warp < 4 * kLoaders) {
    if constexpr (kMoves) ptx::warpgroup_reg_dealloc<kLoaderRegisters>();
    ptx::PipelineState state;
    bool loads_weights = true;
    if constexpr (kGathers) {
      ptx::wait_on_dependent_grids();
      GatherLoader<T, kShape> loader(p, memory, warp, lane);
      each_tile([&](const Work& work, bool) {
        loader.load(work, loads_weights);
        loads_weights = !p.keeps_weights;
      });
    } else if (transposes_planes && warp != 1) {
      ptx::wait_on_dependent_grids();
      PlaneLoader<T, kShape, kStreamK, kClustered>(p, memory, rank, warp == 0 ? 0 : warp - 1, lane)
          .load(first);
    } else if (warp == 0) {
      ptx::wait_on_dependent_grids();
      each_tile([&](const Work& work, bool) {
        if constexpr (kHalo) {
          load_halo(p, memory, work, state, lane);
        } else {
          load_taps<kTile.channels, kAsStored>(p, memory, work, state, loads_weights, lane);
          loads_weights = !p.keeps_weights;
        }
      });
    } else if (kHalo && warp == 1) {
      ptx::wait_on_dependent_grids();
      each_tile([&](const Work& work, bool) {
        if (!loads_weights) return;
        load_halo_weights<kTile.channels, kAsStored>(p, memory, work, state, lane);
        loads_weights = !p.keeps_weights;
      });
    } else if (kHalves && p.halves_pixels) {
      each_tile([&](const Work& work, bool) {
        const int stages = work.taps == 0 ? 0 : work.last - work.first;
        halve_stages<kHalvingWarps>(p, memory, stages, state, warp - kFirstHalvingWarp, lane);
      });
    }
    if constexpr (kClustered) each_tile(help_cluster);
    return;
  }
  if constexpr (kMoves) ptx::warpgroup_reg_alloc<kOtherRegisters>();
  // Pixels that no tap meets follow from no copy.
  const Phase& fewest = p.phase[p.phases - 1];
  const bool leaves_out = kLoader == Loader::kIm2col && p.depth.leaves_out;
  if (fewest.R * fewest.S == 0 || leaves_out) ptx::wait_on_dependent_grids();
  const int warpgroup = warp / 4 - kLoaders, team = warpgroup / kWarpgroups;
  const int own = warpgroup % kWarpgroups;  // of those that share a tile
  const int own_k = kTile.splits_pixels() ? 0 : own * kOwnChannels;
  const int own_pixel = kTile.splits_pixels() ? own * kTile.own_pixels() : 0;
  char* staging = memory.staging + warpgroup * staging_bytes(kStore);
  const bool leads = warp % 4 == 0 && ptx::elect_one();
  Products<T, kShape, kSpans, kBlocks, kN, kLoader, kAsStored> products(p, memory, own, own_k,
                                                                        own_pixel);
  RowStore<T, kSpans, kBlocks, kN, kFused> rows(p, memory.residual_full + warpgroup, staging, own_k,
                                                1 + warpgroup, leads);
  // `own_work`, `k`: the pixels and the first channel of the warp's sums.
  const auto finish_and_store = [&](const Work& work, const Work& own_work, int k, auto& sum) {
    constexpr int kSumBlocks = std::extent_v<std::remove_reference_t<decltype(sum)>, 0>;
    constexpr int kColumns = 2 * std::extent_v<std::remove_reference_t<decltype(sum)>, 1>;
    if constexpr (kFused) {
      finish<T, kSpans>(p, own_work, k, sum);
      store_statistics<T, kSpans>(p, own_work, k, sum);
    }
    if constexpr (kStore == Store::kPixels) {
      store_pixels<T, kFused, kPixelRows, kSpans, kSumBlocks, kColumns>(
          p, work, sum, staging, work.k + own_k, 1 + warpgroup);
    } else {
      store_planes<T, kFused, kSpans, kSumBlocks, kColumns>(p, own_work, sum, staging, k);
    }
  };
  int tile = 0;  // of the block's
  each_tile([&](Work work, bool has_next) {
    if constexpr (kTeams > 1) {
      if (tile % kTeams != team) {
        ++tile;
        products.skip(work);
        return;
      }
    }
    float sum[kBlocks][kN / 2];
    if constexpr (kStore == Store::kRows) rows.begin(work, own_pixel);
    // Stages are waited for in order: a barrier tells its last two rounds apart, not more.
    if (kTeams > 1 && tile > 0) ptx::named_barrier_sync(kOrderBarrier + team, kOrderThreads);
    products.multiply(work, sum, [&] {
      if (kTeams > 1 && has_next) {
        ptx::named_barrier_arrive(kOrderBarrier + (team + 1) % kTeams, kOrderThreads);
      }
    });
    if (kTeams > 1) ++tile;
    if constexpr (kStreamK) {
      if (work.last < p.chunks) return store_partial_sums<kWarpgroups>(p, sum, own, 1 + warpgroup);
      if (work.first > 0) add_partial_sums<kWarpgroups>(p, work, sum, own, 1 + warpgroup);
    }
    work.position += own_pixel;
    if constexpr (kHalves && !kClustered) sum_again<kSpans>(p, work, work.k + own_k, sum);
    if constexpr (kStore == Store::kRows) {
      rows.store(work, sum);
    } else if constexpr (kClustered) {
      store_cluster<T, kLoaders, kWarpgroups, kBlocks, kN, kHalves>(p, work, sum, memory.weights,
                                                                    rank, warpgroup);
    } else if constexpr (kPixelRows) {
      float exchanged[1][kBlocks * kN / 2];
      exchange_rows(sum, exchanged[0], staging, 1 + warpgroup);
      Work own_work = work;
      own_work.position += own_half() * kTile.columns(kWrites);
      finish_and_store(work, own_work, work.k - own_half() * kTile.channels, exchanged);
    } else {
      finish_and_store(work, work, work.k + own_k, sum);
    }
  });
  if constexpr (kStore == Store::kRows) rows.await();
#endif
}

}  // namespace customconv::implicit_gemm::sm90
