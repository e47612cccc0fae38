// Row-major batched matrix products by cuBLAS, with sums in the accumulator's type.
#pragma once

#include <cublas_v2.h>

#include "kernels/blas.h"
#include "kernels/common/scalar.cuh"

namespace customconv::im2col {

// c = a b + (accumulate ? c : 0), for each of `batch` matrices: a is rows x inner, b is inner x
// columns, c is rows x columns. A transposed operand is stored as its transpose. Leading dimensions
// and batch strides count elements.
template <typename T, typename Out>
struct Product {
  int64_t rows = 0, columns = 0, inner = 0;
  const T* a = nullptr;
  int64_t a_leading = 0;
  bool a_transposed = false;
  const T* b = nullptr;
  int64_t b_leading = 0;
  bool b_transposed = false;
  Out* c = nullptr;
  int64_t c_leading = 0;
  int64_t batch = 1;
  int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  bool accumulate = false;
};

// The handle's math mode for as long as this lives: nothing but the compute type named in the call
// may lower the precision, whatever torch.backends.cuda.matmul says.
class ExactMathMode {
 public:
  explicit ExactMathMode(const Blas& blas);
  ~ExactMathMode();
  ExactMathMode(const ExactMathMode&) = delete;
  ExactMathMode& operator=(const ExactMathMode&) = delete;

 private:
  const Blas blas_;
  cublasMath_t former_ = CUBLAS_DEFAULT_MATH;
};

// T with Out = T or Out = Accumulator<T>.
template <typename T, typename Out>
void multiply(const Blas& blas, const Product<T, Out>& product, bool tf32);

// A large product in 16 bits, plus a bias for each column unless it is null: in one kernel, which
// splits no sums and rounds once.
template <typename T>
void multiply_linear(const Blas& blas, const Product<T, T>& product, const T* bias,
                     cudaStream_t stream);

// As `multiply`, for IEEE float32 operands that lie anywhere: lists of `batch` pointers in device
// memory.
void multiply_listed(const Blas& blas, const Product<float, float>& product, const float* const* a,
                     const float* const* b, float* const* c);

}  // namespace customconv::im2col
