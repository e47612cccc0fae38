// The column matrix: for each output pixel the C * R * S inputs that it sums over.
//
// NCHW: one matrix an image, rows (c, r, s), a column a pixel; its product with the weight is the
// output image. NHWC: one matrix, a row a pixel, so that the product is again the output. Taps are
// ordered as the weight is in memory: (c, r, s) or (r, s, c) within a group.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace customconv::im2col {

constexpr int kBlock = 256;

// The most memory that columns may take. A column matrix that stays near the size of the L2 cache
// is read back from it; see docs/kernels/im2col.md for the measurement.
constexpr int64_t kWorkspaceBound = int64_t{64} << 20;

inline bool is_channels_last(const ConvProblem& p) {
  return dense_layout(p.y_sizes(), p.y_strides) == Layout::kNhwc;
}

// Entries of one column, over all groups.
inline int64_t column_rows(const ConvProblem& p) { return p.C * p.R * p.S; }

// In dgrad a column holds sums, which are kept in the accumulator's type until they are added up.
inline int64_t column_bytes(const ConvProblem& p) {
  return column_rows(p) *
         (p.pass == Pass::kDgrad ? accumulator_size(p.dtype) : element_size(p.dtype));
}

// A pointwise convolution's columns are its input, where the layouts agree.
inline bool columns_are_in_place(const ConvProblem& p) {
  const Layout layout = is_channels_last(p) ? Layout::kNhwc : Layout::kNchw;
  const Shape4 dense = dense_strides(p.x_sizes(), layout);
  for (size_t i = 0; i < dense.size(); ++i) {
    if (p.x_sizes()[i] > 1 && p.x_strides[i] != dense[i]) return false;
  }
  return p.is_pointwise();
}

// wgrad sums over chunks in the accumulator's type.
inline int64_t weight_sum_bytes(const ConvProblem& p) {
  return p.w_count() * accumulator_size(p.dtype);
}

}  // namespace customconv::im2col
