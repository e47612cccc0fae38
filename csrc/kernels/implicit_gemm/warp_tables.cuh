// Which kernel a tile is for, where warps multiply.
#pragma once

#include <utility>

#include "kernels/implicit_gemm/kernels.cuh"
#include "kernels/implicit_gemm/warps.cuh"

namespace customconv::implicit_gemm {

template <typename T, int kKernel, Fetch kFetch>
constexpr KernelOf<T> one_by_warps() {
  if constexpr (is_by_warps(kKernels[kKernel], kFetch)) {
    return convolve_by_warps<T, kKernel, kFetch>;
  } else {
    return nullptr;
  }
}
template <typename T, size_t... kIndex>
KernelOf<T> kernel_by_warps_at(size_t index, std::index_sequence<kIndex...>) {
  static constexpr KernelOf<T> kTable[] = {
      one_by_warps<T, static_cast<int>(kIndex / kFetchCount),
                   static_cast<Fetch>(kIndex % kFetchCount)>()...};
  return kTable[index];
}
template <typename T>
KernelOf<T> kernel_by_warps(const Tile& tile) {
  return kernel_by_warps_at<T>(tile.kernel * kFetchCount + static_cast<int>(tile.fetch),
                               std::make_index_sequence<kKernelCount * kFetchCount>());
}

}  // namespace customconv::implicit_gemm
