// How a planned convolution is started: every family's `launch`, one instantiation a dtype.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/epilogue.h"
#include "plan/plan.h"

struct cublasContext;

namespace customconv {

// Device pointers to the first element of each tensor. The pass decides which one is written:
// fprop writes y, dgrad writes x, wgrad writes w; the other two are only read.
struct Operands {
  void* x = nullptr;
  void* w = nullptr;
  void* y = nullptr;
  Epilogue epilogue;  // of plans that don't fuse it, empty but for the bias of an fprop
};

struct LaunchContext {
  cudaStream_t stream = nullptr;
  cublasContext* blas = nullptr;  // bound to `stream`
  void* workspace = nullptr;      // plan.workspace_bytes, aligned to 256 bytes
};

// True where this binary holds code that the current device can run.
bool current_device_runs_kernels();

// T is double, float, __half or __nv_bfloat16. Throws std::runtime_error when a launch fails.
#define CUSTOMCONV_FAMILY(name)                                                           \
  namespace name {                                                                        \
  template <typename T>                                                                   \
  void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands, \
              const LaunchContext& context);                                              \
  }
#include "plan/families.def"
#undef CUSTOMCONV_FAMILY

}  // namespace customconv
