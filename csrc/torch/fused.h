// conv2d_fused as a convolution and elementwise operators: where no kernel of ours does it all, for
// its derivatives, and for what its arguments must be.
#pragma once

#include "kernels/epilogue.h"
#include "torch/ops.h"

namespace customconv::torch_layer {

// The named activation; ValueError for an unknown name.
Activation activation_named(std::string_view name);

// Whether a bias or scale is in float32 beside images of 16 bits, which conv2d_fused allows.
bool is_wide(const at::Tensor& vector, const at::Tensor& input);

// Throws unless scale, residual and a wide bias fit a convolution of `input` whose output has these
// sizes.
void check_fused(const std::optional<at::Tensor>& bias, const FusedOptions& options,
                 const at::Tensor& input, c10::SymIntArrayRef output_sizes);

// Whether there is anything to do that conv2d does not, and how many elementwise passes that takes.
int count_passes(const std::optional<at::Tensor>& bias, const FusedOptions& options,
                 const at::Tensor& input);

// By operators that have derivatives; `in_place` overwrites the convolution's output instead.
at::Tensor compose_fused(const at::Tensor& input, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                         c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                         const c10::SymInt& groups, const FusedOptions& options,
                         std::string_view algorithm, bool in_place);

// Whether the activation's derivative can be had from its result.
bool is_known_by_result(const FusedOptions& options);
// The activation's derivative times `grad`, at its argument or, if it is known by that, its result.
at::Tensor activation_backward(const at::Tensor& grad, const at::Tensor& at_value, bool is_result,
                               const FusedOptions& options);

}  // namespace customconv::torch_layer
