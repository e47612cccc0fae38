// Where a tile's pixels are in the output.
#pragma once

#include "kernels/implicit_gemm/mma_sync/rows.cuh"
#include "kernels/implicit_gemm/mma_sync/work.cuh"

namespace customconv::implicit_gemm::mma_sync {

constexpr int kWarpPixels = 16;  // of a block: rows of the instruction that a warp holds

// Offset of a pixel of a tile's block, without the channel; -1 where there is none.
template <typename T>
__device__ inline int64_t boxed_offset(const Output<T>& out, const Corner& at, int block,
                                       int pixel) {
  int r, c, n;
  if (out.lines) {
    n = 0;
    r = block * kBlockPixels + pixel;
    c = out.pitch.split(r);
    if (c >= out.columns) return -1;
  } else {
    n = block;
    c = out.squares_w.split(n) * 8 + pixel % 8;
    r = out.squares_h.split(n) * 8 + pixel / 8;
  }
  n += at.n;
  const int p = at.p + r, q = at.q + c;
  if (r >= out.rows || p >= out.P || q >= out.Q || n >= out.N) return -1;
  return n * out.n + p * out.p + q * out.q;
}

// The offset of the first of a pair of pixels, and how many of them exist.
struct Pair {
  int64_t offset;
  int count;
};

template <typename T>
__device__ inline Pair pair_at(const Output<T>& out, const Corner& at, const Spot& spot) {
  const int n = at.n + spot.n, p = at.p + spot.row, q = at.q + spot.pair * 2;
  if (spot.n >= out.images || spot.row >= out.rows) return {0, 0};
  if (n >= out.N || p >= out.P || q >= out.Q) return {0, 0};
  return {n * out.n + p * out.p + q * out.q, q + 1 < out.Q ? 2 : 1};
}

// The same of a row of a warp's sixteen; -1 where there is none. `first_pair` is of the warp's.
template <typename T>
__device__ inline int64_t pixel_offset(const Params<T>& p, const Corner& at, int first_pair,
                                       int row) {
  const Pair pair = pair_at(p.out, at, locate(p.source, at.pair + first_pair + row % 8));
  return row / 8 < pair.count ? pair.offset + row / 8 * p.out.q : -1;
}

}  // namespace customconv::implicit_gemm::mma_sync
