// How a planned convolution is started, without CUDA's headers.
#pragma once

#include "kernels/epilogue.h"
#include "plan/plan.h"

struct CUstream_st;
struct cublasContext;

namespace customconv {

using Stream = CUstream_st*;  // cudaStream_t

// Device pointers to the first element of each tensor. The pass decides which one is written:
// fprop writes y, dgrad writes x, wgrad writes w; the other two are only read.
struct Operands {
  void* x = nullptr;
  void* w = nullptr;
  void* y = nullptr;
  Epilogue epilogue;  // of plans that don't fuse it, empty but for the bias of an fprop
};

// The functions of the cuBLAS that PyTorch has loaded, of any version since 12.0. Kernels are
// linked to none of their own.
struct BlasFunctions {
  enum { kGetMathMode, kSetMathMode, kGemmStridedBatched, kGemmBatched, kStatusString, kCount };
  static constexpr const char* kNames[kCount] = {"cublasGetMathMode", "cublasSetMathMode",
                                                 "cublasGemmStridedBatchedEx_64",
                                                 "cublasGemmBatchedEx_64", "cublasGetStatusString"};

  void* functions[kCount];
};

struct Blas {
  const BlasFunctions* functions = nullptr;
  cublasContext* handle = nullptr;  // bound to the launch's stream
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
