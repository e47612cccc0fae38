// Copies in TMA's im2col mode (PTX ISA, "Tensors: im2col mode").
//
// A tensor map describes (N, H, W, C), or (N, D, H, W, C), and for each image a box of pixels with
// a stride. A copy traverses that box from a pixel on: along rows, then from row to row, from slice
// to slice and from image to image. Each pixel that it meets is moved by the copy's offsets and
// brings some channels. Pixels outside the image arrive as zeros.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/ptx/barrier.cuh"

namespace customconv::ptx {

// Offsets are 0 to 255.
__device__ inline void tma_load_im2col(void* to, const CUtensorMap* map, Barrier* barrier, int c,
                                       int w, int h, int n, int offset_w, int offset_h) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(c), "r"(w), "r"(h), "r"(n),
      "h"(static_cast<uint16_t>(offset_w)), "h"(static_cast<uint16_t>(offset_h))
      : "memory");
}

// The same of volumes. Offsets are 0 to 31.
__device__ inline void tma_load_im2col(void* to, const CUtensorMap* map, Barrier* barrier, int c,
                                       int w, int h, int d, int n, int offset_w, int offset_h,
                                       int offset_d) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10};" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n),
      "h"(static_cast<uint16_t>(offset_w)), "h"(static_cast<uint16_t>(offset_h)),
      "h"(static_cast<uint16_t>(offset_d))
      : "memory");
}

}  // namespace customconv::ptx
