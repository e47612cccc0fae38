#include <algorithm>
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

template void multiply(const Blas&, const Product<double, double>&, bool);
template void multiply(const Blas&, const Product<float, float>&, bool);
template void multiply(const Blas&, const Product<__half, __half>&, bool);
template void multiply(const Blas&, const Product<__half, float>&, bool);
template void multiply(const Blas&, const Product<__nv_bfloat16, __nv_bfloat16>&, bool);
template void multiply(const Blas&, const Product<__nv_bfloat16, float>&, bool);

}  // namespace customconv::im2col
