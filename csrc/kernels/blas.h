// cuBLAS, without its headers.
#pragma once

struct cublasContext;

namespace customconv {

// The functions of the cuBLAS that PyTorch has loaded, of any version since 12.0, and of cuBLASLt,
// which comes with it. Kernels are linked to none of their own.
struct BlasFunctions {
  enum {
    kGetMathMode,
    kSetMathMode,
    kGemmStridedBatched,
    kGemmBatched,
    kStatusString,
    kMatmul,
    kChooseMatmul,
    kMakeMatmul,
    kSetMatmul,
    kDropMatmul,
    kMakeMatrix,
    kDropMatrix,
    kMakePreference,
    kSetPreference,
    kDropPreference,
    kCount
  };
  static constexpr const char* kNames[kCount] = {"cublasGetMathMode",
                                                 "cublasSetMathMode",
                                                 "cublasGemmStridedBatchedEx_64",
                                                 "cublasGemmBatchedEx_64",
                                                 "cublasGetStatusString",
                                                 "cublasLtMatmul",
                                                 "cublasLtMatmulAlgoGetHeuristic",
                                                 "cublasLtMatmulDescCreate",
                                                 "cublasLtMatmulDescSetAttribute",
                                                 "cublasLtMatmulDescDestroy",
                                                 "cublasLtMatrixLayoutCreate",
                                                 "cublasLtMatrixLayoutDestroy",
                                                 "cublasLtMatmulPreferenceCreate",
                                                 "cublasLtMatmulPreferenceSetAttribute",
                                                 "cublasLtMatmulPreferenceDestroy"};

  void* functions[kCount];
};

struct Blas {
  const BlasFunctions* functions = nullptr;
  cublasContext* handle = nullptr;  // bound to the launch's stream
};

}  // namespace customconv
