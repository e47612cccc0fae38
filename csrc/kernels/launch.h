// How a planned convolution is started, without CUDA's headers.
#pragma once

#include "kernels/blas.h"
#include "kernels/epilogue.h"
#include "kernels/stream.h"
#include "plan/plan.h"

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
  int device = 0;
  Stream stream = nullptr;
  Blas blas;                  // of plans that use it
  void* workspace = nullptr;  // plan.workspace_bytes, aligned to 256 bytes
};

// Every family's `launch`, one instantiation a dtype. T is double, float, __half or __nv_bfloat16.
// Throws std::runtime_error when a launch fails.
#define CUSTOMCONV_FAMILY(name)                                                           \
  namespace name {                                                                        \
  template <typename T>                                                                   \
  void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands, \
              const LaunchContext& context);                                              \
  }
#include "plan/families.def"
#undef CUSTOMCONV_FAMILY

}  // namespace customconv
