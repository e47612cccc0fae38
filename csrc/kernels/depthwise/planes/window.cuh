// Windows of rows in shared memory, in registers.
#pragma once

#include "kernels/common/scalar.cuh"
#include "kernels/depthwise/planes/geometry.h"
#include "kernels/ptx/shared.cuh"

namespace customconv::depthwise::planes {

__device__ inline bool is_within(int i, int size) {
  return static_cast<unsigned>(i) < static_cast<unsigned>(size);
}

// kCount neighbours in a row, from any element on. Those outside the row are zeros.
template <typename T, int kCount>
class Window {
  static constexpr int kElements = 4 / sizeof(T), kBits = 32 / kElements;
  static constexpr int kWords = (kCount + kElements - 1) / kElements;

 public:
  // Which of them exist, from column `first` of a row of `size`: the same for all rows.
  class Mask {
   public:
    __device__ Mask(int first, int size) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        words_[i] = 0;
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          if (is_within(first + i * kElements + e, size)) {
            words_[i] |= (~0u >> (32 - kBits)) << e * kBits;
          }
        }
        // It would be worked out again for every tile.
        asm volatile("" : "+r"(words_[i]));
      }
    }

   private:
    friend class Window;
    uint32_t words_[kWords];
  };

  // `address`: the first one's, in shared memory.
  __device__ void load(uint32_t address, const Mask& mask) {
    if constexpr (kElements == 1) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        words_[i] = ptx::load_shared<uint32_t>(address + i * 4) & mask.words_[i];
      }
    } else {
      // Half of all windows begin in the middle of a word.
      constexpr int kTouched = kCount / 2 + 1;
      uint32_t touched[kTouched];
#pragma unroll
      for (int i = 0; i < kTouched; ++i) {
        touched[i] = ptx::load_shared<uint32_t>((address & ~3u) + i * 4);
      }
      const uint32_t shift = address % 4 * 8;
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const uint32_t next = touched[i + 1 < kTouched ? i + 1 : i];
        words_[i] = __funnelshift_r(touched[i], next, shift) & mask.words_[i];
      }
    }
  }
  __device__ float operator[](int i) const { return widen(reinterpret_cast<const T*>(words_)[i]); }

 private:
  uint32_t words_[kWords];
};

// A row of zeros, which is read where a row does not exist. All threads of a block call it, and
// then wait for each other.
__device__ inline uint32_t write_zeros(void* at, int thread) {
  const uint32_t address = ptx::shared_address(at);
  if (thread < kZeroBytes / 4) ptx::store_shared(address + thread * 4, 0u);
  return address;
}

// Where a row is read that is so many rows behind the one at `first`.
template <typename T>
__device__ inline uint32_t row_address(uint32_t first, int row, int width, bool exists,
                                       uint32_t zeros) {
  return exists ? first + row * width * static_cast<int>(sizeof(T)) : zeros;
}

}  // namespace customconv::depthwise::planes
