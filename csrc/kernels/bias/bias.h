// The gradient of a bias: of each channel the sum of the output's gradient over images and pixels.
#pragma once

#include <cstdint>

#include "kernels/stream.h"
#include "plan/problem.h"

namespace customconv {

// How the vectors of elements are shared out: by the sizes alone, so that the same bits come out
// each time. A vector is of one channel in NCHW, of several in channels-last.
struct BiasGradient {
  BiasGradient(Layout layout, const Shape5& sizes, int element_bytes);

  int64_t workspace_bytes() const { return splits > 1 ? splits * channels * 4 : 0; }

  bool is_possible;  // 32 bits number the vectors
  Layout layout;
  int64_t channels;
  int64_t run;          // NCHW: vectors of a channel of an image
  int vector;           // elements
  int across, down;     // threads of a block: columns, and how many for each
  int32_t columns = 0;  // a channel, or the channels of a vector
  int32_t count = 0;    // vectors of a column
  int32_t splits = 0;   // shares of a column
  int32_t share = 0;    // vectors of each
  int32_t tiles = 0;    // of columns
};

// T is float, __half or __nv_bfloat16; `grad` is dense and aligned to 16 bytes, and
// `workspace` to 4.
template <typename T>
void launch_bias_gradient(const BiasGradient& sums, const void* grad, void* to, void* workspace,
                          Stream stream);

}  // namespace customconv
