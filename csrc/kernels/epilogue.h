// What a convolution's sums become before they are written.
#pragma once

#include <cstdint>

namespace customconv {

enum class Activation : uint8_t {
  kNone,
  kRelu,
  kRelu6,
  kLeakyRelu,
  kSigmoid,
  kHardsigmoid,
  kSilu,
  kHardswish,
  kGelu,
  kGeluTanh,
};

// What parts of a convolution's results, each some pixels, leave for the statistics of channels.
struct StatisticsParts {
  float* moments = nullptr;  // (parts, K, 2): the mean, and the sum of squared distances from it
  float* counts = nullptr;   // (parts,): pixels
};

// y = activation(scale * sum + bias + residual), or activation(scale * sum + bias) + residual.
// Everything is computed in float32 and rounded once.
struct Epilogue {
  const void* bias = nullptr;  // K elements, or null; so is the scale
  const void* scale = nullptr;
  bool float32_vectors = false;    // bias and scale are float32, whatever y is
  const void* residual = nullptr;  // laid out as y, or null
  bool residual_last = false;
  Activation activation = Activation::kNone;
  float negative_slope = 0;    // of the leaky ReLU
  StatisticsParts statistics;  // of y as it is rounded, or null; without residual and activation

  bool is_empty() const {
    return bias == nullptr && scale == nullptr && residual == nullptr &&
           activation == Activation::kNone && statistics.moments == nullptr;
  }
};

}  // namespace customconv
