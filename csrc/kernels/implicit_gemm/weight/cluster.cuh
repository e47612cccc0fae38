// A cluster's thread blocks add up their sums through shared memory.
#pragma once

#include "kernels/implicit_gemm/weight/geometry.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm::weight {

// Whose four sums the `number`-th thread takes: the vectors of a warp's lanes one after the other.
template <int kVectors>
struct InOrder {
  int warp, vector, lane;

  __device__ explicit InOrder(int number)
      : warp(number / (kVectors * 32)), vector(number / 32 % kVectors), lane(number % 32) {}

  // Where they are, of all warps'.
  static __device__ int place(int warp, int vector, int lane) {
    return (warp * kVectors + vector) * 32 + lane;
  }
};

// The same where a row's 64 columns are neighbours in the result: four lanes of eight vectors.
// These meet all banks.
template <int kVectors>
struct ByRows {
  int warp, vector, lane;

  __device__ explicit ByRows(int number)
      : warp(number / (kVectors * 32)),
        vector(number / 256 % (kVectors / 8) * 8 + number / 4 % 8),
        lane(number / 32 % 8 * 4 + number % 4) {}

  static __device__ int place(int warp, int vector, int lane) {
    return InOrder<kVectors>::place(warp, vector, lane ^ vector % 8 * 4);
  }
};

// Of `threads` of each block, always in the same order, each block its share. `sums_of(i)`: four of
// a thread's; `finish(order, total)`: takes four totals. The memory is no longer read when all
// threads are here.
template <template <int> typename Order, int kVectors, typename SumsOf, typename Finish>
__device__ inline void add_cluster_up(char* memory, int threads, int rank, int cluster,
                                      const SumsOf& sums_of, const Finish& finish) {
  using Vectors = Order<kVectors>;
  const int thread = static_cast<int>(threadIdx.x);
  auto* const all = reinterpret_cast<float4*>(memory);
  ptx::sync_threads(1, threads);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    all[Vectors::place(thread / 32, i, thread % 32)] = sums_of(i);
  }
  if (cluster > 1) {
    ptx::sync_cluster();
  } else {
    ptx::sync_threads(1, threads);
  }
#pragma unroll 1
  for (int number = thread + rank * threads; number < threads * kVectors;
       number += threads * cluster) {
    const Vectors at(number);
    const uint32_t own = ptx::shared_address(all + Vectors::place(at.warp, at.vector, at.lane));
    float4 others[kMostClustered];
#pragma unroll
    for (int other = 0; other < kMostClustered; ++other) {
      if (other < cluster) others[other] = ptx::load_cluster(ptx::cluster_address(own, other));
    }
    float total[4] = {};
#pragma unroll
    for (int other = 0; other < kMostClustered; ++other) {
      if (other >= cluster) continue;
      total[0] += others[other].x;
      total[1] += others[other].y;
      total[2] += others[other].z;
      total[3] += others[other].w;
    }
    finish(at, total);
  }
  if (cluster == 1) return;
  __syncwarp();
  ptx::meet_cluster();  // a block's sums are read until here
}

}  // namespace customconv::implicit_gemm::weight
