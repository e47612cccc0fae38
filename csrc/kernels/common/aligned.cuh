// Memory that is read and written in vectors.
#pragma once

#include <cstdint>

namespace customconv {

__host__ __device__ inline bool is_aligned(const void* p, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

template <typename T, int kVector>
struct alignas(sizeof(T) * kVector) Vector {
  T values[kVector];
};

}  // namespace customconv
