// The cuBLAS that PyTorch is linked to.
#pragma once

#include "kernels/blas.h"

namespace customconv::torch_layer {

// Its functions, with PyTorch's handle of the current device and stream.
Blas current_blas();

}  // namespace customconv::torch_layer
