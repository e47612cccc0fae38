// Adds up what thread blocks have summed of different pixels, as parts.cuh does.
#pragma once

#include "kernels/implicit_gemm/weight/parts.cuh"
#include "kernels/implicit_gemm/weight/registers/sums.cuh"

namespace customconv::implicit_gemm::weight::registers {

template <typename T>
struct Parts {
  Params<T> sums;
  Kernel kind;
  int count;  // of a part, four sums at a time
  Divider<int32_t> by_vectors, by_warps;
};

// So many threads share four sums, each with every so-manieth part.
template <int kSharers, typename T>
__global__ void __launch_bounds__(kPartThreads) add_parts(const __grid_constant__ Parts<T> p) {
  constexpr int kSums = kPartThreads / kSharers, kFew = 8;
  __shared__ float4 shares[kSharers][kSums];
  const int sharer = static_cast<int>(threadIdx.x) / kSums;
  const int own = static_cast<int>(threadIdx.x) % kSums;
  const int32_t number = static_cast<int32_t>(blockIdx.x) * kSums + own;
  int32_t rest = number / 32;
  const int vector = p.by_vectors.split(rest), warp = p.by_warps.split(rest);
  const Share share(p.sums, p.kind, rest);
  const Spot at(p.sums, p.kind, share, warp, number % 32, vector);
  const bool exists = number < p.count && at.exists;
  ptx::await_dependency();
  float4 total{};
  if (exists) {
    // A sum of sums of a few, so that errors of rounding stay small.
    for (int part = sharer; part < p.sums.splits; part += kFew * kSharers) {
      float4 few{};
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
        const int64_t from = part + i * kSharers;
        if (from < p.sums.splits) add(few, p.sums.partial[from * p.count + number]);
      }
      add(total, few);
    }
  }
  if constexpr (kSharers > 1) {
    shares[sharer][own] = total;
    __syncthreads();
    if (sharer > 0) return;
#pragma unroll
    for (int i = 1; i < kSharers; ++i) add(total, shares[i][own]);
  }
  if (!exists) return;
  float sums[4] = {total.x, total.y, total.z, total.w};
  if (!p.sums.from.exact) renew(p.sums, p.sums.from, share, at, sums);
  store(p.sums, share, at, sums);
}

}  // namespace customconv::implicit_gemm::weight::registers
