// Adding up the splits of a tile's sums, always in the same order, and storing the result.
//
// Few of them are a cluster of thread blocks, which write to each other's shared memory. More, or
// those of more tiles than run at a time, lie in memory until a second kernel adds them up.
#pragma once

#include "kernels/implicit_gemm/epilogue.cuh"
#include "kernels/implicit_gemm/finish.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm {

// What a warpgroup adds up at a time.
template <int kKernel>
struct SplitPart {
  static constexpr Kernel kKind = kKernels[kKernel];
  static constexpr int kSums = kSplitColumns / 2;
  static constexpr int kAcross = kKind.channels / kSplitColumns;
  static constexpr int kCount = split_parts(kKind);
};

// A warpgroup's sums of an item, which a second kernel adds up.
template <int kKernel, typename T, int kBlocks, int kSums>
__device__ inline void store_partial(const Params<T>& p, int item, int warpgroup,
                                     const float (&sum)[kBlocks][kSums]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const int64_t place = int64_t{item} * kKernels[kKernel].blocks() + warpgroup * kBlocks + b;
    float* to = p.partial + place * (128 * kSums) + threadIdx.x % 128;
#pragma unroll
    for (int j = 0; j < kSums; ++j) to[j * 128] = sum[b][j];
  }
}

// Stores a part whose splits are added up.
template <typename T, int kKernel, bool kBoxes, bool kFused>
__device__ inline void store_part(const Params<T>& p, const Corner& at, int part,
                                  float (&sum)[1][SplitPart<kKernel>::kSums], char* staging) {
  constexpr int kAcross = SplitPart<kKernel>::kAcross;
  const int block = part / kAcross, first_k = at.k + part % kAcross * kSplitColumns;
  if constexpr (kFused) finish<T, kBoxes>(p, at, first_k, block, sum);
  store_block<T, kBoxes, kSplitColumns>(p, at, first_k, sum[0], block, staging);
}

// A cluster's blocks write their sums into each other's shared memory, where each adds up its share
// of the parts.
template <typename T, int kKernel, Fetch kFetch, bool kFused, int kBlocks, int kSums>
__device__ inline void add_in_cluster(const Params<T>& p, const Shared& shared, const Corner& at,
                                      const float (&sum)[kBlocks][kSums], int warpgroup) {
  using Part = SplitPart<kKernel>;
  constexpr int kWarpgroups = warpgroups(Part::kKind, kFetch);
  constexpr int kColumnBytes = 128 * 4;  // of a sum of each thread
  const int thread = threadIdx.x % 128;
  const int own_rank = ptx::cluster_rank();
  const uint32_t exchange = ptx::shared_address(shared.exchange + thread);
#pragma unroll
  for (int i = 0; i < kBlocks * Part::kAcross; ++i) {
    const int part = warpgroup * kBlocks * Part::kAcross + i;
    const int place = part / p.splits * p.splits + own_rank;
    const uint32_t to = ptx::cluster_address(exchange + place * kPartBytes, part % p.splits);
#pragma unroll
    for (int j = 0; j < Part::kSums; ++j) {
      ptx::store_cluster(to + j * kColumnBytes,
                         sum[i / Part::kAcross][i % Part::kAcross * Part::kSums + j]);
    }
  }
  ptx::sync_cluster();
  char* staging =
      shared.staging + (warpgroup * 4 + thread / 32) * warp_staging(sizeof(T), kSplitColumns);
  for (int slot = warpgroup; slot * p.splits + own_rank < Part::kCount; slot += kWarpgroups) {
    float total[1][Part::kSums] = {};
#pragma unroll 2
    for (int rank = 0; rank < p.splits; ++rank) {
      const uint32_t from = exchange + (slot * p.splits + rank) * kPartBytes;
#pragma unroll
      for (int j = 0; j < Part::kSums; ++j) {
        total[0][j] += __uint_as_float(ptx::load_shared<uint32_t>(from + j * kColumnBytes));
      }
    }
    store_part<T, kKernel, kFetch == Fetch::kShared, kFused>(p, at, slot * p.splits + own_rank,
                                                             total, staging);
  }
}

// From memory; a block of threads for each part.
template <typename T, int kKernel, bool kBoxes, bool kFused>
__global__ void __launch_bounds__(128) add_splits(const __grid_constant__ Params<T> p) {
  using Part = SplitPart<kKernel>;
  constexpr int kAtOnce = 4;
  extern __shared__ __align__(1024) char memory[];
  const int tiles = p.items / p.splits;
  const int part = blockIdx.x % Part::kCount, tile = blockIdx.x / Part::kCount;
  float sum[1][Part::kSums] = {};
  ptx::await_dependency();
  for (int first = 0; first < p.splits; first += kAtOnce) {
    float more[kAtOnce][Part::kSums];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= p.splits) continue;
      const int64_t item = int64_t{first + i} * tiles + tile;
      const int64_t place = item * Part::kCount + part;
      const float* from = p.partial + place * (128 * Part::kSums) + threadIdx.x;
#pragma unroll
      for (int j = 0; j < Part::kSums; ++j) more[i][j] = from[j * 128];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= p.splits) continue;
#pragma unroll
      for (int j = 0; j < Part::kSums; ++j) sum[0][j] += more[i][j];
    }
  }
  store_part<T, kKernel, kBoxes, kFused>(
      p, work_at(p, tile, Part::kKind.channels).at, part, sum,
      memory + threadIdx.x / 32 * warp_staging(sizeof(T), kSplitColumns));
}

}  // namespace customconv::implicit_gemm
