// The gradient of a bias.
#pragma once

#include <ATen/ATen.h>

namespace customconv::torch_layer {

// The sum of each channel over images (or volumes) and pixels, rounded once.
at::Tensor bias_gradient(const at::Tensor& grad_output);

}  // namespace customconv::torch_layer
