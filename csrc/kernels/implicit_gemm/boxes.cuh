// Channels-last input: the copy engine brings planes in boxes, the matrix instruction reads them.
// All taps share a plane: strides and single taps are left to the main loop of sm90.
#pragma once

#include "kernels/implicit_gemm/work.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm {

// Loaders are whole warps, so that the compiler keeps what they count in uniform registers; one of
// the threads starts the copies.

// The weights of one tap after the other.
template <typename T, int kChannels, bool kTransposed>
__device__ inline void load_tap_weights(const Params<T>& p, const Shared& shared, Walk<T> walk) {
  constexpr int kChunk = kRowBytes / static_cast<int>(sizeof(T));
  constexpr int kBytes = kChannels * kRowBytes;
  const bool elected = ptx::elect_one();
  Place w;
  for (; !walk.is_over(); walk.advance()) {
    const int c = walk.step.chunk * kChunk;
#pragma unroll 1
    for (int r = 0; r < p.R; ++r) {
#pragma unroll 1
      for (int s = 0; s < p.S; ++s) {
        const int tap = tap_at<kTransposed>(p, r, s);
        ptx::Barrier* full = &shared.w_full[w.stage];
        const auto copy = [&](int offset, int column, int row) {
          char* to = shared.weights + w.stage * kBytes + offset;
          ptx::copy_box(to, &p.w, full, column, tap, row);
        };
        ptx::wait(&shared.w_empty[w.stage], w.parity ^ 1);
        if (elected) {
          ptx::arrive_expecting(full, kBytes);
          if constexpr (kTransposed) {
            each_transposed<kChannels>(p, walk.work.at, c, copy);
          } else {
            copy(0, c, walk.work.at.k);
          }
        }
        w.advance(p.w_stages);
      }
    }
  }
}

template <typename T>
__device__ inline void load_planes(const Params<T>& p, const Shared& shared, Walk<T> walk) {
  constexpr int kChunk = kRowBytes / static_cast<int>(sizeof(T));
  const bool elected = ptx::elect_one();
  Place x;
  for (; !walk.is_over(); walk.advance()) {
    const Corner at = walk.plane();
    char* to = shared.input + x.stage * p.stage_bytes;
    ptx::Barrier* full = &shared.x_full[x.stage];
    const int c = at.c + walk.step.chunk * kChunk;
    ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
    if (elected) {
      ptx::arrive_expecting(full, p.boxed_bytes);
      ptx::copy_box(to, &p.x, full, c, at.q, at.p, at.n);
    }
    x.advance(p.x_stages);
  }
}

// Blocks of a warpgroup.
template <int kKernel>
inline constexpr int kPlaneBlocks =
    kKernels[kKernel].blocks() / warpgroups(kKernels[kKernel], Fetch::kShared);

// Adds a tap's products over the first kPieces pieces of its channels. No branch may come between
// the products of a group: the compiler would make several groups of it.
template <typename T, int kKernel, int kPieces, bool kTransposed>
__device__ inline void add_tap(float (&sum)[kPlaneBlocks<kKernel>][kKernels[kKernel].channels / 2],
                               uint64_t filters, const uint64_t (&pixels)[kPlaneBlocks<kKernel>],
                               int accumulate) {
  ptx::begin_products();
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int b = 0; b < kPlaneBlocks<kKernel>; ++b) {
      ptx::Product<T, kKernels[kKernel].channels, kTransposed>::add(
          sum[b], ptx::advance(pixels[b], piece * kPieceBytes),
          ptx::advance(filters, piece * matrix_step<T>(kTransposed)), piece > 0 || accumulate);
    }
  }
  ptx::commit_products();
}

// The sums of one item of work. `x` and `w` go on from one item to the next.
template <typename T, int kKernel, bool kTransposed>
__device__ inline void multiply_planes(
    const Params<T>& p, const Shared& shared, const Work& work, int warpgroup, Place& x, Place& w,
    float (&sum)[kPlaneBlocks<kKernel>][kKernels[kKernel].channels / 2]) {
  constexpr int kBlocks = kPlaneBlocks<kKernel>;
  constexpr int kWeightBytes = kKernels[kKernel].channels * kRowBytes;
  const bool tells = threadIdx.x % 128 == 0;
  const uint64_t filters = describe_matrix<T>(kTransposed, ptx::shared_address(shared.weights));
  const uint64_t planes = ptx::describe_rows(ptx::shared_address(shared.input), p.group_bytes);
  uint32_t block_at[kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) block_at[b] = p.block_at[warpgroup * kBlocks + b];
  const int row_bytes = p.h.step * p.pitch * kRowBytes, tap_bytes = p.w_axis.step * kRowBytes;
  int accumulate = 0;
  int w_done = -1, x_done = -1;  // stages that the products under way still read
  const auto completed = [&] {
    if (tells && w_done >= 0) ptx::arrive(&shared.w_empty[w_done]);
    if (tells && x_done >= 0) ptx::arrive(&shared.x_empty[x_done]);
    x_done = -1;
  };
  // The products of a tap that is `offset` bytes from the beginning of the stages.
  const auto add = [&](auto pieces, int offset) {
    uint64_t pixels[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) pixels[b] = ptx::advance(planes, block_at[b] + offset);
    ptx::wait(&shared.w_full[w.stage], w.parity);
    add_tap<T, kKernel, decltype(pieces)::value, kTransposed>(
        sum, ptx::advance(filters, w.stage * kWeightBytes), pixels, accumulate);
    accumulate = 1;
    ptx::await_products<1>();
    completed();
    w_done = w.stage;
    w.advance(p.w_stages);
  };
  Step step(p, work.first);
#pragma unroll 1
  for (int i = work.first; i < work.last; ++i, step.advance(p)) {
    ptx::wait(&shared.x_full[x.stage], x.parity);
    with_pieces(step.pieces(p), [&](auto pieces) {
      int row = x.stage * p.stage_bytes;
#pragma unroll 1
      for (int r = 0; r < p.R; ++r, row += row_bytes) {
        int tap = row;
#pragma unroll 1
        for (int s = 0; s < p.S; ++s, tap += tap_bytes) {
          add(pieces, tap);
        }
      }
    });
    x_done = x.stage;
    x.advance(p.x_stages);
  }
  ptx::await_products<0>();
  completed();
}

}  // namespace customconv::implicit_gemm
