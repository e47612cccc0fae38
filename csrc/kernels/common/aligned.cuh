// Whether memory may be read and written in vectors.
#pragma once

#include <cstdint>

namespace customconv {

__host__ __device__ inline bool is_aligned(const void* p, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

}  // namespace customconv
