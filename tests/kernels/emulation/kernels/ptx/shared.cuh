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

// What is not emulated yet: exchanges of 8 by 8 matrices of 16 bits.
template <typename... A>
void load_matrices(const A&...) {
  emulation::fail("matrices are not emulated");
}
template <typename... A>
void load_transposed_matrices(const A&...) {
  emulation::fail("matrices are not emulated");
}
template <typename... A>
void store_matrices(const A&...) {
  emulation::fail("matrices are not emulated");
}
template <typename... A>
void store_transposed_matrices(const A&...) {
  emulation::fail("matrices are not emulated");
}

}  // namespace customconv::ptx
