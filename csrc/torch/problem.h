// From tensors and arguments to a ConvProblem.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string_view>

#include "plan/planner.h"
#include "torch/fallback.h"

namespace customconv::torch_layer {

// Sizes or strides of the planner's, in the order of a tensor of four or five dimensions.
at::DimVector in_torch_order(const Shape5& numbers, int64_t dims);

// A well-formed, non-empty convolution of real floating-point tensors: batched, weight dense.
// Shapes are those of images; volumes have D, O and T before H, P and R.
struct Convolution {
  at::Tensor input;              // (N, C, H, W), or (N, K, P, Q) if transposed; any strides
  at::Tensor weight;             // (K, C / groups, R, S), contiguous or channels-last
  bool batched;                  // false: the caller's input had no batch dimension
  at::MemoryFormat format;       // of the output and of the gradients
  ConvProblem problem;           // its fprop, y laid out in `format`, x too if transposed
  bool transposed = false;       // from y to x: its forward pass is the dgrad of `problem`
  bool only_contiguous = false;  // of PyTorch's own results, whatever the operands are

  Shape5 output_shape() const { return transposed ? problem.x_sizes() : problem.y_sizes(); }
  at::DimVector output_sizes() const { return in_torch_order(output_shape(), weight.dim()); }
  // The problem of the output, or of one of the operator's gradients. What is written is laid out
  // in `format`; grad_output must be too, and if transposed the input.
  ConvProblem problem_of(Pass pass) const { return problem_of(pass, format); }
  // The same, where what is written has a format of its own.
  ConvProblem problem_of(Pass pass, at::MemoryFormat written) const;
};

// The memory formats of the gradients of input and weight.
struct GradientFormats {
  at::MemoryFormat input, weight;
};

// What a caller says besides tensors: of how many dimensions images are, which are two, or three
// for volumes, and lists of one number or as many.
struct Geometry {
  int64_t dims;
  at::IntArrayRef stride, padding, dilation;
  int64_t groups;
  bool transposed = false;
  at::IntArrayRef output_padding = {};  // if transposed
};

// Whether PyTorch's switches let a float32 convolution round its operands to TF32.
bool allows_tf32();

// A convolution; if transposed, the one whose input gradient it is. A reason where PyTorch should
// compute it or raise its error. The output's format follows from the tensors unless it is given.
OrFallback<Convolution> describe(const at::Tensor& input, const at::Tensor& weight,
                                 const std::optional<at::Tensor>& bias, const Geometry& geometry,
                                 bool tf32 = allows_tf32(),
                                 std::optional<at::MemoryFormat> format = std::nullopt);

// The images of which a convolution computes a part: the sizes, padding and output padding of the
// call that would compute them whole.
struct Whole {
  at::IntArrayRef sizes, padding, output_padding;
};
Image image_of(const Convolution& part, const Whole& whole);

// The memory format that PyTorch gives a convolution's output: channels-last where the input or the
// weight suggests it, except on CUDA in float64 or with cuDNN switched off. Of volumes on CUDA that
// is so where cuDNN computes them; `describe` knows when.
at::MemoryFormat memory_format(const at::Tensor& input, const at::Tensor& weight);

// The memory formats that PyTorch gives a convolution's gradients. They are that of the output,
// but for images of one pixel or one channel, which are laid out in both formats at once: there the
// strides of such dimensions decide. `grad_output` is batched and `weight` the caller's; `mask`
// says which of the gradients of input, weight and bias are asked for together.
GradientFormats gradient_formats(const at::Tensor& grad_output, const Convolution& conv,
                                 const at::Tensor& weight, std::array<bool, 3> mask);
// The same of images, from the tensors alone.
GradientFormats gradient_formats(const at::Tensor& grad_output, const at::Tensor& input,
                                 const at::Tensor& weight, bool transposed,
                                 std::array<bool, 3> mask);

// The sizes of four or five dimensions, and a tensor's strides, in the planner's order.
Shape5 shape_of(at::IntArrayRef sizes);
Shape5 strides_of(const at::Tensor& t);
// Dense volumes as images: the rows of their slices, one slice after the other.
Shape5 rows_of_slices(const Shape5& volumes);
// The dimensions of a batch, of four or five, but for the channels.
at::IntArrayRef all_but_channels(int64_t dims);
// Channels-last of tensors of so many dimensions.
at::MemoryFormat channels_last_of(int64_t dims);
bool is_channels_last(at::MemoryFormat format);
Layout layout_of(at::MemoryFormat format);
// Whether a tensor's memory begins at a multiple of 16 bytes.
bool is_aligned(const at::Tensor& t);
// The same of `t.contiguous(format)`: a copy is aligned.
bool is_aligned_in(const at::Tensor& t, at::MemoryFormat format);
// Batched images or a weight in this memory format and aligned: a copy if they are not already.
at::Tensor dense_and_aligned(const at::Tensor& t, at::MemoryFormat format);

// True for the dtypes that kernels of ours compute.
bool is_kernel_dtype(at::ScalarType dtype);
// One of those in the planner's terms.
DType dtype_of(at::ScalarType dtype);

// The named algorithm; ValueError for an unknown name.
Algorithm algorithm_named(std::string_view name);
// Throws where a kernel family is asked for on a device or in a dtype that it does not have.
void check_runs_on(std::string_view algorithm, const at::Tensor& input);

}  // namespace customconv::torch_layer
