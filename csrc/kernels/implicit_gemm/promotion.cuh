// Sums of products of halves (halves.cuh). Tensor cores cut what they add to a sum, so the sums of
// a few instructions are apart, and are then added to those of some of these, rounded, and those to
// the sums of all.
#pragma once

namespace customconv::implicit_gemm {

template <int kSums>
class Promotion {
  static constexpr int kPromotions = 32;  // after which the second sums are added to those of all

 public:
  float part[kSums];  // of a few instructions: the first does not add to it

  __device__ Promotion() {
#pragma unroll
    for (int i = 0; i < kSums; ++i) some_[i] = all_[i] = 0;
  }

  __device__ void promote() {
#pragma unroll
    for (int i = 0; i < kSums; ++i) some_[i] += part[i];
    if (++count_ % kPromotions != 0) return;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      all_[i] += some_[i];
      some_[i] = 0;
    }
  }

  __device__ void finish(float (&sum)[kSums]) const {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum[i] = all_[i] + some_[i];
  }

 private:
  float some_[kSums], all_[kSums];
  int count_ = 0;
};

}  // namespace customconv::implicit_gemm
