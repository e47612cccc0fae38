// Products of a chunk of dy's channels and their weights, from shared memory.
#pragma once

#include <type_traits>

#include "kernels/col2im/params.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::col2im {

// A lane's part of the operands of two instructions: a block of pixels, a whole chunk deep.
template <typename T, Order kOrder>
struct Pixels {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  // Planes of 32 bits can't be transposed while they are read.
  static constexpr bool kByElements = kOrder == Order::kPlanes && kSize == 4;

  uint32_t values[2][4];

  // Where a lane reads a block that begins at `pixel`, from the start of a stage.
  static __device__ uint32_t place(const Params<T>& p, int pixel) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int half = lane / 8 % 2 * 8, depth = lane / 16;
    if (kOrder == Order::kPixels) return (pixel + half + lane % 8) * kRowBytes + depth * 16;
    if (kByElements) return (lane % 4 * p.plane + pixel + lane / 4) * kSize;
    return ((depth * 8 + lane % 8) * p.plane + pixel + half) * kSize;
  }

  __device__ void load(const Params<T>& p, uint32_t address) {
    constexpr int kDepth = kChunkBytes / 2 / kSize;  // of an instruction
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t (&v)[4] = values[step];
      if constexpr (kOrder == Order::kPixels) {
        ptx::load_matrices(address + step * (kChunkBytes / 2), v);
      } else if constexpr (!kByElements) {
        ptx::load_transposed_matrices(address + step * kDepth * p.plane * kSize, v);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int channel = step * kDepth + i / 2 * (kDepth / 2);
          v[i] = ptx::load_shared<uint32_t>(address + (channel * p.plane + i % 2 * 8) * kSize);
        }
      }
      if constexpr (std::is_same_v<T, float>) {
#pragma unroll
        for (uint32_t& value : v) value = ptx::round_tf32(value);
      }
    }
  }
};

// `used`: which blocks of columns have a tap of the lane's shift. `at`: where the warp's blocks of
// pixels begin, of the tap with the largest shift. What is not in reach of a tap must not be
// multiplied, not even by 0.
template <typename T, Order kOrder, int kColumnBlocks, int kWarpBlocks>
__device__ inline void multiply_chunk(const Params<T>& p, uint32_t used, uint32_t stage,
                                      const uint32_t (&at)[kWarpBlocks],
                                      float (&sum)[kWarpBlocks][kColumnBlocks][4]) {
  constexpr int kMatrixRows = kColumnBlocks * kBlockColumns;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row_bytes =
      p.width * (kOrder == Order::kPixels ? kRowBytes : static_cast<int>(sizeof(T)));
  const uint32_t weights = stage + p.dy_bytes + lane % 8 * kRowBytes + lane / 8 * 16;
#pragma unroll 1
  for (int i = 0; i < p.shift_count; ++i) {
    const uint32_t blocks = __shfl_sync(~0u, used, i);
    if (blocks == 0) continue;
    const uint32_t from = stage + (p.h.reach - p.shifts[i]) * row_bytes;
    Pixels<T, kOrder> pixels[kWarpBlocks];
#pragma unroll
    for (int m = 0; m < kWarpBlocks; ++m) pixels[m].load(p, from + at[m]);
#pragma unroll
    for (int block = 0; block < kColumnBlocks; ++block) {
      if ((blocks >> block & 1) == 0) continue;
      uint32_t w[4];
      ptx::load_matrices(weights + (i * kMatrixRows + block * kBlockColumns) * kRowBytes, w);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int m = 0; m < kWarpBlocks; ++m) {
          ptx::multiply_add<T>(sum[m][block], pixels[m].values[step], w[step * 2], w[step * 2 + 1]);
        }
      }
    }
  }
}

}  // namespace customconv::col2im
