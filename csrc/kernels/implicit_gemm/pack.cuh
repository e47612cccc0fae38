// Filters laid out as the copy engine wants them.
#pragma once

#include <cstdint>

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"

namespace customconv::implicit_gemm {

constexpr int kPackBlock = 256;

// packed (K, R * S, channels) or, flat, (K, channels) with channels = (r, s, c); zeros behind the
// last channel.
template <typename T>
__global__ void __launch_bounds__(kPackBlock)
    pack_weight(int count, Divider<int32_t> channels, Divider<int32_t> taps, Divider<int32_t> by_S,
                Divider<int32_t> by_C, bool flat, int C, int used, int64_t w_k, int64_t w_c,
                int64_t w_r, int64_t w_s, const T* __restrict__ w, T* __restrict__ packed) {
  for (int at = blockIdx.x * kPackBlock + threadIdx.x; at < count; at += gridDim.x * kPackBlock) {
    int32_t k = at;
    const int channel = channels.split(k);
    int32_t r;
    int c = channel;
    if (flat) {
      r = channel;
      c = by_C.split(r);
    } else {
      r = taps.split(k);
    }
    const int s = by_S.split(r);
    packed[at] = channel < used ? w[k * w_k + c * w_c + r * w_r + s * w_s] : narrow<T>(0.0f);
  }
}

}  // namespace customconv::implicit_gemm
