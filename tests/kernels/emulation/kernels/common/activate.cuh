// Stands in for csrc/kernels/common/activate.cuh: activations that need no instruction of a GPU.
#pragma once

#include "gpu.h"
#include "kernels/common/scalar.cuh"
#include "kernels/epilogue.h"

namespace customconv {

template <typename T>
Accumulator<T> channel_value(const Epilogue& epilogue, const void* values, int channel) {
  if (sizeof(T) == 2 && epilogue.float32_vectors) return static_cast<const float*>(values)[channel];
  return widen(static_cast<const T*>(values)[channel]);
}

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
