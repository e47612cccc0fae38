// The gradient of a bias: of each channel the sum of the output's gradient over images and pixels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "plan/problem.h"

namespace customconv {

// How the vectors of elements are shared out: by the sizes alone, so that the same bits come out
// each time. A vector is of one channel in NCHW, of several in channels-last.
struct BiasGradient {
  static constexpr int kThreads = 256;
  static constexpr int kUnroll = 8;  // vectors that a thread has under way

  BiasGradient(Layout layout, const Shape4& sizes, int element_bytes);

  // Whether 32 bits number the vectors, and what a thread reads past its share.
  bool is_possible() const {
    constexpr int64_t kMost = (int64_t{1} << 31) - 2 * kThreads * kUnroll;
    return count < kMost && columns < kMost;
  }
  int64_t workspace_bytes() const { return splits > 1 ? splits * channels * 4 : 0; }

  Layout layout;
  int vector;                // elements
  int64_t channels, pixels;  // pixels: of an image
  int64_t columns;           // a channel, or the channels of a vector
  int64_t count;             // vectors of a column
  int across, down;          // threads of a block: columns, and how many for each
  int64_t splits, share;     // into so many shares is a column cut, and each has so many vectors
};

// T is float, __half or __nv_bfloat16; `grad` is dense and aligned to 16 bytes.
template <typename T>
void launch_bias_gradient(const BiasGradient& sums, const void* grad, void* to, void* workspace,
                          cudaStream_t stream);

}  // namespace customconv
