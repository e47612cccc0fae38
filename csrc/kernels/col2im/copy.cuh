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

// A vector of which the first `count` elements exist; zeros follow.
template <typename T>
struct Vector {
  uint32_t to;
  const T* from;
  int count;
};

template <int kBytes, Order kOrder, typename T>
__device__ inline Vector<T> vector_of(const Params<T>& p, const Origin& origin, int first_k,
                                      uint32_t stage, int number) {
  constexpr int kSize = static_cast<int>(sizeof(T)), kElements = kBytes / kSize;
  int32_t channel, pixel;
  if constexpr (kOrder == Order::kPixels) {
    constexpr int kVectors = kChunkBytes / kBytes;
    channel = number % kVectors * kElements;
    pixel = number / kVectors;
  } else {
    channel = number;
    pixel = p.by_plane_vectors.split(channel) * kElements;
  }
  int32_t row = pixel;
  const int x = origin.q + p.by_width.split(row), y = origin.p + row, k = first_k + channel;
  const bool exists = y >= 0 && y < p.h.in && x >= 0 && x < p.w.in && k < p.K;
  const T* from = p.dy + origin.n * p.y_n + k * p.y_k + y * p.y_h + x * p.y_w;
  const int left = kOrder == Order::kPixels ? p.K - k : p.w.in - x;
  const int place = kOrder == Order::kPixels ? pixel * kRowBytes + channel * kSize
                                             : (channel * p.plane + pixel) * kSize;
  return {stage + place, exists ? from : p.dy, exists ? min(left, kElements) : 0};
}

template <int kBytes, Order kOrder, typename T>
__device__ inline void copy_vectors(const Params<T>& p, const Origin& origin, int first_k,
                                    uint32_t stage) {
  const int count = p.stage_rows * p.width * (kChunkBytes / kBytes);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if constexpr (kBytes == 2) {
    // Through registers, some at a time, so that reads overlap.
    constexpr int kBatch = 4;
    for (int i = thread; i < count; i += kBatch * threads) {
      uint32_t to[kBatch];
      uint16_t value[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const auto v = vector_of<kBytes, kOrder>(p, origin, first_k, stage, i + j * threads);
        const bool exists = v.count > 0 && i + j * threads < count;
        to[j] = v.to;
        value[j] = exists ? *reinterpret_cast<const uint16_t*>(v.from) : uint16_t{0};
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (i + j * threads < count) ptx::store_shared(to[j], value[j]);
      }
    }
  } else {
    for (int i = thread; i < count; i += threads) {
      const auto v = vector_of<kBytes, kOrder>(p, origin, first_k, stage, i);
      ptx::copy_async_part<kBytes>(v.to, v.from, v.count * static_cast<int>(sizeof(T)));
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
