// Channels-last input: the copy engine brings planes in boxes, the matrix instruction reads them.
#pragma once

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

// Adds a tap's products over the first kPieces pieces of its channels. `pixels`: where the tap's
// blocks of pixels are in shared memory. No branch may come between the products of a group: the
// compiler would make several groups of it.
template <typename T, int kKernel, int kPieces>
__device__ inline void add_tap(float (&sum)[kPlaneBlocks<kKernel>][kKernels[kKernel].channels / 2],
                               uint32_t filters, const uint32_t (&pixels)[kPlaneBlocks<kKernel>],
                               uint32_t group_bytes, int accumulate) {
  ptx::begin_products();
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const uint64_t f = ptx::describe_rows(filters + piece * kPieceBytes, 8 * kRowBytes);
#pragma unroll
    for (int b = 0; b < kPlaneBlocks<kKernel>; ++b) {
      const uint64_t x = ptx::describe_rows(pixels[b] + piece * kPieceBytes, group_bytes);
      ptx::Product<T, kKernels[kKernel].channels>::add(sum[b], x, f, piece > 0 || accumulate);
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
  const bool leader = threadIdx.x % 128 == 0;
  Step step(p, work.first);
  int accumulate = 0;
  ptx::Barrier* w_done = nullptr;  // what the products under way still read
  ptx::Barrier* x_done = nullptr;
  const auto completed = [&] {
    if (leader && w_done != nullptr) ptx::arrive(w_done);
    if (leader && x_done != nullptr) ptx::arrive(x_done);
    x_done = nullptr;
  };
  for (int i = work.first; i < work.last; ++i, step.advance(p)) {
    ptx::wait(&shared.x_full[x.stage], x.parity);
    const uint32_t plane = ptx::shared_address(shared.input + x.stage * p.stage_bytes);
    const int pieces = step.pieces(p);
    uint32_t row = 0;
    for (int r = step.plane_h; r < p.R; r += p.h.planes, row += p.h.step * p.pitch * kRowBytes) {
      uint32_t tap = row;
      for (int s = step.plane_w; s < p.S; s += p.w_axis.planes, tap += p.w_axis.step * kRowBytes) {
        ptx::wait(&shared.w_full[w.stage], w.parity);
        const uint32_t filters = ptx::shared_address(shared.weights + w.stage * kWeightBytes);
        uint32_t pixels[kBlocks];
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          pixels[b] = plane + tap + p.block_at[warpgroup * kBlocks + b];
        }
        switch (pieces) {
          case 4:
            add_tap<T, kKernel, 4>(sum, filters, pixels, p.group_bytes, accumulate);
            break;
          case 3:
            add_tap<T, kKernel, 3>(sum, filters, pixels, p.group_bytes, accumulate);
            break;
          case 2:
            add_tap<T, kKernel, 2>(sum, filters, pixels, p.group_bytes, accumulate);
            break;
          default:
            add_tap<T, kKernel, 1>(sum, filters, pixels, p.group_bytes, accumulate);
        }
        accumulate = 1;
        ptx::await_products<1>();
        completed();
        w_done = &shared.w_empty[w.stage];
        w.advance(p.w_stages);
      }
    }
    x_done = &shared.x_empty[x.stage];
    x.advance(p.x_stages);
  }
  ptx::await_products<0>();
  completed();
}

}  // namespace customconv::implicit_gemm
