#include "torch/cuda/blas.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <dlfcn.h>

#include <optional>

#include "torch/core.h"

namespace customconv::torch_layer {

namespace {

// Looked up in PyTorch's library and in those that it is linked to, so that they belong to the
// cuBLAS that made PyTorch's handles, whatever others the process has loaded.
std::optional<BlasFunctions> find_functions() {
  void* const torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (torch == nullptr) return std::nullopt;
  BlasFunctions found{};
  bool all = true;
  for (int i = 0; i < BlasFunctions::kCount; ++i) {
    found.functions[i] = dlsym(torch, BlasFunctions::kNames[i]);
    all = all && found.functions[i] != nullptr;
  }
  dlclose(torch);
  return all ? std::optional(found) : std::nullopt;
}

const std::optional<BlasFunctions>& functions() {
  static const std::optional<BlasFunctions> found = find_functions();
  return found;
}

// Told when this library is loaded: the planner may be asked from then on.
[[maybe_unused]] const bool is_told = (customconv_use_blas(functions().has_value()), true);

}  // namespace

Blas current_blas() {
  TORCH_CHECK(functions(), "customconv: PyTorch has loaded no cuBLAS");
  return {&*functions(), at::cuda::getCurrentCUDABlasHandle()};
}

}  // namespace customconv::torch_layer
