// Biases and scales of channels.
#pragma once

#include "kernels/common/scalar.cuh"
#include "kernels/epilogue.h"

namespace customconv {

// A channel's bias or scale.
template <typename T>
__device__ inline Accumulator<T> channel_value(const Epilogue& epilogue, const void* values,
                                               int channel) {
  if (sizeof(T) == 2 && epilogue.float32_vectors) return static_cast<const float*>(values)[channel];
  return widen(static_cast<const T*>(values)[channel]);
}

}  // namespace customconv
