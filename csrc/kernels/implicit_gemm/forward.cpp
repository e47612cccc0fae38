#include "kernels/implicit_gemm/forward.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace customconv::implicit_gemm {

namespace {

// Along one dimension of an input gradient, the pixels `first`, `first` + stride and so on.
struct AxisPhase {
  int64_t first, pixels;
  int64_t taps, taps_before;  // of the turned taps, sorted by phase
  int64_t turned;             // the first of them
  int64_t pad;
};

// The phases of a dimension of so many pixels. A tap r meets the pixels of one of them: there
// first + pad - r * dilation is a multiple of the stride.
std::vector<AxisPhase> phases_of(int64_t pixels, int64_t taps, int64_t stride, int64_t pad,
                                 int64_t dilation) {
  const int64_t period = stride / std::gcd(stride, dilation);
  std::vector<AxisPhase> phases;
  for (int64_t first = 0; first < std::min(stride, pixels); ++first) {
    AxisPhase phase{first, ceil_divide(pixels - first, stride), 0, 0, 0, 0};
    for (int64_t turned = 0; turned < std::min(taps, period); ++turned) {
      const int64_t r = taps - 1 - turned;
      if ((first + pad - r * dilation) % stride != 0) continue;
      phase.taps = r / period + 1;
      phase.taps_before = turned * (taps / period) + std::min(turned, taps % period);
      phase.turned = turned;
      phase.pad = (r * dilation - pad - first) / stride;
    }
    phases.push_back(phase);
  }
  return phases;
}

// What the phases of a dimension are together: one convolution that reads what all of them do.
struct CommonAxis {
  int64_t taps, pad, dilation;
};
CommonAxis common_of(const std::vector<AxisPhase>& phases, int64_t stride, int64_t dilation) {
  const int64_t step = dilation / std::gcd(stride, dilation);
  int64_t pad = INT64_MIN, behind = INT64_MIN;  // pixels in front of an output pixel, and behind
  for (const AxisPhase& phase : phases) {
    if (phase.taps == 0) continue;
    pad = std::max(pad, phase.pad);
    behind = std::max(behind, (phase.taps - 1) * step - phase.pad);
  }
  if (pad == INT64_MIN) return {1, 0, step};
  return {ceil_divide(pad + behind, step) + 1, pad, step};
}

// Makes a forward convolution of an input gradient.
void turn(Forward& p) {
  const auto h = phases_of(p.H, p.R, p.stride_h, p.pad_h, p.dilation_h);
  const auto w = phases_of(p.W, p.S, p.stride_w, p.pad_w, p.dilation_w);
  const CommonAxis all_h = common_of(h, p.stride_h, p.dilation_h);
  const CommonAxis all_w = common_of(w, p.stride_w, p.dilation_w);
  p.gradient = true;
  p.phases = 0;
  for (const AxisPhase& i : h) {
    for (const AxisPhase& j : w) {
      Phase& phase = p.phase[p.phases];
      phase = {};
      phase.place = static_cast<int>(p.phases);
      ++p.phases;
      phase.P = static_cast<int>(i.pixels);
      phase.Q = static_cast<int>(j.pixels);
      phase.offset = i.first * p.x_strides[2] + j.first * p.x_strides[3];
      if (i.taps == 0 || j.taps == 0) continue;
      phase.R = static_cast<int>(i.taps);
      phase.S = static_cast<int>(j.taps);
      phase.first_tap = static_cast<int>(i.taps_before * p.S + i.taps * j.taps_before);
      phase.tap_h = phase.S;
      phase.tap_w = 1;
      phase.turned_r = static_cast<int>(i.turned);
      phase.turned_s = static_cast<int>(j.turned);
      phase.row = static_cast<int>(all_h.pad - i.pad);
      phase.column = static_cast<int>(all_w.pad - j.pad);
    }
  }
  p.w_first = (p.filter_rows() - 1) * p.w_strides[2] + (p.S - 1) * p.w_strides[3];
  p.w_strides = {p.w_strides[1], p.w_strides[0], -p.w_strides[2], -p.w_strides[3], -p.w_strides[4]};
  p.period_h = p.stride_h / std::gcd(p.stride_h, p.dilation_h);
  p.period_w = p.stride_w / std::gcd(p.stride_w, p.dilation_w);
  p.pass = Pass::kFprop;
  std::swap(p.C, p.K);
  std::swap(p.x_strides, p.y_strides);
  std::swap(p.x_aligned, p.y_aligned);
  p.step_h = static_cast<int64_t>(h.size());
  p.step_w = static_cast<int64_t>(w.size());
  std::stable_sort(p.phase, p.phase + p.phases,
                   [](const Phase& a, const Phase& b) { return a.R * a.S > b.R * b.S; });
  p.y_strides[2] *= p.step_h;
  p.y_strides[3] *= p.step_w;
  std::swap(p.H, p.P);
  std::swap(p.W, p.Q);
  p.P = ceil_divide(p.P, p.stride_h);
  p.Q = ceil_divide(p.Q, p.stride_w);
  p.stride_h = p.stride_w = 1;
  p.R = all_h.taps;
  p.S = all_w.taps;
  p.pad_h = all_h.pad;
  p.pad_w = all_w.pad;
  p.dilation_h = all_h.dilation;
  p.dilation_w = all_w.dilation;
  std::swap(p.D, p.O);
  p.pad_d = (p.T - 1) * p.dilation_d - p.pad_d;
  for (Phase& phase : p.phase) {
    phase.R *= static_cast<int>(p.T);
    phase.P *= static_cast<int>(p.O);
  }
}

// Whether planes of an input gradient's pixels follow each other, perhaps some pixels apart.
bool has_dense_planes(const ConvProblem& p) {
  const auto follows = [](int64_t count, int64_t stride, int64_t expected) {
    return count == 1 || stride == expected;
  };
  const Shape5& x = p.x_strides;
  return x[3] == 1 && follows(p.H, x[2], p.W) && (p.C == 1 || x[1] >= p.H * p.W) &&
         follows(p.N, x[0], p.C == 1 ? p.H * p.W : p.C * x[1]);
}

// Gives each phase that has taps an image of its own, one behind the other.
void store_apart(Forward& p) {
  constexpr int64_t kUnit = 64;  // pixels, that keep them aligned
  const int64_t image = round_up(p.N * p.K * p.P * p.Q, kUnit);
  int kept = 0;
  for (const Phase& phase : p.phase) kept += phase.R > 0;
  if (kept == 0) return;
  p.woven = kept * image;
  p.phases = kept;
  for (int i = 0; i < kept; ++i) {
    p.phase[i].P = static_cast<int>(p.P);
    p.phase[i].Q = static_cast<int>(p.Q);
    p.phase[i].offset = i * image;
  }
  p.y_strides = dense_strides(p.y_sizes(), Layout::kNchw);
  p.y_aligned = true;
}

// The only phase of a forward convolution.
void set_phase(Forward& p) {
  p.taps_h = p.filter_rows();
  p.taps_w = p.S;
  Phase& all = p.phase[0];
  all.R = static_cast<int>(p.filter_rows());
  all.S = all.tap_h = static_cast<int>(p.S);
  all.tap_w = 1;
  all.P = static_cast<int>(p.rows());
  all.Q = static_cast<int>(p.Q);
}

// Along one dimension of an input gradient, `stride` pixels that the same pixels meet: pixel h is
// number (h + pad) % stride of them. Tap number t of each meets what is t pixels in front of what
// tap 0 meets.
struct JoinedAxis {
  int64_t pixels, taps, pad;
};
JoinedAxis joined_axis(int64_t pixels, int64_t taps, int64_t stride, int64_t pad,
                       int64_t dilation) {
  const int64_t first = pad / stride, count = ceil_divide(taps, stride);
  return {(pixels - 1 + pad) / stride - first + 1, count, (count - 1) * dilation - first};
}

}  // namespace

int64_t count_phases(const ConvProblem& p) {
  return p.pass == Pass::kDgrad ? p.stride_h * p.stride_w : 1;
}

bool can_join_phases(const ConvProblem& p) {
  constexpr int64_t kMostChannels = 1 << 14;
  const auto whole = [](int64_t stride, int64_t dilation) { return stride == 1 || dilation == 1; };
  return count_phases(p) > 1 && p.groups == 1 && whole(p.stride_h, p.dilation_h) &&
         whole(p.stride_w, p.dilation_w) && p.C * count_phases(p) <= kMostChannels;
}

Forward join_phases(const ConvProblem& asked) {
  const JoinedAxis h = joined_axis(asked.H, asked.R, asked.stride_h, asked.pad_h, asked.dilation_h);
  const JoinedAxis w = joined_axis(asked.W, asked.S, asked.stride_w, asked.pad_w, asked.dilation_w);
  Forward p{asked};
  p.joins_phases = true;
  p.pass = Pass::kFprop;
  p.step_h = p.stride_h;
  p.step_w = p.stride_w;
  p.stride_h = p.stride_w = 1;
  p.C = asked.K;
  p.H = asked.P;
  p.W = asked.Q;
  p.x_strides = asked.y_strides;
  p.x_aligned = asked.y_aligned;
  p.K = asked.C * count_phases(asked);
  p.P = h.pixels;
  p.Q = w.pixels;
  p.R = h.taps;
  p.S = w.taps;
  p.pad_h = h.pad;
  p.pad_w = w.pad;
  // As what it is spread over.
  const bool rows = asked.C == 1 || asked.x_strides[1] == 1;
  p.y_strides = dense_strides(p.y_sizes(), rows ? Layout::kNhwc : Layout::kNchw);
  p.y_aligned = true;
  p.woven = p.y_count();
  set_phase(p);
  return p;
}

Forward as_forward(const ConvProblem& problem) {
  Forward p{problem};
  p.w_group = p.group_K() * p.w_strides[0];
  if (p.T > 1 && p.R == 1) p.w_strides[2] = p.w_strides[4];  // from one row of taps to the next
  set_phase(p);
  if (p.pass != Pass::kDgrad) return p;
  const bool planes = has_dense_planes(p);
  turn(p);
  if (p.step_w > 1 && planes) store_apart(p);
  return p;
}

double weave_bytes(const Forward& p) {
  const auto stored = static_cast<double>(p.woven);
  const double pixels = static_cast<double>(p.N * p.K * p.phase[0].P * p.phase[0].Q);
  const double spread = p.joins_phases ? pixels : pixels * static_cast<double>(p.step_h * p.step_w);
  return (stored + spread) * static_cast<double>(element_size(p.dtype));
}

Forward as_one_row(Forward p) {
  if (!p.is_pointwise() || p.has_phases() || p.joins_phases) return p;
  const auto are = [&](Layout layout) {
    return strides_match(p.x_sizes(), p.x_strides, layout) &&
           strides_match(p.y_sizes(), p.y_strides, layout);
  };
  if (are(Layout::kNhwc) && p.N * p.H * p.W <= INT32_MAX) {
    p.W *= p.N * p.H;
    p.N = p.H = 1;
    p.x_strides = {p.W * p.C, 1, p.W * p.C, p.C};
    p.y_strides = {p.W * p.K, 1, p.W * p.K, p.K};
  } else if (are(Layout::kNchw) && p.H * p.W <= INT32_MAX) {
    p.W *= p.H;
    p.H = 1;
    p.x_strides = {p.W * p.C, p.W, p.W, 1};
    p.y_strides = {p.W * p.K, p.W, p.W, 1};
  }
  p.P = p.H;
  p.Q = p.W;
  p.phase[0].P = static_cast<int>(p.P);
  p.phase[0].Q = static_cast<int>(p.Q);
  return p;
}

bool input_is_legal(const Forward& p) {
  const int64_t unit = 16 / element_size(p.dtype);
  const auto legal = [&](int64_t size, int64_t stride) {
    return size == 1 || (stride > 0 && stride % unit == 0);
  };
  return p.x_aligned && (p.C == 1 || p.x_strides[1] == 1) && legal(p.N, p.x_strides[0]) &&
         legal(p.H, p.x_strides[2]) && legal(p.W, p.x_strides[3]) && legal(p.D, p.x_strides[4]);
}

PackedWeight packed_matrix(const Forward& p, bool transposed) {
  const int64_t unit = 16 / element_size(p.dtype);
  // Rows of a channel of the one kind along channels of the other.
  const int64_t columns = transposed ? p.group_K() : p.group_C();
  const int64_t rows = transposed ? p.C : p.K;
  Shape5 strides = p.w_strides;
  if (transposed) strides = {strides[1], strides[0], -strides[2], -strides[3]};
  const bool ordered = transposed || (!p.has_phases() && (p.groups == 1 || !p.gradient));
  const bool side_by_side =
      (columns == 1 || strides[1] == 1) && (p.tap_channels == 0 || strides[3] == p.tap_channels);
  const bool in_place = ordered && !p.joins_phases && columns % unit == 0 && side_by_side &&
                        (p.taps_w == 1 || strides[3] == columns) &&
                        (p.taps_h == 1 || strides[2] == columns * p.taps_w) &&
                        (rows == 1 || strides[0] == columns * p.taps_w * p.taps_h) && p.w_aligned;
  return {rows * p.taps_h * p.taps_w, in_place ? columns : round_up(columns, 2 * unit), in_place};
}

void place_taps(const Forward& p, bool transposed, Phase (&phases)[kMostPhases]) {
  std::copy(p.phase, p.phase + kMostPhases, phases);
  if (!transposed) return;
  for (Phase& phase : phases) {
    const int64_t r = p.taps_h - 1 - phase.turned_r, s = p.taps_w - 1 - phase.turned_s;
    phase.first_tap = static_cast<int>(r * p.taps_w + s);
    phase.tap_h = static_cast<int>(-p.period_h * p.taps_w);
    phase.tap_w = static_cast<int>(-p.period_w);
  }
}

}  // namespace customconv::implicit_gemm
