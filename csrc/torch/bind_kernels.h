// The tables of kernels, for tests that every one of them is reached.
#pragma once

#include <pybind11/pybind11.h>

namespace customconv::torch_layer {

void bind_kernels(pybind11::module_& m);

}  // namespace customconv::torch_layer
