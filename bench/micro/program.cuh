// What the programs share: copies in TMA's im2col mode, and what a program tells its caller.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <exception>

#include "kernels/common/check.h"
#include "kernels/common/map.cuh"
#include "kernels/ptx/im2col.cuh"

namespace customconv::micro {

constexpr int kFailed = 1;         // stderr says why
constexpr int kDoesNotFit = 2000;  // a variant does not compute this problem

// Returns the function's status, or kFailed if it throws.
template <typename Function>
int guarded(Function function) {
  try {
    return function();
  } catch (const std::exception& error) {
    cudaGetLastError();  // so that the next call does not report it
    std::fprintf(stderr, "%s\n", error.what());
    return kFailed;
  }
}

// As ptx::copy_im2col, into every thread block of the cluster that `blocks` has a bit for.
__device__ inline void multicast_im2col(uint16_t blocks, void* to, const CUtensorMap* map,
                                        ptx::Barrier* full, int c, int w, int h, int n,
                                        int offset_w = 0, int offset_h = 0) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(
          ptx::shared_address(to)),
      "l"(map), "r"(ptx::shared_address(full)), "r"(c), "r"(w), "r"(h), "r"(n),
      "h"(static_cast<uint16_t>(offset_w)), "h"(static_cast<uint16_t>(offset_h)), "h"(blocks)
      : "memory");
}

// A tensor (N, H, W, C) as im2col mode reads it. `lower` and `upper` (w, h): from the first and the
// last pixel of an image to those of the box that is traversed.
struct Im2col {
  int N, H, W, C;
  int lower[2] = {0, 0}, upper[2] = {0, 0};
  int stride = 1;
  int channels, pixels;  // of a copy
};

template <typename T>
CUtensorMap map_im2col(const void* x, const Im2col& from,
                       CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  const cuuint64_t row = from.C * sizeof(T), W = from.W, H = from.H;
  return make_im2col_map(x, kMapType<T>, {cuuint64_t(from.C), W, H, cuuint64_t(from.N)},
                         {row, row * W, row * W * H},
                         {from.lower[0], from.lower[1], from.upper[0], from.upper[1], from.stride,
                          from.stride, from.channels, from.pixels},
                         swizzle);
}

}  // namespace customconv::micro
