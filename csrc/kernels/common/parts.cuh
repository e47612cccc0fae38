// Sums whose parts different blocks have computed, added up in a fixed order.
#pragma once

#include <cstdint>

#include "kernels/common/parts.h"
#include "kernels/common/scalar.cuh"
#include "kernels/common/start.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/grid.cuh"
#include "plan/problem.h"

namespace customconv {

// The sum of so many, `value` by number: a sum of sums of a few, so that errors of rounding stay
// small.
template <typename Value>
__device__ inline float sum_of(int count, Value value) {
  constexpr int kFew = 8;
  float total = 0;
  for (int first = 0; first < count; first += kFew) {
    float few = 0;
#pragma unroll
    for (int i = 0; i < kFew; ++i) {
      if (first + i < count) few += value(first + i);
    }
    total += few;
  }
  return total;
}

// Adds up `count` sums of which every block of a cluster has its part at `parts`, in shared memory,
// by the order of ranks, and calls `store(number, total)`, each block for a share of them. So many
// threads of every block call it, whole warps; the others have returned, or do so without waiting.
template <typename Store>
__device__ inline void add_in_cluster(const float* parts, int count, int blocks, int thread,
                                      int threads, const Store& store) {
  const uint32_t from = ptx::shared_address(parts);
  __syncwarp();
  ptx::sync_cluster();
#pragma unroll 1
  for (int i = ptx::cluster_rank() * threads + thread; i < count; i += blocks * threads) {
    store(i, sum_of(blocks, [&](int rank) {
            return ptx::load_cluster_float(ptx::cluster_address(from + i * 4, rank));
          }));
  }
  __syncwarp();
  ptx::sync_cluster();  // a block's parts are read until here
}

// Adds up the parts of `count` sums, which lie one after the other, and stores them at
// to[place(number)], or where that is negative nowhere. So many threads share a sum, each with
// every so-manieth part.
template <int kSharers, typename T, typename Place>
__global__ void __launch_bounds__(kPartThreads)
    add_parts(const float* partial, int64_t count, int parts, T* to, Place place) {
  constexpr int kSums = kPartThreads / kSharers;
  __shared__ float shares[kSharers][kSums];
  const int sharer = static_cast<int>(threadIdx.x) / kSums;
  const int own = static_cast<int>(threadIdx.x) % kSums;
  const int64_t i = int64_t{blockIdx.x} * kSums + own;
  const int64_t at = i < count && sharer == 0 ? place(i) : -1;
  ptx::wait_on_dependent_grids();
  float total = 0;
  if (i < count && sharer < parts) {
    const float* from = partial + sharer * count + i;
    total = sum_of((parts - sharer + kSharers - 1) / kSharers,
                   [&](int n) { return from[n * kSharers * count]; });
  }
  if constexpr (kSharers > 1) {
    shares[sharer][own] = total;
    __syncthreads();
    if (sharer > 0) return;
    total = sum_of(kSharers, [&](int n) { return shares[n][own]; });
  }
  if (at >= 0) to[at] = narrow<T>(total);
}

// Starts the kernel that adds up the parts that the one in front leaves.
template <typename T, typename Place>
void add_up(const char* what, const float* partial, int64_t count, int64_t parts, T* to,
            const Place& place, bool early, cudaStream_t stream) {
  const auto start_with = [&](int sharers, void (*kernel)(const float*, int64_t, int, T*, Place)) {
    Start how{ceil_divide(count, kPartThreads / sharers), kPartThreads};
    how.stream = stream;
    how.early = early;
    start<const float*, int64_t, int, T*, Place>(what, how, kernel, partial, count,
                                                 static_cast<int>(parts), to, place);
  };
  switch (sharers_of(parts)) {
    case 1:
      return start_with(1, add_parts<1, T, Place>);
    case 8:
      return start_with(8, add_parts<8, T, Place>);
    default:
      return start_with(32, add_parts<32, T, Place>);
  }
}

}  // namespace customconv
