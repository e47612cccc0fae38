// Stands in for csrc/kernels/common/activate.cuh: activations that need no instruction of a GPU.
#pragma once

#include "gpu.h"
#include "kernels/common/scalar.cuh"
#include "kernels/epilogue.h"

namespace customconv {

template <int kCount>
void activate(float* values, Activation activation, float slope) {
  for (int i = 0; i < kCount; ++i) {
    float& v = values[i];
    switch (activation) {
      case Activation::kNone:
        break;
      case Activation::kRelu:
        v = v <= 0 ? 0 : v;
        break;
      case Activation::kLeakyRelu:
        v = v > 0 ? v : v * slope;
        break;
      default:
        emulation::fail("the activation is not emulated");
    }
  }
}

}  // namespace customconv
