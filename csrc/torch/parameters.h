// What a network's parameters become before its convolutions read them, by PyTorch's operators.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/List.h>

#include <vector>

namespace customconv::torch_layer {

using OptionalTensors = c10::List<std::optional<at::Tensor>>;

// Throws unless there are as many of each as there are means.
void check_batch_norms(const at::TensorList& means, const at::TensorList& variances,
                       const OptionalTensors& weights, const OptionalTensors& biases,
                       const OptionalTensors& shifts, at::ArrayRef<double> eps);

// Batch norms with fixed statistics, of what a shift is added to: for each a scale and a new shift,
// in float32, or in float64 where the mean is.
std::vector<at::Tensor> fold_batch_norms(at::TensorList means, at::TensorList variances,
                                         const OptionalTensors& weights,
                                         const OptionalTensors& biases,
                                         const OptionalTensors& shifts, at::ArrayRef<double> eps);

// Copies in a dtype. Those of four or five dimensions are laid out as they are, or channels-last.
std::vector<at::Tensor> copy_parameters(at::TensorList parameters, at::ScalarType dtype,
                                        bool channels_last);

}  // namespace customconv::torch_layer
