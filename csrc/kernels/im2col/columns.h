// The column matrix: for each output pixel the C * T * R * S inputs that it sums over.
//
// NCHW: one matrix an image, rows (c, r, s), a column a pixel; its product with the weight is the
// output image. NHWC, and volumes in both layouts: one matrix, a row a pixel. Its product with the
// weight is the output in NHWC, and the weight's with it an image in NCHW. Taps are ordered as the
// weight is in memory: (c, t, r, s) or (t, r, s, c) within a group.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plan/payload.h"
#include "plan/problem.h"

namespace customconv::im2col {

constexpr int kBlock = 256;

// Where the column matrix is: in a workspace, or the input itself.
enum class Place : uint8_t { kWorkspace, kInput };

struct Im2colPlan {
  static constexpr PlanKind kKind = PlanKind::im2col;
  Place columns = Place::kWorkspace;
  bool wide = false;               // 64-bit offsets
  int64_t images = 0, pixels = 0;  // of a chunk; where it is a band, `pixels` are rows of the input
  int64_t parts = 0;               // of a weight gradient's sums, formed at once
};

// The most memory that a chunk may take. Larger chunks make better products, up to about here;
// docs/how/im2col.md has the measurement.
constexpr int64_t kWorkspaceBound = int64_t{256} << 20;

inline int64_t image_columns(const ConvProblem& p) { return p.O * p.P * p.Q; }

// Whether y has the pixels as the rows of a matrix. Single pixels, or channels, lie in both ways;
// then the input decides, if it can. Images of a single pixel are one product as rows, and else one
// each.
inline bool is_channels_last(const ConvProblem& p) {
  if (!strides_match(p.y_sizes(), p.y_strides, Layout::kNhwc)) return false;
  if (p.is_deep() || !strides_match(p.y_sizes(), p.y_strides, Layout::kNchw)) return true;
  if (!strides_match(p.x_sizes(), p.x_strides, Layout::kNhwc)) return false;
  // In 32 bits cuBLAS multiplies vectors faster than few rows, unless it reads many weights again.
  constexpr int64_t kMostBytes = int64_t{16} << 20;
  const bool are_vectors = p.P * p.Q == 1 && p.pass != Pass::kWgrad && element_size(p.dtype) > 2 &&
                           p.N * p.w_count() * element_size(p.dtype) <= kMostBytes;
  return !are_vectors || !strides_match(p.x_sizes(), p.x_strides, Layout::kNchw);
}

// Whether pixels are the rows of the column matrix.
inline bool has_pixel_rows(const ConvProblem& p) { return p.is_deep() || is_channels_last(p); }

// Whether the filter steps by its own size: no pixel shares an input with another.
inline bool has_patches(const ConvProblem& p) {
  const auto steps = [](int64_t taps, int64_t out, int64_t stride, int64_t pad, int64_t dilation) {
    return pad == 0 && (taps == 1 || dilation == 1) && (out == 1 || stride == taps);
  };
  return steps(p.T, p.O, p.stride_d, p.pad_d, p.dilation_d) &&
         steps(p.R, p.P, p.stride_h, p.pad_h, p.dilation_h) &&
         steps(p.S, p.Q, p.stride_w, p.pad_w, p.dilation_w);
}

// Volumes but for float64: an input gradient of patches has one term each, so columns are of its
// own type, and their entries are brought to their places.
inline bool scatters(const ConvProblem& p) {
  return p.is_deep() && p.pass == Pass::kDgrad && element_size(p.dtype) <= 4 && has_patches(p) &&
         dense_layout(p.x_sizes(), p.x_strides) != Layout::kOther;
}

// Whether a pass adds up columns, in bands of input rows.
inline bool has_bands(const ConvProblem& p) { return p.pass == Pass::kDgrad && !scatters(p); }

// Entries of one column, over all groups.
inline int64_t column_rows(const ConvProblem& p) { return p.C * p.T * p.R * p.S; }

// The last terms of a sum that a product of elements of so many bytes forms apart; 0 where it forms
// all at once. cuBLAS 13.0 leaves the terms behind the last whole 32 out of some long 16-bit sums;
// the shortest that we found has 2,945 terms.
constexpr int64_t kWholeTerms = 32, kLongSum = 1024;
constexpr int64_t terms_apart(int64_t element_bytes, int64_t inner) {
  return element_bytes == 2 && inner > kLongSum ? inner % kWholeTerms : 0;
}

// Volumes in 16 bits: fprop copies the weight to lines of whole packs, which cuBLAS is fast with.
// An entry of one meets the bias there, so that it is a term of the sums like others.
inline bool copies_weight(const ConvProblem& p) {
  constexpr int64_t kPack = 8;
  const int64_t rows = column_rows(p);
  return p.is_deep() && p.pass == Pass::kFprop && p.groups == 1 && element_size(p.dtype) == 2 &&
         (p.has_bias || rows % kPack != 0 || terms_apart(2, rows) > 0);
}

// Terms of the products of a line of columns.
inline int64_t line_terms(const ConvProblem& p) {
  if (!copies_weight(p)) return column_rows(p);
  const int64_t terms = column_rows(p) + (p.has_bias ? 1 : 0);
  const int64_t whole = terms > kLongSum ? kWholeTerms : 8;
  return (terms + whole - 1) / whole * whole;
}

// Packs of 16 bytes that a line of this many entries takes.
inline int64_t packs_of(const ConvProblem& p, int64_t entries) {
  const int64_t pack = 16 / element_size(p.dtype);
  return (entries + pack - 1) / pack;
}

// Bytes of the columns of `pixels` pixels of one image. Columns that are added up hold sums, which
// are kept in the accumulator's type until then; else lines are whole packs.
inline int64_t columns_bytes(const ConvProblem& p, int64_t pixels) {
  if (has_bands(p)) return column_rows(p) * pixels * accumulator_size(p.dtype);
  return has_pixel_rows(p) ? pixels * packs_of(p, line_terms(p)) * 16
                           : column_rows(p) * packs_of(p, pixels) * 16;
}

// A pointwise convolution's columns are its input, where the layouts agree.
inline bool columns_are_in_place(const ConvProblem& p) {
  const Layout layout = is_channels_last(p) ? Layout::kNhwc : Layout::kNchw;
  return p.is_pointwise() && strides_match(p.x_sizes(), p.x_strides, layout);
}

// dgrad forms columns for bands of input rows: those of the output rows that the band reaches. For
// a whole image, all of them. In a volume a band is whole slices, or rows of one.
inline int64_t band_columns(const ConvProblem& p, int64_t rows) {
  const auto reached = [](int64_t size, int64_t band, int64_t out, int64_t taps, int64_t stride,
                          int64_t dilation) {
    const int64_t reach = band - 1 + (taps - 1) * dilation;
    return band == size ? out : std::min(out, reach / stride + 1);
  };
  const int64_t slices = std::max<int64_t>(rows / p.H, 1);
  return reached(p.D, slices, p.O, p.T, p.stride_d, p.dilation_d) *
         reached(p.H, std::min(rows, p.H), p.P, p.R, p.stride_h, p.dilation_h) * p.Q;
}

// Volumes that are one patch each, in 16 bits: the output is a product of matrices in memory. It is
// large enough to fill a GPU without splitting sums, so that the library rounds once, behind the
// bias, and leaves out no terms (see terms_apart). Rows are whole packs, which its kernels for this
// need.
inline bool is_linear(const ConvProblem& p) {
  constexpr int64_t kLeastOutputs = int64_t{1} << 21, kPack = 8;
  return p.pass == Pass::kFprop && element_size(p.dtype) == 2 && p.groups == 1 && p.P * p.Q == 1 &&
         p.C % kPack == 0 && p.K % kPack == 0 && p.y_count() >= kLeastOutputs &&
         is_channels_last(p) && columns_are_in_place(p);
}

// The workspace: a chunk's columns, and behind them what is kept in the accumulator's type until it
// is rounded once: wgrad's sums over the chunks (and those of the parts), or the products of a
// chunk that a bias is added to. (Where sums may be split cuBLAS can add the bias itself, but some
// of its 16-bit kernels round before they do.)
inline bool keeps_products(const ConvProblem& p) {
  return p.pass == Pass::kFprop && p.has_bias && element_size(p.dtype) == 2 && !copies_weight(p) &&
         !is_linear(p);
}

inline int64_t products_bytes(const ConvProblem& p, int64_t pixels) {
  return keeps_products(p) ? p.K * pixels * accumulator_size(p.dtype) : 0;
}

// IEEE float32: a weight gradient's sums over the pixels are cut into parts, because cuBLAS adds
// term by term and the error of a long sum shows. Part i is of line i % lines, and is its i /
// lines-th; so the last of every line, which may be shorter, come last.
inline bool sums_in_parts(const ConvProblem& p) {
  return p.pass == Pass::kWgrad && p.dtype == DType::kFloat32 && !p.tf32;
}

// A weight gradient that is a single product: no columns are written, no image is added up after
// another, and no terms are formed apart, which would be added to a sum that is rounded already.
inline bool is_single_product(const ConvProblem& p) {
  return p.pass == Pass::kWgrad && !sums_in_parts(p) && columns_are_in_place(p) &&
         (is_channels_last(p) || p.N == 1) &&
         terms_apart(element_size(p.dtype), p.N * image_columns(p)) == 0;
}

// Volumes in 16 bits, whose images are not the rows of one matrix: an image's product is too small
// to fill a GPU, so several are formed at once, each added to a sum of its own.
inline bool sums_apart(const ConvProblem& p) {
  return p.is_deep() && p.pass == Pass::kWgrad && element_size(p.dtype) == 2 && p.groups == 1 &&
         !is_channels_last(p);
}

inline int64_t weight_sum_bytes(const ConvProblem& p) {
  if (p.pass != Pass::kWgrad || is_single_product(p)) return 0;
  // Whole units of the places of operands, which may come behind.
  return (p.w_count() * accumulator_size(p.dtype) + 7) / 8 * 8;
}

struct WeightParts {
  int64_t lines;   // of pixels: the images, or in NHWC the whole chunk
  int64_t length;  // pixels of a part
  int64_t tail;    // pixels of the last part of a line
  int64_t count;   // of all lines
};

inline WeightParts weight_parts(const ConvProblem& p, int64_t images, int64_t pixels) {
  // Longer where the weight is larger, so that parts cost no more memory traffic than arithmetic.
  const int64_t most = std::max<int64_t>(32, p.group_K() / 4);
  const int64_t lines = is_channels_last(p) ? 1 : images;
  const int64_t line = is_channels_last(p) ? images * pixels : pixels;
  const int64_t per_line = (line + most - 1) / most;
  const int64_t length = (line + per_line - 1) / per_line;
  return {lines, length, line - (per_line - 1) * length, lines * per_line};
}

// Parts that are formed at once, and what they take: their sums, and the places of their operands.
constexpr int64_t kPartsBound = int64_t{128} << 20;
constexpr int64_t kMostProducts = 65535;  // of one call

inline int64_t parts_at_once(const ConvProblem& p, int64_t images, int64_t pixels) {
  const int64_t count = weight_parts(p, images, pixels).count;
  const int64_t most =
      std::min(kPartsBound / (p.w_count() * accumulator_size(p.dtype)), kMostProducts / p.groups);
  return std::clamp<int64_t>(most, 1, count);
}

inline int64_t parts_bytes(const ConvProblem& p, int64_t parts) {
  if (sums_apart(p)) return (parts - 1) * p.w_count() * accumulator_size(p.dtype);
  constexpr int64_t kOperands = 3;
  return parts * (p.w_count() * accumulator_size(p.dtype) +
                  kOperands * p.groups * static_cast<int64_t>(sizeof(void*)));
}

// What an image's chunk of `pixels` takes of the bound.
inline int64_t chunk_bytes(const ConvProblem& p, int64_t pixels) {
  return (columns_are_in_place(p) ? 0 : columns_bytes(p, pixels)) + products_bytes(p, pixels);
}

// The weight's copy, behind the columns.
inline int64_t weight_copy_bytes(const ConvProblem& p) {
  return copies_weight(p) ? p.K * line_terms(p) * element_size(p.dtype) : 0;
}

// Where the second part begins.
inline int64_t columns_room(const ConvProblem& p, const Im2colPlan& plan) {
  if (plan.columns == Place::kInput) return 0;
  constexpr int64_t kAlignment = 256;
  const int64_t columns = has_bands(p) ? band_columns(p, plan.pixels) : plan.pixels;
  const int64_t bytes = plan.images * columns_bytes(p, columns);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace customconv::im2col
