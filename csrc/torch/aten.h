// PyTorch's own convolution, for whatever is not ours to compute and for raising its errors.
#pragma once

#include "plan/problem.h"
#include "torch/fallback.h"
#include "torch/ops.h"

namespace customconv::torch_layer {

// While one lives, cuDNN uses deterministic algorithms alone, in all threads. The first one keeps
// the user's switch and the last one restores it, so that threads do not leave it changed.
class DeterministicCudnn {
 public:
  DeterministicCudnn();
  ~DeterministicCudnn();
  DeterministicCudnn(const DeterministicCudnn&) = delete;
  DeterministicCudnn& operator=(const DeterministicCudnn&) = delete;
};

// While one lives, PyTorch computes as it did when it was tuned, if that is why it computes.
class AsTuned {
 public:
  explicit AsTuned(Fallback why) {
    if (why == Fallback::kTuned) deterministic_.emplace();
  }

 private:
  std::optional<DeterministicCudnn> deterministic_;
};

// One pass by PyTorch with deterministic algorithms, for comparison with a plan's: the output, or
// the gradient of x, with the bias if there is one, or of w. The tensor that the pass would write
// tells sizes alone.
at::Tensor aten_pass(const ConvProblem& problem, const at::Tensor& x, const at::Tensor& w,
                     const at::Tensor& y, const std::optional<at::Tensor>& bias);

template <int kDims>
at::Tensor aten_conv(const at::Tensor& input, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                     c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                     const c10::SymInt& groups);

// Takes unbatched input too. Gradients come in the layout that ours have: of volumes that is
// PyTorch's own.
template <int kDims>
Gradients aten_conv_backward(const at::Tensor& grad_output, const at::Tensor& input,
                             const at::Tensor& weight, c10::SymIntArrayRef stride,
                             c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                             const c10::SymInt& groups, std::array<bool, 3> output_mask);

template <int kDims>
at::Tensor aten_conv_transpose(const at::Tensor& input, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                               c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                               const c10::SymInt& groups, c10::SymIntArrayRef dilation);

template <int kDims>
Gradients aten_conv_transpose_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                       const at::Tensor& weight, c10::SymIntArrayRef stride,
                                       c10::SymIntArrayRef padding,
                                       c10::SymIntArrayRef output_padding,
                                       const c10::SymInt& groups, c10::SymIntArrayRef dilation,
                                       std::array<bool, 3> output_mask);

}  // namespace customconv::torch_layer
