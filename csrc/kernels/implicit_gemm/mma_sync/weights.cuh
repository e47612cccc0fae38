// Weights, on their way to shared memory; a warp copies them.
#pragma once

#include "kernels/implicit_gemm/mma_sync/work.cuh"
#include "kernels/ptx/copy.cuh"

namespace customconv::implicit_gemm::mma_sync {

// Rows of a matrix: channels from `c` on of one tap, of the output channels from `k` on.
template <typename T>
__device__ inline void copy_matrix(const Params<T>& p, char* to, ptx::Barrier* full, int bytes,
                                   int c, int tap, int k) {
  constexpr int kUnits = kRowBytes / 16, kElements = 16 / static_cast<int>(sizeof(T));
  const T* w = static_cast<const T*>(p.weights);
  const uint32_t stage = ptx::shared_address(to);
  for (int i = threadIdx.x % 32; i < bytes / 16; i += 32) {
    const int row = i / kUnits, unit = i % kUnits, channel = c + unit * kElements;
    const bool exists = k + row < p.out.K && channel < p.weight_row;
    const int64_t at = (int64_t{k + row} * p.weight_taps + tap) * p.weight_row + channel;
    ptx::copy_async<16>(swizzled(stage + row * kRowBytes, unit), w + (exists ? at : 0), exists);
  }
  ptx::arrive_after_copies(full);
}

// Units, which follow each other.
__device__ inline void copy_units(char* to, const char* from, int bytes, ptx::Barrier* full) {
  const uint32_t stage = ptx::shared_address(to);
  for (int i = threadIdx.x % 32 * 16; i < bytes; i += 32 * 16) {
    ptx::copy_async<16>(stage + i, from + i, true);
  }
  ptx::arrive_after_copies(full);
}

// Those for planes, one tap after the other.
template <typename T, int kChannels>
__device__ inline void copy_tap_weights(const Params<T>& p, const Shared& shared) {
  constexpr int kBytes = kChannels * kRowBytes;
  Place w;
  for (Walk<T> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    const int c = walk.step.chunk * (kRowBytes / static_cast<int>(sizeof(T)));
#pragma unroll 1
    for (int r = walk.step.plane_h; r < p.R; r += p.h.planes) {
#pragma unroll 1
      for (int s = walk.step.plane_w; s < p.S; s += p.w_axis.planes) {
        ptx::wait(&shared.w_empty[w.stage], w.parity ^ 1);
        copy_matrix(p, shared.weights + w.stage * kBytes, &shared.w_full[w.stage], kBytes, c,
                    r * p.S + s, walk.work.at.k);
        w.advance(p.w_stages);
      }
    }
  }
}

// Those of a step's groups of products, for rows.
template <typename T, int kChannels, Fetch kFetch>
__device__ inline void copy_row_weights(const Params<T>& p, const Shared& shared) {
  constexpr int kGroup = group_products(kFetch);
  constexpr int kUnitBytes = kChannels * kPieceBytes;
  Place w;
  const auto load = [&](auto copy) {
    ptx::wait(&shared.w_empty[w.stage], w.parity ^ 1);
    copy(shared.weights + w.stage * (kGroup * kUnitBytes), &shared.w_full[w.stage]);
    w.advance(p.w_stages);
  };
  for (Walk<T> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    const Step& step = walk.step;
    if constexpr (has_matrix(kFetch)) {
      const int c = step.chunk * (kRowBytes / static_cast<int>(sizeof(T)));
      const int tap = step.plane_h * p.S + step.plane_w;
      load([&](char* to, ptx::Barrier* full) {
        copy_matrix(p, to, full, kGroup * kUnitBytes, c, tap, walk.work.at.k);
      });
      continue;
    }
    // Units follow each other: of all pieces of a step, and of its taps.
    const int tile = walk.work.at.k / kChannels;
    const int first = kFetch == Fetch::kFlat ? 0 : (step.chunk * p.R + step.plane_h) * p.S;
    const int64_t unit = int64_t{tile} * p.pieces * p.R * p.S;
    const char* from = static_cast<const char*>(p.weights) + (unit + first) * kUnitBytes;
    const int rows = kFetch == Fetch::kFlat ? 1 : p.R / p.h.planes;
    const int row = kFetch == Fetch::kFlat ? p.pieces : p.S / p.w_axis.planes;
    const int group = taps_of_group(kFetch, row);
    for (int r = 0; r < rows; ++r) {
      for (int s = 0; s < row; s += group) {
        const int bytes = min(group, row - s) * kUnitBytes;
        load([&](char* to, ptx::Barrier* full) { copy_units(to, from, bytes, full); });
        from += bytes;
      }
    }
  }
}

}  // namespace customconv::implicit_gemm::mma_sync
