#include "torch/cuda/blas.h"

#include <dlfcn.h>
#include <torch/version.h>

#include <optional>

#include "torch/core.h"

// PyTorch's stable C interface has the handle since 2.10. Before, it takes the headers of cuBLAS,
// which include some that PyTorch's wheels do not bring.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10
#define USE_CUDA
#include <torch/csrc/stable/c/shim.h>

static cublasContext* current_handle() {
  void* handle = nullptr;
  TORCH_CHECK(torch_get_current_cuda_blas_handle(&handle) == AOTI_TORCH_SUCCESS,
              "customconv: PyTorch gives no handle of cuBLAS");
  return static_cast<cublasContext*>(handle);
}
#else
#include <ATen/cuda/CUDAContextLight.h>

static cublasContext* current_handle() { return at::cuda::getCurrentCUDABlasHandle(); }
#endif

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
  return {&*functions(), current_handle()};
}

}  // namespace customconv::torch_layer
