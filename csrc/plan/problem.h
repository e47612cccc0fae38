// What is to be computed: one pass of a 2-D or 3-D convolution, described without torch and without
// CUDA.
//
// Names are the field's: input x is (N, C, D, H, W), weight w is (K, C / groups, T, R, S), output y
// is (N, K, O, P, Q). An image has a depth of one, a volume a larger one. Sizes count elements,
// strides count elements.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace customconv {

enum class DType : uint8_t { kFloat64, kFloat32, kFloat16, kBFloat16 };
enum class Pass : uint8_t { kFprop, kDgrad, kWgrad };
enum class Layout : uint8_t { kNchw, kNhwc, kOther };

// Sizes or strides of (n, c, h, w, d). Depth comes last, so that what is of images alone may name
// the others; its stride is 0 where its size is one.
using Shape5 = std::array<int64_t, 5>;

struct ConvProblem {
  DType dtype = DType::kFloat32;
  Pass pass = Pass::kFprop;
  bool tf32 = false;      // float32 products may be rounded to TF32
  bool has_bias = false;  // of fprop; of dgrad where it computes a transposed convolution
  // What follows the sum but for the bias, which a kernel may do before it writes the result.
  bool has_residual = false;
  int epilogue_passes = 0;  // over the result, that PyTorch takes for it
  // fprop only: the mean and variance of y's channels are wanted too (kernels/statistics).
  bool has_statistics = false;
  // What an image gets must not depend on N, nor on its place in the batch.
  bool batch_invariant = false;

  int64_t N = 1, C = 1, H = 1, W = 1;
  int64_t K = 1, R = 1, S = 1;
  int64_t P = 1, Q = 1;
  int64_t groups = 1;
  int64_t stride_h = 1, stride_w = 1;
  int64_t pad_h = 0, pad_w = 0;  // above and to the left; what is below and right follows from P, Q
  int64_t dilation_h = 1, dilation_w = 1;

  Shape5 x_strides{};                                         // of (n, c, h, w, d)
  Shape5 w_strides{};                                         // of (k, c, r, s, t)
  Shape5 y_strides{};                                         // of (n, k, p, q, o)
  bool x_aligned = true, w_aligned = true, y_aligned = true;  // to 16 bytes

  // Depth. A problem of images has these very values.
  int64_t D = 1, T = 1, O = 1;
  int64_t stride_d = 1, pad_d = 0, dilation_d = 1;

  // Whether it is of volumes.
  bool is_deep() const { return (D | T | O) != 1 || pad_d != 0; }
  int64_t group_C() const { return C / groups; }
  int64_t group_K() const { return K / groups; }
  Shape5 x_sizes() const { return {N, C, H, W, D}; }
  Shape5 w_sizes() const { return {K, group_C(), R, S, T}; }
  Shape5 y_sizes() const { return {N, K, P, Q, O}; }

  int64_t x_count() const { return N * C * H * W * D; }
  int64_t w_count() const { return K * group_C() * R * S * T; }
  int64_t y_count() const { return N * K * P * Q * O; }
  // Elements of what an epilogue applies to: y, or an input gradient.
  int64_t result_count() const { return pass == Pass::kDgrad ? x_count() : y_count(); }

  // Multiply-adds of any of the three passes.
  double macs() const {
    return static_cast<double>(y_count()) * static_cast<double>(group_C() * R * S * T);
  }
  // Bytes that any algorithm must move: each tensor once, the residual too.
  double least_bytes() const;
  // Whether float32 products must not be rounded to TF32.
  bool is_strict_float32() const { return dtype == DType::kFloat32 && !tf32; }
  // One column: an output pixel of a dense 1x1 convolution is one input pixel, in place.
  bool is_pointwise() const {
    return R == 1 && S == 1 && stride_h == 1 && stride_w == 1 && pad_h == 0 && pad_w == 0 &&
           P == H && Q == W && !is_deep();
  }
};

Shape5 dense_strides(const Shape5& sizes, Layout layout);
// Whether strides are those of a dense layout, where sizes of more than one make them matter.
bool strides_match(const Shape5& sizes, const Shape5& strides, Layout layout);
// A tensor's layout; sizes of one make layouts coincide, and kNchw is then preferred.
Layout dense_layout(const Shape5& sizes, const Shape5& strides);

// Largest element offset that the strides can reach.
int64_t max_offset(const Shape5& sizes, const Shape5& strides);
// True when offsets into any of the three tensors, or a count of their elements, pass 2^31.
bool needs_wide_index(const ConvProblem& problem);

// True when every coordinate of a padded image, and every step between taps, fits in 32 bits.
bool has_int32_coordinates(const ConvProblem& problem);

constexpr int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Output pixels along one dimension; 0 where the padded image is smaller than the dilated taps.
int64_t output_size(int64_t size, int64_t pad, int64_t dilation, int64_t taps, int64_t stride);

int64_t element_size(DType dtype);
// Size of the type that sums are kept in: float64 for float64, else float32.
int64_t accumulator_size(DType dtype);

const char* to_string(DType dtype);
const char* to_string(Pass pass);
const char* to_string(Layout layout);
std::string to_string(const ConvProblem& problem);

}  // namespace customconv
