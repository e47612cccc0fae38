#include <algorithm>

#include "kernels/common/parts.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/parameters/parameters.h"

namespace customconv::parameters {

namespace {

constexpr int kThreads = 256;
constexpr int kMost = 128;  // of one launch

struct Batch {
  BatchNorm each[kMost];
  int32_t blocks;  // of each
};

__device__ float value_at(const BatchNorm& b, int vector, int channel, float otherwise) {
  const void* from = b.vectors[vector];
  if (from == nullptr) return otherwise;
  switch (b.types[vector]) {
    case DType::kFloat16:
      return widen(static_cast<const __half*>(from)[channel]);
    case DType::kBFloat16:
      return widen(static_cast<const __nv_bfloat16*>(from)[channel]);
    default:
      return static_cast<const float*>(from)[channel];
  }
}

// A thread folds a channel.
__global__ void __launch_bounds__(kThreads) fold(const __grid_constant__ Batch batch) {
  const int32_t number = static_cast<int32_t>(blockIdx.x) / batch.blocks;
  const BatchNorm& b = batch.each[number];
  const int32_t i = (static_cast<int32_t>(blockIdx.x) - number * batch.blocks) * kThreads +
                    static_cast<int32_t>(threadIdx.x);
  if (i < b.channels) {
    const float variance = value_at(b, BatchNorm::kVariance, i, 1);
    const float scale = value_at(b, BatchNorm::kWeight, i, 1) * (1 / sqrtf(variance + b.eps));
    const float centred =
        value_at(b, BatchNorm::kShift, i, 0) - value_at(b, BatchNorm::kMean, i, 0);
    b.scale[i] = scale;
    b.new_shift[i] = fmaf(centred, scale, value_at(b, BatchNorm::kBias, i, 0));
  }
}

}  // namespace

void launch_fold(const BatchNorm* batch_norms, size_t all, Stream stream) {
  for (size_t first = 0; first < all; first += kMost) {
    const size_t count = std::min<size_t>(kMost, all - first);
    Batch batch;
    std::copy_n(batch_norms + first, count, batch.each);
    int32_t most = 1;
    for (size_t i = 0; i < count; ++i) most = std::max(most, batch.each[i].channels);
    batch.blocks = static_cast<int32_t>(ceil_divide(most, kThreads));
    Start how{static_cast<int64_t>(count) * batch.blocks, kThreads};
    how.stream = stream;
    start<Batch>("batch norms as scales", how, fold, batch);
  }
}

}  // namespace customconv::parameters
