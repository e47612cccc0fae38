// Runs of a tensor's elements, which TMA brings to shared memory and back: whole 16
// bytes, aligned in both. A run lies in shared memory as far behind such an address as it does in
// the tensor; what TMA cannot copy at its ends, threads do.
#pragma once

#include <cstdint>

#include "kernels/depthwise/planes/geometry.h"
#include "kernels/ptx/tma.cuh"

namespace customconv::depthwise::planes {

template <typename T>
inline constexpr int kVector = 16 / sizeof(T);

// Elements from the last address of whole 16 bytes on.
template <typename T>
__device__ inline int lead_of(const T* at) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(at) % 16 / sizeof(T));
}
template <typename T>
__device__ inline int round_down(int elements) {
  return elements & ~(kVector<T> - 1);
}

// Brings `count` elements from number `first` on of a tensor that has `size`, behind the first
// one's lead. The thread that calls it, or one that it has met since, arrives at `full` afterwards.
template <typename T>
__device__ inline void bring_run(const T* tensor, int64_t size, int64_t first, int count, T* to,
                                 ptx::Barrier* full) {
  const T* from = tensor + first;
  const int lead = lead_of(from);
  to += lead;
  // What is copied goes beyond the run, but not beyond the tensor.
  int begin = -lead, end = round_down<T>(lead + count + kVector<T> - 1) - lead;
  if (first + begin < 0) begin += kVector<T>;
  if (first + end > size) end -= kVector<T>;
  end = max(begin, end);
  const int bytes = (end - begin) * static_cast<int>(sizeof(T));
  if (bytes > 0) {
    ptx::expect_tx(full, bytes);
    ptx::bulk_load(to + begin, from + begin, bytes, full);
  }
#pragma unroll 1
  for (int i = 0; i < min(begin, count); ++i) to[i] = from[i];
#pragma unroll 1
  for (int i = end; i < count; ++i) to[i] = from[i];
}

// Stores `count` elements, which lie behind their lead: a warp, once who wrote them has fenced
// that, and been waited for. The first lane's copies are a group.
template <typename T>
__device__ inline void store_run(T* to, const T* from, int count, int lane) {
  const int lead = lead_of(to);
  from += lead;
  const int begin = (kVector<T> - lead) % kVector<T>;
  const int end = max(begin, round_down<T>(lead + count) - lead);
  if (lane == 0) {
    if (end > begin) {
      ptx::bulk_store(to + begin, from + begin, (end - begin) * static_cast<int>(sizeof(T)));
    }
    ptx::tma_store_arrive();
  }
  if (lane < min(begin, count)) to[lane] = from[lane];
  if (end + lane < count) to[end + lane] = from[end + lane];
}

}  // namespace customconv::depthwise::planes
