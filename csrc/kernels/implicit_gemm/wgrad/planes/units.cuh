// Units of 16 bytes of pixels: where they belong, and who loads them.
#pragma once

#include "kernels/implicit_gemm/halves.cuh"
#include "kernels/implicit_gemm/unit.cuh"
#include "kernels/implicit_gemm/wgrad/planes/params.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm::wgrad::planes {

// Where a unit of a channel of dy belongs in a stage.
template <typename T>
__device__ inline char* in_slab(const Params<T>& p, char* stage, int unit, int k) {
  return stage + unit / kSlabUnits * p.slab_bytes + k * (kSlabUnits * kUnitBytes) +
         ((unit ^ k) & (kSlabUnits - 1)) * kUnitBytes;
}

// Halves so many bytes of shared memory, by threads that share them: see halve_unit.
__device__ inline void halve_bytes(uint32_t from, int bytes, int low, int thread, int threads) {
#pragma unroll 4
  for (int at = thread * kUnitBytes; at < bytes; at += threads * kUnitBytes) {
    halve_unit(from + at, low, ptx::load_shared<uint4>(from + at));
  }
}

// Calls it for each of so many places that is this thread's, with the first of its channels and how
// far apart they are.
template <typename Load>
__device__ inline void each_place(int count, int thread, int threads, const Load& load) {
#pragma unroll 1
  for (int done = 0; done < count; done += threads) {
    const int places = min(count - done, threads), apart = threads / places;
    const int channel = thread / places;
    if (channel < apart) load(done + thread % places, channel, apart);
  }
}

}  // namespace customconv::implicit_gemm::wgrad::planes
