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

constexpr int kSlabChannels = 64;  // of weights that are read as they are stored
constexpr int kSlabRowBytes = 128;

// Copies that a stage takes, each by a lane.
template <int kN, bool kAsStored>
constexpr int kWeightCopies = kAsStored ? kN / kSlabChannels : 1;

template <int kN, bool kAsStored>
__device__ inline void copy_weights(const Params& p, const Work& work, char* to, ptx::Barrier* full,
                                    int chunk, int tap, int copy) {
  const int c = chunk * p.row_channels;
  if constexpr (kAsStored) {
    const int k = work.k - (work.last_k - p.group_K) + copy * kSlabChannels;
    ptx::copy_box(to + copy * p.row_channels * kSlabRowBytes, &p.w, full, k, tap, work.c + c);
  } else {
    ptx::copy_box(to, &p.w, full, c, tap, work.k);
  }
}

}  // namespace customconv::implicit_gemm::sm90
