// Units of 16 bytes, from wherever they begin.
#pragma once

#include <cstdint>

#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm {

__device__ inline uint4 round_all(uint4 v) {
  return make_uint4(ptx::round_tf32(v.x), ptx::round_tf32(v.y), ptx::round_tf32(v.z),
                    ptx::round_tf32(v.w));
}

// Sixteen bytes of elements side by side, which may begin anywhere. Those from `first` on, before
// `last`, exist; the others are zeros. `kRounds`: elements of float32 are rounded to TF32.
template <bool kRounds = true, typename T>
__device__ inline uint4 load_unit(const T* at, int first, int last) {
  uint32_t word[5] = {};
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= first && i < last) {
        word[i] = reinterpret_cast<const uint32_t*>(at)[i];
      }
    }
  } else {
    // Words that are aligned and hold such an element; they are shifted by half of one.
    const int shift = static_cast<int>(reinterpret_cast<uint64_t>(at) >> 1 & 1);
    const auto* words = reinterpret_cast<const uint32_t*>(at - shift);
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      const int element = i * 2 - shift;
      if (max(element, first) < min(element + 2, last)) word[i] = words[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      word[i] = __funnelshift_r(word[i], word[i + 1], shift * 16);
      if (i * 2 < first || i * 2 >= last) word[i] &= 0xFFFF0000;
      if (i * 2 + 1 < first || i * 2 + 1 >= last) word[i] &= 0xFFFF;
    }
  }
  const uint4 unit = make_uint4(word[0], word[1], word[2], word[3]);
  return kRounds && sizeof(T) == 4 ? round_all(unit) : unit;
}

// Sixteen bytes that begin `bytes` after those of the first, less than sixteen.
__device__ inline uint4 shifted(const uint4& first, const uint4& second, int bytes) {
  uint32_t word[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) word[i] = bytes & 8 ? word[i + 2] : word[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) word[i] = bytes & 4 ? word[i + 1] : word[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) word[i] = __funnelshift_r(word[i], word[i + 1], (bytes & 3) * 8);
  return make_uint4(word[0], word[1], word[2], word[3]);
}

// A mask of a unit's words: ones where elements exist, before `last`.
template <typename T>
__device__ inline uint4 mask_of(int last) {
  constexpr int kElements = 16 / static_cast<int>(sizeof(T)), kOfWord = kElements / 4;
  uint32_t word[4] = {};
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const uint32_t element = sizeof(T) == 4 ? ~0u : 0xFFFFu << i % kOfWord * 16;
    if (i < last) word[i / kOfWord] |= element;
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

}  // namespace customconv::implicit_gemm
