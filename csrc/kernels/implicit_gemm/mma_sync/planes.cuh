// Channels-last input, on its way to shared memory.
#pragma once

#include "kernels/implicit_gemm/mma_sync/work.cuh"
#include "kernels/ptx/copy.cuh"

namespace customconv::implicit_gemm::mma_sync {

// Planes of pixels, 128 bytes of channels each. Called by kRowThreads.
template <typename T, int kChannels>
__device__ inline void copy_planes(const Params<T>& p, const Shared& shared, int thread) {
  constexpr int kUnits = kRowBytes / 16, kElements = 16 / static_cast<int>(sizeof(T));
  const RowSource<T>& s = p.source;
  const bool one_plane = p.h.planes * p.w_axis.planes == 1;
  const auto** from = static_cast<const T**>(shared.copies);  // of every pixel
  Place x;
  for (Walk<T> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    if (walk.is_new_tile() || !one_plane) {
      const Corner at = walk.plane();
      ptx::named_barrier_sync<kRowThreads>(kRowBarrier);  // the list is no longer read
      for (int i = thread; i < s.vectors; i += kRowThreads) {
        int32_t n = i;
        const int w = at.q + s.vectors_in_row.split(n) * p.stride_w;
        const int h = at.p + s.period.split(n) * p.stride_h;
        n += at.n;
        const bool exists = n < s.N && h >= 0 && h < s.H && w >= 0 && w < s.W;
        from[i] = exists ? s.x + n * s.n + h * s.h + w * s.w : nullptr;
      }
      ptx::named_barrier_sync<kRowThreads>(kRowBarrier);
    }
    const uint32_t stage = ptx::shared_address(shared.input + x.stage * p.stage_bytes);
    const int first = walk.work.at.c + walk.step.chunk * (kRowBytes / static_cast<int>(sizeof(T)));
    ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
    for (int i = thread; i < s.vectors * kUnits; i += kRowThreads) {
      const int unit = i % kUnits, channel = first + unit * kElements;
      const T* pixel = from[i / kUnits];
      // Behind the last channel there may be anything.
      const int count = pixel == nullptr ? 0 : max(0, min(kElements, s.C - channel));
      ptx::copy_async_part<16>(swizzled(stage + i / kUnits * kRowBytes, unit),
                               count > 0 ? pixel + channel : s.x,
                               count * static_cast<int>(sizeof(T)));
    }
    ptx::arrive_after_copies(&shared.x_full[x.stage]);
    x.advance(p.x_stages);
  }
}

}  // namespace customconv::implicit_gemm::mma_sync
