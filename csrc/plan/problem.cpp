#include "plan/problem.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <sstream>

namespace customconv {

double ConvProblem::least_bytes() const {
  // Rows that a stride passes over are not read, and neither are columns whose channels are side
  // by side; an input gradient has all of them.
  const auto met = [](int64_t taps, int64_t stride) {
    return static_cast<double>(std::min(taps, stride)) / static_cast<double>(stride);
  };
  double x = static_cast<double>(x_count());
  if (pass != Pass::kDgrad) {
    x *= met(R, stride_h) * (x_strides[3] == 1 ? 1 : met(S, stride_w)) * met(T, stride_d);
  }
  const double count =
      x + static_cast<double>(w_count()) + static_cast<double>(y_count()) * (has_residual ? 2 : 1);
  return count * static_cast<double>(element_size(dtype));
}

Shape5 dense_strides(const Shape5& sizes, Layout layout) {
  const auto [n, c, h, w, d] = sizes;
  (void)n;
  if (layout == Layout::kNhwc) return {d * h * w * c, 1, w * c, c, d > 1 ? h * w * c : 0};
  return {c * d * h * w, d * h * w, w, 1, d > 1 ? h * w : 0};
}

bool strides_match(const Shape5& sizes, const Shape5& strides, Layout layout) {
  const Shape5 dense = dense_strides(sizes, layout);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && strides[i] != dense[i]) return false;
  }
  return true;
}

Layout dense_layout(const Shape5& sizes, const Shape5& strides) {
  if (strides_match(sizes, strides, Layout::kNchw)) return Layout::kNchw;
  if (strides_match(sizes, strides, Layout::kNhwc)) return Layout::kNhwc;
  return Layout::kOther;
}

int64_t max_offset(const Shape5& sizes, const Shape5& strides) {
  int64_t offset = 0;
  for (size_t i = 0; i < sizes.size(); ++i) offset += (sizes[i] - 1) * strides[i];
  return offset;
}

bool needs_wide_index(const ConvProblem& problem) {
  // Counts matter too: an expanded tensor has small offsets and many elements.
  const int64_t reach = std::max({max_offset(problem.x_sizes(), problem.x_strides),
                                  max_offset(problem.w_sizes(), problem.w_strides),
                                  max_offset(problem.y_sizes(), problem.y_strides),
                                  problem.x_count(), problem.w_count(), problem.y_count()});
  return reach >= std::numeric_limits<int32_t>::max();
}

bool has_int32_coordinates(const ConvProblem& p) {
  const auto fits = [](int64_t size, int64_t out, int64_t taps, int64_t stride, int64_t pad,
                       int64_t dilation) {
    constexpr double kLimit = std::numeric_limits<int32_t>::max();
    const double reach = static_cast<double>(out) * static_cast<double>(stride) +
                         static_cast<double>(taps) * static_cast<double>(dilation) +
                         static_cast<double>(size) + static_cast<double>(std::abs(pad));
    return reach < kLimit && static_cast<double>(dilation) < kLimit;
  };
  return fits(p.H, p.P, p.R, p.stride_h, p.pad_h, p.dilation_h) &&
         fits(p.W, p.Q, p.S, p.stride_w, p.pad_w, p.dilation_w) &&
         fits(p.D, p.O, p.T, p.stride_d, p.pad_d, p.dilation_d);
}

int64_t output_size(int64_t size, int64_t pad, int64_t dilation, int64_t taps, int64_t stride) {
  const int64_t room = size + 2 * pad - dilation * (taps - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

int64_t element_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 8;
    case DType::kFloat32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
  }
  return 0;
}

int64_t accumulator_size(DType dtype) { return dtype == DType::kFloat64 ? 8 : 4; }

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return "float64";
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
  }
  return "?";
}

const char* to_string(Pass pass) {
  switch (pass) {
    case Pass::kFprop:
      return "fprop";
    case Pass::kDgrad:
      return "dgrad";
    case Pass::kWgrad:
      return "wgrad";
  }
  return "?";
}

const char* to_string(Layout layout) {
  switch (layout) {
    case Layout::kNchw:
      return "NCHW";
    case Layout::kNhwc:
      return "NHWC";
    case Layout::kOther:
      return "strided";
  }
  return "?";
}

std::string to_string(const ConvProblem& p) {
  std::ostringstream out;
  out << to_string(p.pass) << ' ' << to_string(p.dtype);
  if (p.dtype == DType::kFloat32) out << (p.tf32 ? " (TF32 allowed)" : " (IEEE)");
  const bool deep = p.is_deep();
  const auto list = [&](int64_t d, int64_t h, int64_t w) {
    if (deep) out << d << ", ";
    out << h << ", " << w << ')';
  };
  out << " x(" << p.N << ", " << p.C << ", ";
  list(p.D, p.H, p.W);
  out << ' ' << to_string(dense_layout(p.x_sizes(), p.x_strides)) << " w(" << p.K << ", "
      << p.group_C() << ", ";
  list(p.T, p.R, p.S);
  out << ' ' << to_string(dense_layout(p.w_sizes(), p.w_strides)) << " y(" << p.N << ", " << p.K
      << ", ";
  list(p.O, p.P, p.Q);
  out << ' ' << to_string(dense_layout(p.y_sizes(), p.y_strides)) << " stride (";
  list(p.stride_d, p.stride_h, p.stride_w);
  out << " padding (";
  list(p.pad_d, p.pad_h, p.pad_w);
  out << " dilation (";
  list(p.dilation_d, p.dilation_h, p.dilation_w);
  out << " groups " << p.groups;
  if (p.has_bias) out << " bias";
  if (p.epilogue_passes > 0) out << " epilogue (" << p.epilogue_passes << " passes)";
  if (p.has_statistics) out << " statistics";
  if (p.batch_invariant) out << " batch invariant";
  return out.str();
}

}  // namespace customconv
