// From tensors and arguments to a ConvProblem.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string_view>

#include "plan/planner.h"
#include "torch/fallback.h"

namespace customconv::torch_layer {

// A well-formed, non-empty convolution of real floating-point tensors: batched, weight dense.
struct Convolution {
  at::Tensor input;         // (N, C, H, W), or (N, K, P, Q) if transposed; any strides
  at::Tensor weight;        // (K, C / groups, R, S), contiguous or channels_last
  bool batched;             // false: the caller's input had no batch dimension
  at::MemoryFormat format;  // of the output and of the gradients
  ConvProblem problem;      // its fprop, y laid out in `format`, x too if transposed
  bool transposed = false;  // from y to x: its forward pass is the dgrad of `problem`

  std::array<int64_t, 4> output_sizes() const {
    return transposed ? problem.x_sizes() : problem.y_sizes();
  }
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

// What a caller says besides tensors; each list has one number or two.
struct Geometry {
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

// The memory format that PyTorch gives a convolution's output: channels_last where the input or the
// weight suggests it, except on CUDA in float64 or with cuDNN switched off.
at::MemoryFormat memory_format(const at::Tensor& input, const at::Tensor& weight);

// The memory formats that PyTorch gives a convolution's gradients. They are that of the output,
// but for images of one pixel or one channel, which are laid out in both formats at once: there the
// strides of such dimensions decide. `input` and `grad_output` are batched; `mask` says which of
// the gradients of input, weight and bias are asked for together.
GradientFormats gradient_formats(const at::Tensor& grad_output, const at::Tensor& input,
                                 const at::Tensor& weight, bool transposed,
                                 std::array<bool, 3> mask);

// Four sizes or strides.
Shape4 shape4(at::IntArrayRef values);
Layout layout_of(at::MemoryFormat format);
// Whether a tensor's memory begins at a multiple of 16 bytes.
bool is_aligned(const at::Tensor& t);
// The same of `t.contiguous(format)`: a copy is aligned.
bool is_aligned_in(const at::Tensor& t, at::MemoryFormat format);
// Images or a weight in this memory format and aligned: a copy if they are not already.
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
