// What a network's parameters become before its convolutions read them: many tensors a launch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/stream.h"
#include "plan/problem.h"

namespace customconv::parameters {

// Types are float32, float16 and bfloat16.

// A batch norm with fixed statistics, of y = x + shift. Of x it is a scale and a new shift:
//   scale = weight / sqrt(variance + eps),  new_shift = (shift - mean) * scale + bias
// All have `channels` elements. weight, bias and shift may be null.
struct BatchNorm {
  enum { kMean, kVariance, kWeight, kBias, kShift, kVectors };

  const void* vectors[kVectors];
  DType types[kVectors];
  float* scale;
  float* new_shift;
  int32_t channels;
  float eps;
};

void launch_fold(const BatchNorm* batch_norms, size_t count, Stream stream);

// A copy of dense memory, of one type to another. `taps` > 1: K blocks of C channels by `taps`
// become K blocks of `taps` by C channels, which is from KCRS to KRSC.
struct Copy {
  const void* from;
  void* to;
  int64_t filters;  // K
  int32_t channels, taps;
};

// The most taps of a filter whose order changes.
constexpr int32_t kMostTaps = 4096;

// All are of type `from` and become `to`.
void launch_copies(const Copy* copies, size_t count, DType from, DType to, Stream stream);

}  // namespace customconv::parameters
