// Which kernel a tile is for.
#pragma once

#include <utility>

#include "kernels/implicit_gemm/sm90/kernel.cuh"
#include "kernels/implicit_gemm/sm90/kernels.h"

namespace customconv::implicit_gemm::sm90 {

template <typename T, int kShape, Loader kLoader, Store kStore, bool kFused, bool kAsStored,
          bool kStreamK>
constexpr Kernel one_kernel() {
  constexpr TileShape kTile = kTileShapes[kShape];
  constexpr bool kHalo = kLoader == Loader::kHalo;
  constexpr bool kExists = kLoader != Loader::kPlanes &&
                           (has_tile(kLoader, kTile) || has_planes(kLoader, kStore, kTile)) &&
                           (kLoader != Loader::kGather || (gathers_to(kStore) && !kAsStored)) &&
                           (!kHalo || kStore != Store::kRows) &&
                           (!kTile.has_pixel_rows() || (kStore != Store::kRows && !kAsStored)) &&
                           (kStore != Store::kCluster || has_clusters(kLoader, kTile) ||
                            (kHalo && has_clusters(Loader::kPlanes, kTile))) &&
                           (!kStreamK || (may_share_tiles(kLoader) && kStore != Store::kCluster)) &&
                           (kAsStored || kFused == is_fused(kLoader, kStore, kStreamK, kFused)) &&
                           (!kTile.halves || sizeof(T) == 4);
  if constexpr (kExists) {
    return convolve<T, kShape, kLoader, kStore, kFused, kAsStored, kStreamK>;
  } else {
    return nullptr;
  }
}

template <typename T, bool kFused, bool kAsStored, size_t... kIndex>
Kernel kernel_at(size_t index, std::index_sequence<kIndex...>) {
  static constexpr Kernel kTable[] = {
      one_kernel<T, static_cast<int>(kIndex / 2 / kStoreCount / kLoaderCount),
                 static_cast<Loader>(kIndex / 2 / kStoreCount % kLoaderCount),
                 static_cast<Store>(kIndex / 2 % kStoreCount), kFused, kAsStored,
                 kIndex % 2 == 1>()...};
  return kTable[index];
}

template <typename T, bool kFused, bool kAsStored>
Kernel kernel_of(const Tile& tile) {
  const Loader loader = tile.loader == Loader::kPlanes ? Loader::kHalo : tile.loader;
  const auto index =
      ((static_cast<size_t>(tile.shape) * kLoaderCount + static_cast<size_t>(loader)) *
           kStoreCount +
       static_cast<size_t>(tile.store)) *
          2 +
      (tile.stream_k ? 1 : 0);
  return kernel_at<T, kFused, kAsStored>(
      index, std::make_index_sequence<kTileShapeCount * kLoaderCount * kStoreCount * 2>());
}

}  // namespace customconv::implicit_gemm::sm90
