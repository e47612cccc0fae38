// Which kernel a tile is for.
#pragma once

#include <utility>

#include "kernels/implicit_gemm/mma_sync/kernel.cuh"
#include "kernels/implicit_gemm/mma_sync/kernels.h"

namespace customconv::implicit_gemm::mma_sync {

template <typename T, int kKernel, Fetch kFetch>
constexpr KernelOf<T> one_kernel() {
  if constexpr (has_kernel(kKernels[kKernel], kFetch)) {
    return convolve<T, kKernel, kFetch>;
  } else {
    return nullptr;
  }
}
template <typename T, size_t... kIndex>
KernelOf<T> kernel_at(size_t index, std::index_sequence<kIndex...>) {
  static constexpr KernelOf<T> kTable[] = {
      one_kernel<T, static_cast<int>(kIndex / kFetchCount),
                 static_cast<Fetch>(kIndex % kFetchCount)>()...};
  return kTable[index];
}
template <typename T>
KernelOf<T> kernel_of(const Tile& tile) {
  return kernel_at<T>(tile.kernel * kFetchCount + static_cast<int>(tile.fetch),
                      std::make_index_sequence<kKernelCount * kFetchCount>());
}

// Tiles of all rows have the same kernels.
template <typename T, int kKernel, bool kBoxes>
constexpr KernelOf<T> one_adder() {
  if constexpr (has_kernel(kKernels[kKernel], kBoxes ? Fetch::kShared : Fetch::kTaps)) {
    return add_splits<T, kKernel, kBoxes>;
  } else {
    return nullptr;
  }
}
template <typename T, size_t... kIndex>
KernelOf<T> adder_at(size_t index, std::index_sequence<kIndex...>) {
  static constexpr KernelOf<T> kTable[] = {
      one_adder<T, static_cast<int>(kIndex / 2), kIndex % 2 != 0>()...};
  return kTable[index];
}
template <typename T>
KernelOf<T> adder_of(const Tile& tile) {
  return adder_at<T>(tile.kernel * 2 + (tile.fetch == Fetch::kShared ? 1 : 0),
                     std::make_index_sequence<kKernelCount * 2>());
}

}  // namespace customconv::implicit_gemm::mma_sync
