#include "plan/fold.h"

#include <cstdint>

namespace customconv {

namespace {

// Leaves no depth, as problems of images have none.
void flatten(ConvProblem& p) {
  p.D = p.T = p.O = 1;
  p.stride_d = p.dilation_d = 1;
  p.pad_d = 0;
  p.x_strides[4] = p.w_strides[4] = p.y_strides[4] = 0;
}

// Whether the filter meets a whole volume, without padding, and both are dense in one layout. What
// is added for each channel of an input gradient must not be for one of each tap.
bool is_whole(const ConvProblem& p) {
  if (p.pass == Pass::kDgrad && (p.has_bias || p.epilogue_passes > 0)) return false;
  const auto are = [&p](Layout layout) {
    return strides_match(p.x_sizes(), p.x_strides, layout) &&
           strides_match(p.w_sizes(), p.w_strides, layout);
  };
  return p.groups == 1 && p.T == p.D && p.R == p.H && p.S == p.W && p.O == 1 && p.P == 1 &&
         p.Q == 1 && p.pad_d == 0 && p.pad_h == 0 && p.pad_w == 0 &&
         (are(Layout::kNchw) || are(Layout::kNhwc));
}

void fold_taps(ConvProblem& p) {
  p.C *= p.T * p.R * p.S;
  p.H = p.W = p.R = p.S = 1;
  p.stride_h = p.stride_w = p.dilation_h = p.dilation_w = 1;
  flatten(p);
  p.x_strides = dense_strides(p.x_sizes(), Layout::kNhwc);
  p.w_strides = dense_strides(p.w_sizes(), Layout::kNhwc);
}

// Whether pixels of a slice meet one tap each, and lie one behind the other. Where there are
// several taps along the depth, this is left to what computes volumes: it leaves out taps that meet
// no slice, which of few slices are many.
bool has_slices_as_rows(const ConvProblem& p) {
  const bool is_left = p.T > 1 && p.groups == 1 &&
                       (p.pass == Pass::kFprop || (p.pass == Pass::kDgrad && p.stride_d == 1));
  if (is_left) return false;
  const auto follow = [](const Shape5& sizes, const Shape5& strides) {
    return sizes[2] == 1 || sizes[3] == 1 || strides[2] == sizes[3] * strides[3];
  };
  return p.R == 1 && p.S == 1 && p.stride_h == 1 && p.stride_w == 1 && p.pad_h == 0 &&
         p.pad_w == 0 && p.P == p.H && p.Q == p.W && p.H * p.W <= INT32_MAX &&
         follow(p.x_sizes(), p.x_strides) && follow(p.y_sizes(), p.y_strides);
}

void fold_slices_to_rows(ConvProblem& p) {
  const auto fold = [](const Shape5& sizes, Shape5& strides) {
    if (sizes[3] == 1) strides[3] = strides[2];  // a row of one pixel: the next is in the next row
    strides[2] = sizes[4] == 1 ? sizes[2] * sizes[3] * strides[3] : strides[4];
  };
  fold(p.x_sizes(), p.x_strides);
  fold(p.y_sizes(), p.y_strides);
  if (p.T > 1) p.w_strides[2] = p.w_strides[4];
  p.W *= p.H;
  p.Q *= p.P;
  p.H = p.D;
  p.P = p.O;
  p.R = p.T;
  p.stride_h = p.stride_d;
  p.pad_h = p.pad_d;
  p.dilation_h = p.dilation_d;
  flatten(p);
}

// Whether each slice of the result is of the same slice of the input, by whole steps of a filter
// that reaches no further than its step, and slices lie one below the other: as one image.
bool has_slices_below(const ConvProblem& p) {
  const auto follow = [](const Shape5& sizes, const Shape5& strides) {
    return strides[4] == sizes[2] * strides[2];
  };
  return p.T == 1 && p.stride_d == 1 && p.pad_d == 0 && p.pad_h == 0 &&
         (p.R - 1) * p.dilation_h < p.stride_h && p.H == p.P * p.stride_h &&
         p.D * p.H <= INT32_MAX && follow(p.x_sizes(), p.x_strides) &&
         follow(p.y_sizes(), p.y_strides);
}

void fold_slices_below(ConvProblem& p) {
  p.H *= p.D;
  p.P *= p.O;
  flatten(p);
}

// Whether each slice of the result is of one slice of the input, and all of them, of all volumes,
// are as far apart. Slices between them that no filter meets get no gradient here.
bool has_slices_as_images(const ConvProblem& p) {
  if (p.T > 1 || p.pad_d != 0 || (p.pass == Pass::kDgrad && p.stride_d > 1)) return false;
  // One volume must be computed as it is among others if its bits may not depend on them.
  if (p.N == 1 && !p.batch_invariant) return true;
  return p.x_strides[0] == p.O * p.stride_d * p.x_strides[4] &&
         p.y_strides[0] == p.O * p.y_strides[4];
}

void fold_slices_to_images(ConvProblem& p) {
  p.N *= p.O;
  p.x_strides[0] = p.stride_d * p.x_strides[4];
  if (p.O > 1) p.y_strides[0] = p.y_strides[4];
  flatten(p);
}

}  // namespace

const ConvProblem& folded(const ConvProblem& problem, ConvProblem& room) {
  if (!problem.is_deep()) return problem;
  const auto written = [&](void (*fold)(ConvProblem&)) -> const ConvProblem& {
    room = problem;
    fold(room);
    return room;
  };
  if (is_whole(problem)) return written(fold_taps);
  if (has_slices_as_rows(problem)) return written(fold_slices_to_rows);
  if (has_slices_below(problem)) return written(fold_slices_below);
  if (has_slices_as_images(problem)) return written(fold_slices_to_images);
  return problem;
}

}  // namespace customconv
