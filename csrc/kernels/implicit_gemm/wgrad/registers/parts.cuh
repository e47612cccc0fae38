// Adds up what thread blocks have summed of different pixels, as parts.cuh does.
#pragma once

#include "kernels/implicit_gemm/wgrad/parts.cuh"
#include "kernels/implicit_gemm/wgrad/registers/sums.cuh"

namespace customconv::implicit_gemm::wgrad::registers {

template <typename T>
struct Parts {
  Params<T> sums;
  Kernel kind;
  int count;  // of a part, four sums at a time
  Divider<int32_t> by_vectors, by_warps;
  // Warpgroups are rows of the filter by others.
  Divider<int32_t> by_taps, by_blocks, by_filter_rows, by_warpgroups;
  bool taps_first;  // what neighbours store: the taps of an input channel, else input channels
};

// So many threads share four sums, each with every so-manieth part.
template <int kSharers, typename T>
__global__ void __launch_bounds__(kPartThreads) add_parts(const __grid_constant__ Parts<T> p) {
  constexpr int kSums = kPartThreads / kSharers;
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
  ptx::wait_on_dependent_grids();
  const float4 total =
      add_shares<kSharers>(p.sums.partial + number, p.count, exists ? p.sums.splits : 0);
  if (!exists || sharer > 0) return;
  float sums[4] = {total.x, total.y, total.z, total.w};
  if (!p.sums.from.exact) renew(p.sums, p.sums.from, share, at, sums);
  store(p.sums, share, at, sums);
}

}  // namespace customconv::implicit_gemm::wgrad::registers
