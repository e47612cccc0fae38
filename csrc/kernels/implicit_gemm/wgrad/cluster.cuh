// A cluster's thread blocks add up their sums through shared memory.
#pragma once

#include "kernels/implicit_gemm/wgrad/geometry.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm::wgrad {

// What the blocks of a cluster have left to one of them. A vector is four sums of each of a warp's
// lanes, of two rows by two columns; the lanes' are eight columns wide. Eight vectors are a block
// of columns, of which each thread block adds up 2^log neighbours.
struct Gathered {
  const float4* memory;
  int cluster;  // thread blocks
  int log;
  int share;  // fours of a thread block

  // A place in a thread block's share. `block`: of columns, of all warps. A vector's lanes meet all
  // banks, and so do those of neighbouring vectors that have the same columns.
  __device__ int place(int block, int vector, int lane) const {
    return ((block << log) + vector) * 32 + (lane ^ ((vector ^ (lane / 8 << log)) & 7));
  }

  // The totals of so many neighbouring lanes, a power of two up to eight, always in the same order.
  template <int kLanes>
  __device__ void add_up(int block, int vector, int first_lane, float4 (&totals)[kLanes]) const {
    const float4* from = memory;
    const int first = place(block, vector, first_lane);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) totals[i] = from[first ^ i];
#pragma unroll 1
    for (int other = 1; other < cluster; ++other) {
      from += share;
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        const float4 sum = from[first ^ i];
        totals[i].x += sum.x;
        totals[i].y += sum.y;
        totals[i].z += sum.z;
        totals[i].w += sum.w;
      }
    }
  }
};

// The blocks of a cluster, a power of two, leave each other the sums of so many of their threads:
// all write into the others' memory, which is free when all threads are here. Their barriers count
// the bytes that arrive, which spares a fence. Overwrites the thread's own.
template <int kVectors>
__device__ inline Gathered exchange(char* memory, ptx::Barrier* arrived, int threads, int rank,
                                    int cluster, float* sums) {
  constexpr int kColumnBlocks = kVectors / 8;
  constexpr uint32_t kBytes = sizeof(float4);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int log = __ffs(8 / cluster) - 1;
  const Gathered all{reinterpret_cast<const float4*>(memory), cluster, log,
                     threads * kColumnBlocks << log};
  // Blocks write to one other at a time, in pairs: what comes first is a block's own.
#pragma unroll
  for (int bit = 1; bit < 8; bit *= 2) {
    if ((rank << log & bit) == 0) continue;
#pragma unroll
    for (int i = 0; i < kVectors * 4; ++i) {
      if ((i / 4 & bit) != 0) continue;
      const float first = sums[i];
      sums[i] = sums[i + bit * 4];
      sums[i + bit * 4] = first;
    }
  }
  if (cluster > 1) {
    ptx::meet_cluster();
    if (threadIdx.x == 0) {
      ptx::arrive_and_expect_tx(arrived, (cluster - 1) * all.share * static_cast<int>(kBytes));
    }
  } else {
    ptx::named_barrier_sync(1, threads);
  }
  const uint32_t own = ptx::shared_address(memory);
  const uint32_t barrier_at = ptx::shared_address(arrived) - own;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int place = all.place(warp * kColumnBlocks + i / 8, i & ((1 << log) - 1), lane);
    const uint32_t at = (rank * all.share + place) * kBytes;
    const float4 four = make_float4(sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]);
    const int other = i % 8 >> log;
    if (other == 0) {
      ptx::store_shared(own + at, four);
    } else {
      const uint32_t there = ptx::cluster_address(own, rank ^ other);
      ptx::send_cluster(there + at, four, there + barrier_at);
    }
  }
  ptx::named_barrier_sync(1, threads);
  if (cluster > 1) ptx::wait_cluster(arrived, 0);
  return all;
}

}  // namespace customconv::implicit_gemm::wgrad
