// Where weights are.
#pragma once

#include <cstdint>

#include "kernels/common/divide.cuh"

namespace customconv {

// Where the weight is that has a number by tap, k and c.
struct WeightPlace {
  Divider<int32_t> by_C, by_K, by_S;
  int64_t k, c, r, s;  // strides

  __device__ int64_t operator()(int64_t number) const {
    auto rest = static_cast<int32_t>(number);
    const int own_c = by_C.split(rest);
    const int own_k = by_K.split(rest);
    const int own_s = by_S.split(rest);
    return own_k * k + own_c * c + own_s * s + rest * r;
  }
};

}  // namespace customconv
