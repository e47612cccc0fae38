// The mean and variance of each channel of a convolution's output, for a batch norm that follows.
//
// Parts of the pixels are summed apart: the mean of a part, and the squared distances from it. A
// sum of squares would cancel where the mean is large. Parts are merged in a fixed order (Chan,
// Golub and LeVeque, 1979). A convolution's kernel leaves parts where it can; else a kernel reads
// the output.
#pragma once

#include <cstdint>

#include "kernels/epilogue.h"
#include "kernels/stream.h"
#include "plan/problem.h"

namespace customconv::statistics {

// Parts of an output that a kernel reads.
int64_t count_parts(const ConvProblem& problem);

// Leaves its parts. T is float, __half or __nv_bfloat16; `y` is dense, in the problem's layout, and
// aligned to 16 bytes.
template <typename T>
void launch_parts(const ConvProblem& problem, const void* y, const StatisticsParts& to,
                  Stream stream);

// What the parts become; all have K elements.
struct Merged {
  float* mean;
  float* variance;        // of the population: divided by the number of pixels
  float* reciprocal_std;  // 1 / sqrt(variance + eps)
  float eps;
  float* running_mean;  // updated, or null; so is the variance, of the sample
  float* running_variance;
  float momentum;
};

void launch_merge(const StatisticsParts& parts, int64_t count, int64_t channels, int64_t pixels,
                  const Merged& to, Stream stream);

}  // namespace customconv::statistics
