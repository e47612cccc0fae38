// Stands in for csrc/kernels/ptx/shared.cuh.
#pragma once

#include "kernels/ptx/barrier.cuh"

namespace customconv::ptx {

template <typename T>
char* aligned_at(uint32_t address) {
  if (address % sizeof(T) != 0) emulation::fail("an access to shared memory is misaligned");
  return emulation::at(address);
}
template <typename T>
T load_shared(uint32_t address) {
  T value;
  std::memcpy(&value, aligned_at<T>(address), sizeof(T));
  return value;
}
template <typename T>
void store_shared(uint32_t address, const T& value) {
  std::memcpy(aligned_at<T>(address), &value, sizeof(T));
}
inline void store_shared(uint32_t address, float a, float b) {
  store_shared(address, float2{a, b});
}

// Exchanges of 8 by 8 matrices of 16 bits are not emulated.
struct MatrixExchange {
  template <typename... A>
  void operator()(const A&...) const {
    emulation::fail("matrices are not emulated");
  }
};
inline constexpr MatrixExchange load_matrices, load_transposed_matrices, store_matrices,
    store_transposed_matrices;

}  // namespace customconv::ptx
