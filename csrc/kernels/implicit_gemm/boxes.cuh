// Channels-last input: the copy engine brings planes in boxes, the matrix instruction reads them.
#pragma once

#include <type_traits>

#include "kernels/implicit_gemm/work.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm {

// The weights of one tap after the other; called by one thread.
template <typename T, int kChannels>
__device__ inline void load_tap_weights(const Params<T>& p, const Shared& shared) {
  constexpr int kChunk = kRowBytes / static_cast<int>(sizeof(T));
  constexpr int kBytes = kChannels * kRowBytes;
  Place w;
  for (Walk<T> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    const int k = walk.work.at.k, c = walk.step.chunk * kChunk;
    for (int r = walk.step.plane_h; r < p.R; r += p.h.planes) {
      for (int s = walk.step.plane_w; s < p.S; s += p.w_axis.planes) {
        ptx::wait(&shared.w_empty[w.stage], w.parity ^ 1);
        ptx::arrive_expecting(&shared.w_full[w.stage], kBytes);
        ptx::copy_box(shared.weights + w.stage * kBytes, &p.w, &shared.w_full[w.stage], c,
                      r * p.S + s, k);
        w.advance(p.w_stages);
      }
    }
  }
}

// Called by one thread.
template <typename T, int kChannels>
__device__ inline void load_planes(const Params<T>& p, const Shared& shared) {
  constexpr int kChunk = kRowBytes / static_cast<int>(sizeof(T));
  Place x;
  for (Walk<T> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    const Corner at = walk.plane();
    ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
    ptx::arrive_expecting(&shared.x_full[x.stage], p.boxed_bytes);
    ptx::copy_box(shared.input + x.stage * p.stage_bytes, &p.x, &shared.x_full[x.stage],
                  walk.step.chunk * kChunk, at.q, at.p, at.n);
    x.advance(p.x_stages);
  }
}

// Blocks of a warpgroup.
template <int kKernel>
inline constexpr int kPlaneBlocks =
    kKernels[kKernel].blocks() / warpgroups(kKernels[kKernel], Fetch::kShared);

// Adds a tap's products over the first kPieces pieces of its channels. No branch may come between
// the products of a group: the compiler would make several groups of it.
template <typename T, int kKernel, int kPieces>
__device__ inline void add_tap(float (&sum)[kPlaneBlocks<kKernel>][kKernels[kKernel].channels / 2],
                               uint64_t filters, const uint64_t (&pixels)[kPlaneBlocks<kKernel>],
                               int accumulate) {
  ptx::begin_products();
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int b = 0; b < kPlaneBlocks<kKernel>; ++b) {
      ptx::Product<T, kKernels[kKernel].channels>::add(
          sum[b], ptx::advance(pixels[b], piece * kPieceBytes),
          ptx::advance(filters, piece * kPieceBytes), piece > 0 || accumulate);
    }
  }
  ptx::commit_products();
}

// The sums of one item of work. `x` and `w` go on from one item to the next.
template <typename T, int kKernel>
__device__ inline void multiply_planes(
    const Params<T>& p, const Shared& shared, const Work& work, int warpgroup, Place& x, Place& w,
    float (&sum)[kPlaneBlocks<kKernel>][kKernels[kKernel].channels / 2]) {
  constexpr int kBlocks = kPlaneBlocks<kKernel>;
  constexpr int kWeightBytes = kKernels[kKernel].channels * kRowBytes;
  constexpr int kWholePieces = kRowBytes / kPieceBytes;
  const bool leader = threadIdx.x % 128 == 0;
  const uint64_t filters = ptx::describe_rows(ptx::shared_address(shared.weights), 8 * kRowBytes);
  const uint64_t planes = ptx::describe_rows(ptx::shared_address(shared.input), p.group_bytes);
  uint32_t block_at[kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) block_at[b] = p.block_at[warpgroup * kBlocks + b];
  const int row_bytes = p.h.step * p.pitch * kRowBytes, tap_bytes = p.w_axis.step * kRowBytes;
  int accumulate = 0;
  int w_done = -1, x_done = -1;  // stages that the products under way still read
  const auto completed = [&] {
    if (leader && w_done >= 0) ptx::arrive(&shared.w_empty[w_done]);
    if (leader && x_done >= 0) ptx::arrive(&shared.x_empty[x_done]);
    x_done = -1;
  };
  Step step(p, work.first);
#pragma unroll 1
  for (int i = work.first; i < work.last; ++i, step.advance(p)) {
    const auto add_taps = [&](auto pieces) {
      int row = x.stage * p.stage_bytes;
#pragma unroll 1
      for (int r = step.plane_h; r < p.R; r += p.h.planes, row += row_bytes) {
        int tap = row;
#pragma unroll 1
        for (int s = step.plane_w; s < p.S; s += p.w_axis.planes, tap += tap_bytes) {
          uint64_t pixels[kBlocks];
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) pixels[b] = ptx::advance(planes, block_at[b] + tap);
          ptx::wait(&shared.w_full[w.stage], w.parity);
          add_tap<T, kKernel, decltype(pieces)::value>(
              sum, ptx::advance(filters, w.stage * kWeightBytes), pixels, accumulate);
          accumulate = 1;
          ptx::await_products<1>();
          completed();
          w_done = w.stage;
          w.advance(p.w_stages);
        }
      }
    };
    ptx::wait(&shared.x_full[x.stage], x.parity);
    switch (step.pieces(p)) {
      case kWholePieces:
        add_taps(std::integral_constant<int, kWholePieces>());
        break;
      case 3:
        add_taps(std::integral_constant<int, 3>());
        break;
      case 2:
        add_taps(std::integral_constant<int, 2>());
        break;
      default:
        add_taps(std::integral_constant<int, 1>());
    }
    x_done = x.stage;
    x.advance(p.x_stages);
  }
  ptx::await_products<0>();
  completed();
}

}  // namespace customconv::implicit_gemm
