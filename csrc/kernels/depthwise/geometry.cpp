// The walk from one image to the other.
#include "kernels/depthwise/geometry.h"

#include <utility>

namespace customconv::depthwise {

namespace {

void swap_axes(Geometry& g) {
  std::swap(g.H, g.W);
  std::swap(g.P, g.Q);
  std::swap(g.R, g.S);
  std::swap(g.step_h, g.step_w);
  std::swap(g.pad_h, g.pad_w);
  std::swap(g.dilation_h, g.dilation_w);
  std::swap(g.in[2], g.in[3]);
  std::swap(g.out[2], g.out[3]);
  std::swap(g.weight_r, g.weight_s);
}

// Whether a thread's outputs, one below the other, are better neighbours in a row; of planes,
// whether neighbours in a warp are better one below the other.
bool wants_swap(const Geometry& g) {
  if (g.planar) return g.W == 1 && g.Q == 1 && g.P > 1;
  if (g.S * 4 > kFilterBytes) return false;  // a column of the filter has its place there
  return (g.R == 1 && g.S > 1) || (g.P == 1 && g.Q > 1);
}

}  // namespace

Geometry geometry_of(const ConvProblem& p) {
  Geometry g{};
  const Shape5& w = p.w_strides;
  g.N = p.N;
  g.K = p.K;
  g.multiplier = p.group_K();
  g.sources = 1;
  g.of_weights = p.pass == Pass::kWgrad;
  g.R = p.R;
  g.S = p.S;
  g.step_h = p.stride_h;
  g.step_w = p.stride_w;
  g.pad_h = p.pad_h;
  g.pad_w = p.pad_w;
  g.dilation_h = p.dilation_h;
  g.dilation_w = p.dilation_w;
  g.weight_k = w[0];
  g.weight_r = w[2];
  g.weight_s = w[3];
  if (p.pass == Pass::kDgrad) {
    g.K = p.C;
    std::swap(g.multiplier, g.sources);
    g.H = p.P;
    g.W = p.Q;
    g.P = p.H;
    g.Q = p.W;
    g.in = p.y_strides;
    g.out = p.x_strides;
    g.transposed = p.stride_h > 1 || p.stride_w > 1;
    if (!g.transposed) {
      g.pad_h = p.dilation_h * (p.R - 1) - p.pad_h;
      g.pad_w = p.dilation_w * (p.S - 1) - p.pad_w;
      g.weight_offset = (p.R - 1) * w[2] + (p.S - 1) * w[3];
      g.weight_r = -w[2];
      g.weight_s = -w[3];
    }
  } else {
    g.H = p.H;
    g.W = p.W;
    g.P = p.P;
    g.Q = p.Q;
    g.in = p.x_strides;
    g.out = p.y_strides;
  }
  g.planar = g.K == 1 || g.in[1] >= g.in[3];
  if (wants_swap(g)) swap_axes(g);
  return g;
}

}  // namespace customconv::depthwise
