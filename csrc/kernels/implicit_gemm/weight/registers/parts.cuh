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
  // Warpgroups are rows of the filter by others.
  Divider<int32_t> by_taps, by_blocks, by_filter_rows, by_warpgroups;
  bool taps_first;  // what neighbours store: the taps of an input channel, else input channels
  bool exact;       // else what follows is needed
  const T *x, *y;
  ConvProblem problem;
  static constexpr bool flat = false;
};

// So many threads share four sums, each with every so-manieth part.
template <int kSharers, typename T>
__global__ void __launch_bounds__(kPartThreads) add_parts(const __grid_constant__ Parts<T> p) {
  constexpr int kSums = kPartThreads / kSharers, kFew = 8;
  __shared__ float4 shares[kSharers][kSums];
  const int sharer = static_cast<int>(threadIdx.x) / kSums;
  const int own = static_cast<int>(threadIdx.x) % kSums;
  int32_t number = static_cast<int32_t>(blockIdx.x) * kSums + own, rest = number;
  int lane, vector, warp;
  if (p.taps_first) {
    // Neighbours store neighbours: taps, then input channels.
    const int chunk = p.sums.by_chunks.split(rest), set = p.sums.by_filter_sets.split(rest);
    vector = p.by_taps.split(rest) * p.kind.blocks * 8;
    warp = p.by_filter_rows.split(rest) * 4;
    lane = rest % 8 * 4 + rest / 8 % 4;
    warp += rest / 32 % 4;
    vector += rest / 128 % 8;
    rest /= 1024;
    vector += p.by_blocks.split(rest) * 8;
    warp += p.by_warpgroups.split(rest) * 4;
    rest = (rest * p.sums.by_filter_sets.divisor() + set) * p.sums.by_chunks.divisor() + chunk;
    number = ((rest * p.by_warps.divisor() + warp) * p.by_vectors.divisor() + vector) * 32 + lane;
  } else {
    lane = rest % 32;
    rest /= 32;
    vector = p.by_vectors.split(rest);
    warp = p.by_warps.split(rest);
  }
  const Share share(p.sums, p.kind, rest);
  const Spot at(p.sums, p.kind, share, warp, lane, vector);
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
  if (!p.exact) {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const Element e = at.element(p.sums, i);
      if (sums[i] == sums[i] || !e.exists) continue;
      sums[i] = sum_anew(p, share.group, e.c, share.group * p.sums.group_K + e.k, e.r, e.s);
    }
  }
  store(p.sums, share, at, sums);
}

}  // namespace customconv::implicit_gemm::weight::registers
