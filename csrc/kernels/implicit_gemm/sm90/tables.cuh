// Which kernel a tile is for.
#pragma once

#include <utility>

#include "kernels/implicit_gemm/sm90/kernel.cuh"
#include "kernels/implicit_gemm/sm90/kernels.h"

namespace customconv::implicit_gemm::sm90 {

template <typename T, int kShape, Loader kLoader, Store kStore, bool kFused, bool kAsStored>
constexpr Kernel one_kernel() {
  constexpr TileShape kTile = kTileShapes[kShape];
  constexpr bool kHalo = kLoader == Loader::kHalo;
  constexpr bool kExists = kLoader != Loader::kPlanes &&
                           (has_tile(kLoader, kTile) || has_planes(kLoader, kStore, kTile)) &&
                           (!kHalo || kStore == Store::kPixels || kStore == Store::kPlanes) &&
                           (kStore != Store::kCluster || is_clustered(kLoader, kTile)) &&
                           (kAsStored || kFused == is_fused(kLoader, kStore, kFused)) &&
                           (!kTile.halves || sizeof(T) == 4);
  if constexpr (kExists) {
    return convolve<T, kShape, kLoader, kStore, kFused, kAsStored>;
  } else {
    return nullptr;
  }
}

template <typename T, bool kFused, bool kAsStored, size_t... kIndex>
Kernel kernel_at(size_t index, std::index_sequence<kIndex...>) {
  static constexpr Kernel kTable[] = {
      one_kernel<T, static_cast<int>(kIndex / (kLoaderCount * kStoreCount)),
                 static_cast<Loader>(kIndex / kStoreCount % kLoaderCount),
                 static_cast<Store>(kIndex % kStoreCount), kFused, kAsStored>()...};
  return kTable[index];
}

template <typename T, bool kFused, bool kAsStored>
Kernel kernel_of(const Tile& tile) {
  const Loader loader = tile.loader == Loader::kPlanes ? Loader::kHalo : tile.loader;
  const auto index =
      (static_cast<size_t>(tile.shape) * kLoaderCount + static_cast<size_t>(loader)) * kStoreCount +
      static_cast<size_t>(tile.store);
  return kernel_at<T, kFused, kAsStored>(
      index, std::make_index_sequence<kTileShapeCount * kLoaderCount * kStoreCount>());
}

}  // namespace customconv::implicit_gemm::sm90
