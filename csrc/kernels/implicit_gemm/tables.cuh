// Which kernel a tile is for.
#pragma once

#include <utility>

#include "kernels/implicit_gemm/kernels.cuh"
#include "kernels/implicit_gemm/warpgroups.cuh"

namespace customconv::implicit_gemm {

template <typename T, int kKernel, Fetch kFetch, bool kFused, bool kTransposed>
constexpr KernelOf<T> one_kernel() {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr bool kTransposes = instruction_transposes(kKind.channels, kFetch, sizeof(T));
  if constexpr (is_by_warpgroups(kKind, kFetch) && (!kTransposed || kTransposes)) {
    return convolve<T, kKernel, kFetch, kFused, kTransposed>;
  } else {
    return nullptr;
  }
}
template <typename T, bool kFused, bool kTransposed, size_t... kIndex>
KernelOf<T> kernel_at(size_t index, std::index_sequence<kIndex...>) {
  static constexpr KernelOf<T> kTable[] = {
      one_kernel<T, static_cast<int>(kIndex / kFetchCount),
                 static_cast<Fetch>(kIndex % kFetchCount), kFused, kTransposed>()...};
  return kTable[index];
}
template <typename T, bool kFused, bool kTransposed>
KernelOf<T> kernel_of_tile(const Tile& tile) {
  return kernel_at<T, kFused, kTransposed>(tile.kernel * kFetchCount + static_cast<int>(tile.fetch),
                                           std::make_index_sequence<kKernelCount * kFetchCount>());
}

template <typename T, bool kFused>
KernelOf<T> kernel_of(const Tile& tile) {
  return kernel_of_tile<T, kFused, /*kTransposed=*/false>(tile);
}
template <typename T>
KernelOf<T> kernel_of_gradient(const Tile& tile) {
  return kernel_of_tile<T, /*kFused=*/false, /*kTransposed=*/true>(tile);
}

template <typename T, bool kFused, size_t... kIndex>
KernelOf<T> reducer_at(size_t index, std::index_sequence<kIndex...>) {
  static constexpr KernelOf<T> kTable[] = {
      add_splits<T, static_cast<int>(kIndex / 2), kIndex % 2 != 0, kFused>...};
  return kTable[index];
}
template <typename T, bool kFused>
KernelOf<T> reducer_of(const Tile& tile) {
  return reducer_at<T, kFused>(tile.kernel * 2 + (tile.fetch == Fetch::kShared ? 1 : 0),
                               std::make_index_sequence<kKernelCount * 2>());
}

}  // namespace customconv::implicit_gemm
