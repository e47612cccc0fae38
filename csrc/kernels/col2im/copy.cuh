// Copies of a stage: a chunk of dy's channels and their weights.
#pragma once

#include "kernels/col2im/params.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::col2im {

// Where a block's pixels of dy begin: row and column may lie outside the image.
struct Origin {
  int n, p, q;
};

// Copies the first `count` of the elements that kBytes hold, and zeros behind them.
template <int kBytes, typename T>
__device__ inline void copy_vector(uint32_t to, const T* from, int count) {
  if constexpr (kBytes == 2) {
    ptx::store_shared(to, count > 0 ? *reinterpret_cast<const uint16_t*>(from) : uint16_t{0});
  } else {
    ptx::copy_async_part<kBytes>(to, from, count * static_cast<int>(sizeof(T)));
  }
}

template <int kBytes, Order kOrder, typename T>
__device__ inline void copy_vectors(const Params<T>& p, const Origin& origin, int first_k,
                                    uint32_t stage) {
  constexpr int kElements = kBytes / static_cast<int>(sizeof(T));
  constexpr int kChannels = kChunkBytes / static_cast<int>(sizeof(T));
  const T* image = p.dy + origin.n * p.y_n;
  const int pixels = p.stage_rows * p.width;
  const auto copy = [&](int row, int column, int channel, uint32_t to, int most) {
    const int y = origin.p + row, x = origin.q + column, k = first_k + channel;
    const bool exists = y >= 0 && y < p.h.in && x >= 0 && x < p.w.in && k < p.K;
    const T* from = image + k * p.y_k + y * p.y_h + x * p.y_w;
    const int left = kOrder == Order::kPixels ? p.K - k : p.w.in - x;
    copy_vector<kBytes>(to, exists ? from : p.dy, exists ? min(left, most) : 0);
  };
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if constexpr (kOrder == Order::kPixels) {
    constexpr int kVectors = kChannels / kElements;
    for (int i = thread; i < pixels * kVectors; i += threads) {
      const int channel = i % kVectors * kElements, pixel = i / kVectors;
      int32_t row = pixel;
      const int column = p.by_width.split(row);
      copy(row, column, channel, stage + pixel * kRowBytes + channel * static_cast<int>(sizeof(T)),
           kElements);
    }
  } else {
    const int vectors = pixels / kElements;
    for (int i = thread; i < vectors * kChannels; i += threads) {
      int32_t channel = i;
      const int pixel = p.by_plane_vectors.split(channel) * kElements;
      int32_t row = pixel;
      const int column = p.by_width.split(row);
      copy(row, column, channel, stage + (channel * p.plane + pixel) * static_cast<int>(sizeof(T)),
           kElements);
    }
  }
}

template <Order kOrder, typename T>
__device__ inline void copy_dy(const Params<T>& p, const Origin& origin, int first_k,
                               uint32_t stage) {
  switch (p.vector) {
    case 16:
      return copy_vectors<16, kOrder>(p, origin, first_k, stage);
    case 8:
      return copy_vectors<8, kOrder>(p, origin, first_k, stage);
    case 4:
      return copy_vectors<4, kOrder>(p, origin, first_k, stage);
    default:
      return copy_vectors<static_cast<int>(sizeof(T)), kOrder>(p, origin, first_k, stage);
  }
}

// The packed rows of a chunk.
__device__ inline void copy_weights(const char* from, int rows, uint32_t stage) {
  constexpr int kUnits = kChunkBytes / 16;
  for (int i = static_cast<int>(threadIdx.x); i < rows * kUnits; i += blockDim.x) {
    ptx::copy_async<16>(stage + i / kUnits * kRowBytes + i % kUnits * 16, from + i * 16, true);
  }
}

}  // namespace customconv::col2im
