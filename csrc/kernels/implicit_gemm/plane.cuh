// What the loaders of planes share.
#pragma once

#include <cstdint>

#include "kernels/common/scalar.cuh"

namespace customconv::implicit_gemm {

// A tile's first pixel and output channel; or a plane's first pixel of the input. In a run of lines
// `line` counts the positions before it, and n, p, q are of the run's beginning.
struct Corner {
  int n, p, q, k;
  int line;
};

template <typename T>
__device__ inline T rounded(T v) {
  return v;
}
// The tensor cores would cut the bits that TF32 lacks.
template <>
__device__ inline float rounded<float>(float v) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
  return __uint_as_float(bits);
}

}  // namespace customconv::implicit_gemm
