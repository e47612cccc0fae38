// Units of 16 bytes of pixels, of images in shared memory, and where they belong.
#pragma once

#include "kernels/implicit_gemm/halves.cuh"
#include "kernels/implicit_gemm/unit.cuh"
#include "kernels/implicit_gemm/wgrad/planes/params.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm::wgrad::planes {

using implicit_gemm::load_unit;

// A unit of images in shared memory, where words may be read that hold none of its pixels.
template <bool kRounds, typename T>
__device__ inline uint4 load_unit(const T* at, const uint4& mask) {
  const uint32_t address = ptx::shared_address(at), words = address & ~3u;
  uint32_t word[5] = {};
#pragma unroll
  for (int i = 0; i < (sizeof(T) == 4 ? 4 : 5); ++i) {
    word[i] = ptx::load_shared<uint32_t>(words + i * 4);
  }
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      word[i] = __funnelshift_r(word[i], word[i + 1], address % 4 * 8);
    }
  }
  const uint4 unit =
      make_uint4(word[0] & mask.x, word[1] & mask.y, word[2] & mask.z, word[3] & mask.w);
  return kRounds && sizeof(T) == 4 ? round_all(unit) : unit;
}

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
