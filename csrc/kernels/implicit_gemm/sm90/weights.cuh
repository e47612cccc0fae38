// Weights of a tap into a stage.
//
// Rows of a stage are the tile's output channels, each with some input channels; the matrix is
// (output channel, tap, input channel). If weights are read as they are stored, an input gradient's
// matrix has its rows and columns exchanged: then a stage has slabs of 64 output channels, whose
// rows are input channels.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/work.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm::sm90 {

// Copies that a tile of `tile_channels` takes for a stage, each by a lane. Stages keep what they
// had where no channel is.
__device__ inline int weight_copies(const Params& p, const Work& work, int tile_channels) {
  const int channels = min(tile_channels, work.last_k - work.k);
  return (channels + p.w_copy_channels - 1) / p.w_copy_channels;
}

template <bool kAsStored>
__device__ inline void copy_weights(const Params& p, const Work& work, char* to, ptx::Barrier* full,
                                    int chunk, int tap, int copy) {
  const int c = chunk * p.row_channels, k = work.k + copy * p.w_copy_channels;
  to += copy * p.w_copy_bytes;
  if constexpr (kAsStored) {
    ptx::tma_load(to, &p.w, full, k - (work.last_k - p.group_K), tap, work.c + c);
  } else {
    ptx::tma_load(to, &p.w, full, c, tap, k);
  }
}

}  // namespace customconv::implicit_gemm::sm90
