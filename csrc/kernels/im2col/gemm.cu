#include <cublasLt.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kernels/im2col/columns.h"
#include "kernels/im2col/gemm.h"

namespace customconv::im2col {

namespace {

// A function of the cuBLAS at hand, whose type is that of the header's.
#define CUSTOMCONV_BLAS(blas, which, type) \
  reinterpret_cast<decltype(&type)>((blas).functions->functions[BlasFunctions::which])

void check_blas(const Blas& blas, cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const auto describe = CUSTOMCONV_BLAS(blas, kStatusString, cublasGetStatusString);
  throw std::runtime_error(std::string("customconv: ") + what + ": " + describe(status));
}

template <typename T>
constexpr cudaDataType_t kDataType = CUDA_R_32F;
template <>
constexpr cudaDataType_t kDataType<double> = CUDA_R_64F;
template <>
constexpr cudaDataType_t kDataType<__half> = CUDA_R_16F;
template <>
constexpr cudaDataType_t kDataType<__nv_bfloat16> = CUDA_R_16BF;

// IEEE float32 is asked for pedantically: the plain type leaves the library free to form products
// in other ways, one of which erred by 1.65e-6 where PyTorch's weight gradient erred by 1.6e-7.
template <typename T>
cublasComputeType_t compute_type(bool tf32) {
  if constexpr (std::is_same_v<T, double>) return CUBLAS_COMPUTE_64F;
  if constexpr (std::is_same_v<T, float>) {
    return tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F_PEDANTIC;
  }
  return CUBLAS_COMPUTE_32F;
}

cublasOperation_t operation(bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

}  // namespace

ExactMathMode::ExactMathMode(const Blas& blas) : blas_(blas) {
  const auto get = CUSTOMCONV_BLAS(blas_, kGetMathMode, cublasGetMathMode);
  const auto set = CUSTOMCONV_BLAS(blas_, kSetMathMode, cublasSetMathMode);
  check_blas(blas_, get(blas_.handle, &former_), "cublasGetMathMode");
  const auto exact = static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                               CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  check_blas(blas_, set(blas_.handle, exact), "cublasSetMathMode");
}

ExactMathMode::~ExactMathMode() {
  CUSTOMCONV_BLAS(blas_, kSetMathMode, cublasSetMathMode)(blas_.handle, former_);
}

namespace {

template <typename T, typename Out>
void multiply_once(const Blas& blas, const Product<T, Out>& p, bool tf32) {
  const Accumulator<T> one = 1;
  const Accumulator<T> beta = p.accumulate ? 1 : 0;
  // cuBLAS is column-major: it is given the transposed product, b^T a^T = c^T.
  const auto gemm = CUSTOMCONV_BLAS(blas, kGemmStridedBatched, cublasGemmStridedBatchedEx_64);
  check_blas(blas,
             gemm(blas.handle, operation(p.b_transposed), operation(p.a_transposed), p.columns,
                  p.rows, p.inner, &one, p.b, kDataType<T>, p.b_leading, p.b_stride, p.a,
                  kDataType<T>, p.a_leading, p.a_stride, &beta, p.c, kDataType<Out>, p.c_leading,
                  p.c_stride, p.batch, compute_type<T>(tf32), CUBLAS_GEMM_DEFAULT),
             "matrix product");
}

// So many terms of a product's sums.
template <typename T, typename Out>
Product<T, Out> part_of(Product<T, Out> product, int64_t first, int64_t terms) {
  product.a += first * (product.a_transposed ? product.a_leading : 1);
  product.b += first * (product.b_transposed ? 1 : product.b_leading);
  product.inner = terms;
  return product;
}

// The longest sum that is formed in one go in IEEE float32, where the library adds term by term: in
// parts, the error of a long sum grows with the length of a part and the number of parts.
constexpr int64_t kLongestSum = 512;
// More parts would leave the library too little to share out over the GPU.
constexpr int64_t kMostParts = 8;

}  // namespace

template <typename T, typename Out>
void multiply(const Blas& blas, const Product<T, Out>& product, bool tf32) {
  const int64_t apart = terms_apart(sizeof(T), product.inner), whole = product.inner - apart;
  if (apart > 0) {
    // The few terms come first: what is rounded before the others are added is small.
    multiply_once(blas, part_of(product, whole, apart), tf32);
    Product<T, Out> rest = part_of(product, 0, whole);
    rest.accumulate = true;
    multiply_once(blas, rest, tf32);
    return;
  }
  if (!std::is_same_v<T, float> || tf32 || product.inner <= kLongestSum) {
    multiply_once(blas, product, tf32);
    return;
  }
  const int64_t parts = std::min((product.inner + kLongestSum - 1) / kLongestSum, kMostParts);
  const int64_t step = (product.inner + parts - 1) / parts;
  for (int64_t first = 0; first < product.inner; first += step) {
    Product<T, Out> part = part_of(product, first, std::min(step, product.inner - first));
    part.accumulate = product.accumulate || first > 0;
    multiply_once(blas, part, tf32);
  }
}

void multiply_listed(const Blas& blas, const Product<float, float>& p, const float* const* a,
                     const float* const* b, float* const* c) {
  const float one = 1, beta = p.accumulate ? 1 : 0;
  const auto untyped = [](const float* const* list) {
    return reinterpret_cast<const void* const*>(list);
  };
  const auto gemm = CUSTOMCONV_BLAS(blas, kGemmBatched, cublasGemmBatchedEx_64);
  check_blas(blas,
             gemm(blas.handle, operation(p.b_transposed), operation(p.a_transposed), p.columns,
                  p.rows, p.inner, &one, untyped(b), CUDA_R_32F, p.b_leading, untyped(a),
                  CUDA_R_32F, p.a_leading, &beta, reinterpret_cast<void* const*>(c), CUDA_R_32F,
                  p.c_leading, p.batch, compute_type<float>(false), CUBLAS_GEMM_DEFAULT),
             "matrix products");
}

namespace {

// An object of cuBLASLt, and what drops it.
struct Drop {
  void* function;
  template <typename T>
  void operator()(T* object) const {
    reinterpret_cast<cublasStatus_t (*)(T*)>(function)(object);
  }
};
template <typename T>
using Owned = std::unique_ptr<T, Drop>;

Owned<cublasLtMatrixLayoutOpaque_t> make_matrix(const Blas& blas, cudaDataType_t type, int64_t rows,
                                                int64_t columns, int64_t leading) {
  cublasLtMatrixLayout_t made = nullptr;
  const auto make = CUSTOMCONV_BLAS(blas, kMakeMatrix, cublasLtMatrixLayoutCreate);
  check_blas(
      blas, make(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), leading),
      "cublasLtMatrixLayoutCreate");
  return {made, Drop{blas.functions->functions[BlasFunctions::kDropMatrix]}};
}

Owned<cublasLtMatmulDescOpaque_t> make_matmul(const Blas& blas) {
  cublasLtMatmulDesc_t made = nullptr;
  const auto make = CUSTOMCONV_BLAS(blas, kMakeMatmul, cublasLtMatmulDescCreate);
  check_blas(blas, make(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  return {made, Drop{blas.functions->functions[BlasFunctions::kDropMatmul]}};
}

Owned<cublasLtMatmulPreferenceOpaque_t> make_preference(const Blas& blas) {
  cublasLtMatmulPreference_t made = nullptr;
  const auto make = CUSTOMCONV_BLAS(blas, kMakePreference, cublasLtMatmulPreferenceCreate);
  check_blas(blas, make(&made), "cublasLtMatmulPreferenceCreate");
  return {made, Drop{blas.functions->functions[BlasFunctions::kDropPreference]}};
}

template <typename Value>
void set(const Blas& blas, cublasLtMatmulDesc_t matmul, cublasLtMatmulDescAttributes_t attribute,
         const Value& value) {
  const auto set_it = CUSTOMCONV_BLAS(blas, kSetMatmul, cublasLtMatmulDescSetAttribute);
  check_blas(blas, set_it(matmul, attribute, &value, sizeof(value)),
             "cublasLtMatmulDescSetAttribute");
}

void set(const Blas& blas, cublasLtMatmulPreference_t preference,
         cublasLtMatmulPreferenceAttributes_t attribute, uint32_t value) {
  const auto set_it = CUSTOMCONV_BLAS(blas, kSetPreference, cublasLtMatmulPreferenceSetAttribute);
  check_blas(blas, set_it(preference, attribute, &value, sizeof(value)),
             "cublasLtMatmulPreferenceSetAttribute");
}

// The largest power of two, up to 256, that divides an address.
uint32_t alignment(const void* address) {
  const auto bits = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) | 256;
  return bits & -bits;
}

}  // namespace

template <typename T>
void multiply_linear(const Blas& blas, const Product<T, T>& p, const T* bias, cudaStream_t stream) {
  constexpr cudaDataType_t kType = kDataType<T>;
  // Column-major, as in `multiply_once`.
  const auto b = p.b_transposed ? make_matrix(blas, kType, p.inner, p.columns, p.b_leading)
                                : make_matrix(blas, kType, p.columns, p.inner, p.b_leading);
  const auto a = p.a_transposed ? make_matrix(blas, kType, p.rows, p.inner, p.a_leading)
                                : make_matrix(blas, kType, p.inner, p.rows, p.a_leading);
  const auto c = make_matrix(blas, kType, p.columns, p.rows, p.c_leading);
  const auto matmul = make_matmul(blas);
  set(blas, matmul.get(), CUBLASLT_MATMUL_DESC_TRANSA, operation(p.b_transposed));
  set(blas, matmul.get(), CUBLASLT_MATMUL_DESC_TRANSB, operation(p.a_transposed));
  if (bias != nullptr) {
    set(blas, matmul.get(), CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(blas, matmul.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias));
  }
  const auto preference = make_preference(blas);
  set(blas, preference.get(), CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      CUBLASLT_REDUCTION_SCHEME_NONE);
  set(blas, preference.get(), CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.b));
  set(blas, preference.get(), CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.a));
  set(blas, preference.get(), CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.c));
  set(blas, preference.get(), CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.c));

  const auto handle = reinterpret_cast<cublasLtHandle_t>(blas.handle);  // it is one of both
  cublasLtMatmulHeuristicResult_t chosen{};
  int count = 0;
  const auto choose = CUSTOMCONV_BLAS(blas, kChooseMatmul, cublasLtMatmulAlgoGetHeuristic);
  check_blas(blas,
             choose(handle, matmul.get(), b.get(), a.get(), c.get(), c.get(), preference.get(), 1,
                    &chosen, &count),
             "cublasLtMatmulAlgoGetHeuristic");
  check_blas(blas, count > 0 ? chosen.state : CUBLAS_STATUS_NOT_SUPPORTED, "matrix product");
  const float one = 1, zero = 0;
  const auto run = CUSTOMCONV_BLAS(blas, kMatmul, cublasLtMatmul);
  check_blas(blas,
             run(handle, matmul.get(), &one, p.b, b.get(), p.a, a.get(), &zero, p.c, c.get(), p.c,
                 c.get(), &chosen.algo, nullptr, 0, stream),
             "matrix product");
}

template void multiply_linear(const Blas&, const Product<__half, __half>&, const __half*,
                              cudaStream_t);
template void multiply_linear(const Blas&, const Product<__nv_bfloat16, __nv_bfloat16>&,
                              const __nv_bfloat16*, cudaStream_t);

template void multiply(const Blas&, const Product<double, double>&, bool);
template void multiply(const Blas&, const Product<float, float>&, bool);
template void multiply(const Blas&, const Product<__half, __half>&, bool);
template void multiply(const Blas&, const Product<__half, float>&, bool);
template void multiply(const Blas&, const Product<__nv_bfloat16, __nv_bfloat16>&, bool);
template void multiply(const Blas&, const Product<__nv_bfloat16, float>&, bool);

}  // namespace customconv::im2col
