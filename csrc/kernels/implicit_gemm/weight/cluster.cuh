// A cluster's thread blocks add up their sums through shared memory.
#pragma once

#include "kernels/implicit_gemm/weight/geometry.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm::weight {

// Which of a warp's sums, four of a lane: columns of eight neighbours are a vector, eight of these
// a block of columns.
struct FourSums {
  int warp, vector, lane;
};

// The order in which threads take what a block adds up, 2^`log` vectors of a block of columns: all
// lanes' of one, then of the next.
struct InOrder {
  __device__ static void find(int number, int, int& lane, int& vector) {
    lane = number % 32;
    vector = number / 32;
  }
};
// A row's columns first, for where these are neighbours in the result.
struct ByRows {
  __device__ static void find(int number, int log, int& lane, int& vector) {
    lane = (number >> (2 + log)) * 4 + number % 4;
    vector = number / 4 & ((1 << log) - 1);
  }
};

// Adds up the sums of `threads` of each block of a cluster, always in the same order. A block adds
// up some neighbouring vectors of each block of columns: all write them into its memory, which is
// free when all are here. `cluster`: its blocks, a power of two; `sums_of(i)`: a thread's i-th
// four; `finish(at, total)` takes four totals.
template <typename Order, int kVectors, typename SumsOf, typename Finish>
__device__ inline void add_cluster_up(char* memory, int threads, int rank, int cluster,
                                      const SumsOf& sums_of, const Finish& finish) {
  constexpr int kColumnBlocks = kVectors / 8;
  constexpr uint32_t kBytes = sizeof(float4);
  const int thread = static_cast<int>(threadIdx.x), log = __ffs(8 / cluster) - 1;
  const int share = threads * kColumnBlocks << log;  // of a block, from each
  const auto sync = [&] {
    if (cluster > 1) {
      ptx::sync_cluster();
    } else {
      ptx::sync_threads(1, threads);
    }
  };
  // Of what a block leaves to one. Four lanes of two vectors meet all banks.
  const auto place = [&](int warp, int vector, int lane) {
    const int block = warp * kColumnBlocks + vector / 8, own = vector & ((1 << log) - 1);
    return ((block << log) + own) * 32 + (lane ^ vector % 8 * 4);
  };
  const uint32_t sums = ptx::shared_address(memory);
  sync();
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const uint32_t to = sums + (rank * share + place(thread / 32, i, thread % 32)) * kBytes;
    ptx::store_cluster(ptx::cluster_address(to, i % 8 >> log), sums_of(i));
  }
  sync();
#pragma unroll 1
  for (int number = thread; number < share; number += threads) {
    FourSums at;
    const int block = number >> (5 + log);
    Order::find(number & ((32 << log) - 1), log, at.lane, at.vector);
    at.vector += block % kColumnBlocks * 8 + (rank << log);
    at.warp = block / kColumnBlocks;
    const auto* from = reinterpret_cast<const float4*>(memory) + place(at.warp, at.vector, at.lane);
    float total[4] = {};
#pragma unroll
    for (int other = 0; other < kMostClustered; ++other) {
      if (other >= cluster) continue;
      const float4 sum = from[other * share];
      total[0] += sum.x;
      total[1] += sum.y;
      total[2] += sum.z;
      total[3] += sum.w;
    }
    finish(at, total);
  }
}

}  // namespace customconv::implicit_gemm::weight
