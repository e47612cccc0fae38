// Sums of splits lie in memory until a second kernel adds them up, always in the same order, and
// stores the results.
#pragma once

#include "kernels/implicit_gemm/mma_sync/epilogue.cuh"

namespace customconv::implicit_gemm::mma_sync {

// The parts of a tile's sums.
template <int kKernel>
struct SplitPart {
  static constexpr Kernel kKind = kKernels[kKernel];
  static constexpr int kSums = kSplitColumns / 2;
  static constexpr int kAcross = kKind.channels / kSplitColumns;
  static constexpr int kCount = split_parts(kKind);
};

// Keeps a warpgroup's sums of an item.
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

// A block of threads adds up a part.
template <typename T, int kKernel, bool kBoxes>
__global__ void __launch_bounds__(128) add_splits(const __grid_constant__ Params<T> p) {
  using Part = SplitPart<kKernel>;
  constexpr int kAtOnce = 4;
  extern __shared__ __align__(1024) char memory[];
  const int tiles = p.items / p.splits;
  const int part = blockIdx.x % Part::kCount, tile = blockIdx.x / Part::kCount;
  float sum[1][Part::kSums] = {};
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
  const Corner at = work_at(p, tile, Part::kKind.channels).at;
  const int block = part / Part::kAcross, first_k = at.k + part % Part::kAcross * kSplitColumns;
  finish<T, kBoxes>(p, at, first_k, block, sum);
  store_block<T, kBoxes, kSplitColumns>(
      p, at, first_k, sum[0], block,
      memory + threadIdx.x / 32 * warp_staging(sizeof(T), kSplitColumns));
}

}  // namespace customconv::implicit_gemm::mma_sync
