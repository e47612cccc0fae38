// Channels-last input: the copy engine brings planes in boxes, the matrix instruction reads them.
#pragma once

#include <type_traits>

#include "kernels/implicit_gemm/work.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm {

// Loaders are whole warps, so that the compiler keeps what they count in uniform registers; one of
// the threads starts the copies.

// The weights of one tap after the other.
template <typename T, int kChannels>
__device__ inline void load_tap_weights(const Params<T>& p, const Shared& shared) {
  constexpr int kChunk = kRowBytes / static_cast<int>(sizeof(T));
  constexpr int kBytes = kChannels * kRowBytes;
  const bool elected = ptx::elect_one();
  Place w;
  for (Walk<T> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    const int k = walk.work.at.k, c = walk.step.chunk * kChunk;
#pragma unroll 1
    for (int r = walk.step.plane_h; r < p.R; r += p.h.planes) {
#pragma unroll 1
      for (int s = walk.step.plane_w; s < p.S; s += p.w_axis.planes) {
        ptx::wait(&shared.w_empty[w.stage], w.parity ^ 1);
        if (elected) {
          ptx::arrive_expecting(&shared.w_full[w.stage], kBytes);
          ptx::copy_box(shared.weights + w.stage * kBytes, &p.w, &shared.w_full[w.stage], c,
                        r * p.S + s, k);
        }
        w.advance(p.w_stages);
      }
    }
  }
}

// Tiles of the same pixels begin at the same time. While each waits for its first stages, they
// bring what follows to the second-level cache, each its share: all asking for the same planes,
// they would keep memory waiting.
template <typename T, int kChannels>
__device__ inline void prefetch_planes(const Params<T>& p, const Walk<T>& walk, bool elected) {
  constexpr int kChunk = kRowBytes / static_cast<int>(sizeof(T));
  const int tiles = p.tiles_k.divisor();
  if (tiles == 1) return;
  const int own = walk.work.at.k / kChannels;
  for (int i = walk.work.first + p.x_stages + own; i < walk.work.last; i += tiles) {
    const Step step(p, i);
    const Corner at = walk.plane(step);
    if (elected) ptx::prefetch_box(&p.x, step.chunk * kChunk, at.q, at.p, at.n);
  }
}

template <typename T, int kChannels>
__device__ inline void load_planes(const Params<T>& p, const Shared& shared) {
  constexpr int kChunk = kRowBytes / static_cast<int>(sizeof(T));
  const bool elected = ptx::elect_one();
  Place x;
  for (Walk<T> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    const Corner at = walk.plane();
    ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
    if (elected) {
      ptx::arrive_expecting(&shared.x_full[x.stage], p.boxed_bytes);
      ptx::copy_box(shared.input + x.stage * p.stage_bytes, &p.x, &shared.x_full[x.stage],
                    walk.step.chunk * kChunk, at.q, at.p, at.n);
    }
    x.advance(p.x_stages);
    if (walk.taken() + 1 == p.x_stages) prefetch_planes<T, kChannels>(p, walk, elected);
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
  // The products of a tap that is `offset` bytes from the beginning of the stages.
  const auto add = [&](auto pieces, int offset) {
    uint64_t pixels[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) pixels[b] = ptx::advance(planes, block_at[b] + offset);
    ptx::wait(&shared.w_full[w.stage], w.parity);
    add_tap<T, kKernel, decltype(pieces)::value>(sum, ptx::advance(filters, w.stage * kWeightBytes),
                                                 pixels, accumulate);
    accumulate = 1;
    ptx::await_products<1>();
    completed();
    w_done = w.stage;
    w.advance(p.w_stages);
  };
  // Calls `function` with the number of a step's pieces.
  const auto with_pieces = [&](int pieces, auto function) {
    if (pieces >= kWholePieces) {
      function(std::integral_constant<int, kWholePieces>());
    } else if (pieces == 3) {
      function(std::integral_constant<int, 3>());
    } else if (pieces == 2) {
      function(std::integral_constant<int, 2>());
    } else {
      function(std::integral_constant<int, 1>());
    }
  };
  // The steps, `add_step` does one.
  const auto walk = [&](auto add_step) {
#pragma unroll 1
    for (int i = work.first; i < work.last; ++i) {
      ptx::wait(&shared.x_full[x.stage], x.parity);
      add_step(i, x.stage * p.stage_bytes);
      x_done = x.stage;
      x.advance(p.x_stages);
    }
  };
  if (p.R * p.S == 1) {
    walk([&](int i, int stage) {
      with_pieces(p.pieces - i * kWholePieces, [&](auto pieces) { add(pieces, stage); });
    });
  } else {
    Step step(p, work.first);
    walk([&](int, int stage) {
      with_pieces(step.pieces(p), [&](auto pieces) {
        int row = stage;
#pragma unroll 1
        for (int r = step.plane_h; r < p.R; r += p.h.planes, row += row_bytes) {
          int tap = row;
#pragma unroll 1
          for (int s = step.plane_w; s < p.S; s += p.w_axis.planes, tap += tap_bytes) {
            add(pieces, tap);
          }
        }
      });
      step.advance(p);
    });
  }
  ptx::await_products<0>();
  completed();
}

}  // namespace customconv::implicit_gemm
