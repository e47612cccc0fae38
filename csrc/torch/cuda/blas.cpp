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

// While it lives, the thread may make what a capture in another mode forbids. PyTorch makes its
// handle of cuBLAS when it is first asked for, which may be during a capture.
class RelaxedCapture {
 public:
  RelaxedCapture() { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  using Exchange = int (*)(int* mode);
  static Exchange find() {
    void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver == nullptr) return nullptr;
    const auto found =
        reinterpret_cast<Exchange>(dlsym(driver, "cuThreadExchangeStreamCaptureMode"));
    dlclose(driver);
    return found;
  }
  void exchange() {
    static const Exchange function = find();
    if (function != nullptr) function(&mode_);
  }

  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then the thread's own
};

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
  const RelaxedCapture relaxed;
  return {&*functions(), current_handle()};
}

}  // namespace customconv::torch_layer
