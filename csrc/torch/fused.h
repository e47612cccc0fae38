// Fused operators as a convolution and elementwise operators: where no kernel of ours does it all,
// for their derivatives, and for what their arguments must be.
#pragma once

#include "kernels/epilogue.h"
#include "torch/operator.h"

namespace customconv::torch_layer {

// The named activation; ValueError for an unknown name.
Activation activation_named(std::string_view name);

// Whether a bias or scale is in float32 beside images of 16 bits, which fused operators allow.
bool is_wide(const at::Tensor& vector, const at::Tensor& input);

// Throws in a function's name unless scale, residual and a wide bias fit a convolution of `input`
// whose output has these sizes, of which as many as there are `dims` follow the channels.
void check_fused(const char* function, size_t dims, const std::optional<at::Tensor>& bias,
                 const FusedOptions& options, const at::Tensor& input,
                 c10::SymIntArrayRef output_sizes);

// How many elementwise passes what follows the convolution takes. The bias of a transposed one
// does not count: wherever a kernel does not add it, that is a pass of its own.
int count_passes(const std::optional<at::Tensor>& bias, const FusedOptions& options,
                 const at::Tensor& input, bool transposed);

// By operators that have derivatives; `in_place` overwrites the convolution's output instead.
template <typename Op>
at::Tensor compose_fused(const Op& op, const at::Tensor& input, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias, const FusedOptions& options,
                         bool in_place);

// Whether the activation's derivative can be had from its result.
bool is_known_by_result(const FusedOptions& options);
// The activation's derivative times `grad`, at its argument or, if it is known by that, its result.
at::Tensor activation_backward(const at::Tensor& grad, const at::Tensor& at_value, bool is_result,
                               const FusedOptions& options);

}  // namespace customconv::torch_layer
