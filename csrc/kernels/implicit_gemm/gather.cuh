// Planes gathered by threads: any strides, any layout; or channels and taps as one dimension.
#pragma once

#include <cstdint>

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/plane.cuh"
#include "kernels/implicit_gemm/tile.h"
#include "kernels/ptx/barrier.cuh"

namespace customconv::implicit_gemm {

constexpr int kGatherThreads = 96;

template <typename T>
struct Gather {
  const T* x;
  int64_t n, c, h, w;  // strides
  int N, C, H, W;
  int positions;  // of a plane
  int stride_h, stride_w;
  bool flat;  // "channel" i is tap i / C of channel i % C
  int flat_channels;
  int dilation_h, dilation_w;
  Divider<int32_t> pitch, plane_rows, by_C, by_S;
};

// Fills a plane whose first pixel is `at` with a chunk of channels. Neighbouring threads take
// neighbouring pixels.
template <typename T>
__device__ inline void gather_plane(const Gather<T>& g, const Corner& at, int chunk, char* to,
                                    int thread) {
  constexpr int kUnit = 16 / static_cast<int>(sizeof(T));  // channels that are stored at once
  constexpr int kUnits = kRowBytes / 16;
  const uint32_t base = ptx::shared_address(to);
  const int channels = g.flat ? g.flat_channels : g.C;
  for (int position = thread; position < g.positions; position += kGatherThreads) {
    int32_t n = position + at.line;
    const int w = at.q + g.pitch.split(n) * g.stride_w;
    const int h = at.p + g.plane_rows.split(n) * g.stride_h;
    n += at.n;
    const T* pixel = g.x + n * g.n + h * g.h + w * g.w;
    const bool inside = n < g.N && h >= 0 && h < g.H && w >= 0 && w < g.W;
    const uint32_t row = base + position * kRowBytes;
    const uint32_t swizzle = (row >> 3) & 0x70;
#pragma unroll 2
    for (int unit = 0; unit < kUnits; ++unit) {
      const int first = (chunk * kUnits + unit) * kUnit;
      T value[kUnit];
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        if (g.flat) {
          int32_t tap = first + i;
          const int c = g.by_C.split(tap);
          const int s = g.by_S.split(tap);
          const int dh = tap * g.dilation_h, dw = s * g.dilation_w;
          const bool exists = n < g.N && first + i < channels && h + dh >= 0 && h + dh < g.H &&
                              w + dw >= 0 && w + dw < g.W;
          value[i] = exists ? pixel[c * g.c + dh * g.h + dw * g.w] : narrow<T>(0.0f);
        } else {
          value[i] = inside && first + i < channels ? pixel[(first + i) * g.c] : narrow<T>(0.0f);
        }
      }
#pragma unroll
      for (int i = 0; i < kUnit; ++i) value[i] = rounded(value[i]);
      uint4 v;
      memcpy(&v, value, sizeof v);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"((row + unit * 16) ^ swizzle),
                   "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                   : "memory");
    }
  }
}

}  // namespace customconv::implicit_gemm
