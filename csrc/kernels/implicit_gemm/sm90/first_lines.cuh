// What a block's first tile reads, asked for early: warps that load nothing have L2 fetch it, while
// barriers and tensor maps are not ready for copies yet.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/work.cuh"
#include "kernels/ptx/prefetch.cuh"

namespace customconv::implicit_gemm::sm90 {

constexpr int kPrefetchingWarps = 2;
constexpr int kMostFirstLines = 512;  // of an operand, that a block asks for

// Blocks that share the rows, `blocks` of them, ask for different lines. The first chunk's come
// first.
__device__ inline void prefetch_rows(const MatrixRows& rows, int first, int count, int block,
                                     int blocks, int thread) {
  constexpr int kLine = 128, kThreads = 32 * kPrefetchingWarps;
  count = min(count, rows.count - first);
  if (rows.data == nullptr || count <= 0) return;
  const int lines = min((rows.bytes + kLine - 1) / kLine * count, kMostFirstLines * blocks);
  for (int i = block + thread * blocks; i < lines; i += kThreads * blocks) {
    const int column = i / count;
    ptx::prefetch_line(rows.data + (first + i - column * count) * rows.stride + column * kLine);
  }
}

// `item`, `rank`: the block's first tile, and its part of the tile's sums.
__device__ inline void prefetch_first_tile(const Params& p, int item, int rank,
                                           const TileShape& shape, int thread) {
  int32_t m = item;
  const int tile_k = p.by_tiles_k.split(m), tiles_k = p.by_tiles_k.divisor();
  prefetch_rows(p.pixel_rows, m * shape.pixels, shape.pixels, tile_k * p.splits + rank,
                tiles_k * p.splits, thread);
  prefetch_rows(p.weight_rows, tile_k * shape.channels, shape.channels, m * p.splits + rank,
                p.by_tiles_m.divisor() * p.splits, thread);
}

}  // namespace customconv::implicit_gemm::sm90
