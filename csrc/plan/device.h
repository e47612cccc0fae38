// What the planner knows of a GPU. Rates are derived from the properties, never from a name.
#pragma once

#include <cstdint>

#include "plan/problem.h"

namespace customconv {

struct DeviceProperties {
  int capability_major = 9;
  int capability_minor = 0;
  int sm_count = 132;
  double clock_ghz = 1.98;
  double bandwidth_gb_s = 3352;  // device memory
  int64_t l2_bytes = 50 << 20;
  int shared_bytes_block = 227 << 10;  // the most that one block may ask for
  int64_t max_grid_x = 2147483647;
  bool built_for_90a = true;  // the kernels at hand hold code for Hopper's own instructions
  bool has_blas = true;       // there is a cuBLAS to call

  // Whether the predicted times are fitted to this kind of GPU.
  bool has_prices() const { return capability_major == 9 && capability_minor == 0; }

  // Whether Hopper's own instructions and its TMA can be used.
  bool has_hopper_kernels() const {
    return capability_major == 9 && capability_minor == 0 && built_for_90a;
  }

  // Peak rates in FLOP/s.
  double vector_flops(DType dtype) const;  // CUDA cores, sums in float32 (float64 for float64)
  double matrix_flops(DType dtype, bool tf32) const;  // what a library matrix product runs on
};

}  // namespace customconv
