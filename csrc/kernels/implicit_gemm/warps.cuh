// The kernels from compute capability 8.0 on: one warpgroup loads, two multiply (mma.sync) and
// store. Threads copy (cp.async) what on Hopper the copy engine brings, to the same places.
#pragma once

#include "kernels/implicit_gemm/epilogue.cuh"
#include "kernels/implicit_gemm/fragments.cuh"
#include "kernels/implicit_gemm/rows.cuh"
#include "kernels/implicit_gemm/splits.cuh"
#include "kernels/ptx/mma.cuh"

namespace customconv::implicit_gemm {

// The address of a unit of 16 bytes in the row of 128 bytes of shared memory at address `row`.
__device__ inline uint32_t swizzled(uint32_t row, int unit) {
  return row + ((unit ^ (row / kRowBytes % 8)) * 16);
}

// Weights by the threads of a warp.
template <typename T>
class ThreadCopies {
 public:
  __device__ void copy_matrix(const Params<T>& p, char* to, ptx::Barrier* full, int bytes, int c,
                              int tap, int k) const {
    constexpr int kUnits = kRowBytes / 16, kElements = 16 / static_cast<int>(sizeof(T));
    const T* w = static_cast<const T*>(p.units);
    const uint32_t stage = ptx::shared_address(to);
    for (int i = threadIdx.x % 32; i < bytes / 16; i += 32) {
      const int row = i / kUnits, unit = i % kUnits, channel = c + unit * kElements;
      const bool exists = k + row < p.out.K && channel < p.weight_row;
      const int64_t at = (int64_t{k + row} * p.weight_taps + tap) * p.weight_row + channel;
      ptx::copy_async<16>(swizzled(stage + row * kRowBytes, unit), w + (exists ? at : 0), exists);
    }
    ptx::arrive_after_copies(full);
  }
  __device__ void copy_units(char* to, const char* from, int bytes, ptx::Barrier* full) const {
    const uint32_t stage = ptx::shared_address(to);
    for (int i = threadIdx.x % 32 * 16; i < bytes; i += 32 * 16) {
      ptx::copy_async<16>(stage + i, from + i, true);
    }
    ptx::arrive_after_copies(full);
  }
};

// Copies the weights for planes, one tap after the other; called by a warp.
template <typename T, int kChannels>
__device__ inline void copy_tap_weights(const Params<T>& p, const Shared& shared) {
  constexpr int kBytes = kChannels * kRowBytes;
  const ThreadCopies<T> copies;
  Place w;
  for (Walk<T> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    const int c = walk.step.chunk * (kRowBytes / static_cast<int>(sizeof(T)));
#pragma unroll 1
    for (int r = walk.step.plane_h; r < p.R; r += p.h.planes) {
#pragma unroll 1
      for (int s = walk.step.plane_w; s < p.S; s += p.w_axis.planes) {
        ptx::wait(&shared.w_empty[w.stage], w.parity ^ 1);
        copies.copy_matrix(p, shared.weights + w.stage * kBytes, &shared.w_full[w.stage], kBytes, c,
                           r * p.S + s, walk.work.at.k);
        w.advance(p.w_stages);
      }
    }
  }
}

// Planes of pixels, 128 bytes of channels each. Called by kRowThreads.
template <typename T, int kChannels>
__device__ inline void copy_planes(const Params<T>& p, const Shared& shared, int thread) {
  constexpr int kUnits = kRowBytes / 16, kElements = 16 / static_cast<int>(sizeof(T));
  const RowSource<T>& s = p.source;
  const bool one_plane = p.h.planes * p.w_axis.planes == 1;
  const auto** from = static_cast<const T**>(shared.copies);  // of every pixel
  Place x;
  for (Walk<T> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    if (walk.is_new_tile() || !one_plane) {
      const Corner at = walk.plane();
      ptx::sync_threads<kRowThreads>(kRowBarrier);  // the list is no longer read
      for (int i = thread; i < s.vectors; i += kRowThreads) {
        int32_t n = i;
        const int w = at.q + s.vectors_in_row.split(n) * p.stride_w;
        const int h = at.p + s.period.split(n) * p.stride_h;
        n += at.n;
        const bool exists = n < s.N && h >= 0 && h < s.H && w >= 0 && w < s.W;
        from[i] = exists ? s.x + n * s.n + h * s.h + w * s.w : nullptr;
      }
      ptx::sync_threads<kRowThreads>(kRowBarrier);
    }
    const uint32_t stage = ptx::shared_address(shared.input + x.stage * p.stage_bytes);
    const int first = walk.work.at.c + walk.step.chunk * (kRowBytes / static_cast<int>(sizeof(T)));
    ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
    for (int i = thread; i < s.vectors * kUnits; i += kRowThreads) {
      const int unit = i % kUnits, channel = first + unit * kElements;
      const T* pixel = from[i / kUnits];
      // Behind the last channel there may be anything.
      const int count = pixel == nullptr ? 0 : max(0, min(kElements, s.C - channel));
      ptx::copy_async_part<16>(swizzled(stage + i / kUnits * kRowBytes, unit),
                               count > 0 ? pixel + channel : s.x,
                               count * static_cast<int>(sizeof(T)));
    }
    ptx::arrive_after_copies(&shared.x_full[x.stage]);
    x.advance(p.x_stages);
  }
}

// The products of a warp's sixteen pixels, or of as many of several blocks.
template <typename T, int kChannels, Fetch kFetch>
class WarpProducts {
 public:
  static constexpr int kUnit = kUnitBytes<kChannels, kFetch>;

  // A lane points at one half of a piece, in a row of one of two blocks of eight channels.
  __device__ explicit WarpProducts(uint32_t weights) {
    const int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8;
    half_ = lane / 8 % 2;
    weights_ = weights + row * kPitch + (kMatrix ? 0 : half_ * kChannels * 16);
  }

  // Adds a product of each block; its weights are at `first`.
  template <int kBlocks>
  __device__ void add_to_blocks(float (&sum)[kBlocks][kChannels / 2],
                                const uint32_t (&operand)[kBlocks][4], int first) const {
    uint32_t from = weights_ + first;
    if constexpr (kMatrix) {
      from = swizzled(weights_ + first / kRowBytes * kRowBytes, first % kRowBytes / 16 + half_);
    }
#pragma unroll
    for (int j = 0; j < kChannels / 16; ++j) {
      uint32_t filters[4];
      ptx::load_matrices(from + j * 16 * kPitch, filters);
      if constexpr (kMatrix && sizeof(T) == 4) {  // units are rounded already
#pragma unroll
        for (uint32_t& bits : filters) bits = ptx::round_tf32(bits);
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        ptx::multiply_add<T>(&sum[b][j * 8], operand[b], filters[0], filters[1]);
        ptx::multiply_add<T>(&sum[b][j * 8 + 4], operand[b], filters[2], filters[3]);
      }
    }
  }
  // Adds kCount products of a block.
  template <int kCount>
  __device__ void add(float (&sum)[kChannels / 2], const uint32_t (&operand)[kCount][4],
                      int first) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      add_to_blocks<1>(reinterpret_cast<float (&)[1][kChannels / 2]>(sum),
                       reinterpret_cast<const uint32_t (&)[1][4]>(operand[i]), first + i * kUnit);
    }
  }
  static __device__ void release(ptx::Barrier* empty) { ptx::arrive(empty); }

 private:
  static constexpr bool kMatrix = has_matrix(kFetch);
  static constexpr int kPitch = kMatrix ? kRowBytes : 16;  // from a channel to the next
  uint32_t weights_;
  int half_;
};

// The sums of one item of work, of planes. `x` and `w` go on from one item to the next.
template <typename T, int kChannels, int kBlocks>
__device__ inline void multiply_copied_planes(const Params<T>& p, const Shared& shared,
                                              const Work& work, int warpgroup, Place& x, Place& w,
                                              float (&sum)[kBlocks][kChannels / 2]) {
  constexpr int kWeightBytes = kChannels * kRowBytes;
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const WarpProducts<T, kChannels, Fetch::kShared> products(ptx::shared_address(shared.weights));
  const int row_bytes = p.h.step * p.pitch * kRowBytes, tap_bytes = p.w_axis.step * kRowBytes;
  // Rows of the instruction that are no pixels read the first one's: behind the plane other threads
  // write.
  const uint32_t end = p.source.vectors * kRowBytes - (p.R - 1) / p.h.planes * row_bytes -
                       (p.S - 1) / p.w_axis.planes * tap_bytes;
  uint32_t pixel[kBlocks];  // whose half of a piece a lane reads
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const uint32_t at = p.block_at[warpgroup * kBlocks + b] +
                        (warp * 2 + lane / 8 % 2) * p.group_bytes + lane % 8 * kRowBytes;
    pixel[b] = ptx::shared_address(shared.input) + (at < end ? at : 0);
#pragma unroll
    for (float& s : sum[b]) s = 0.0f;
  }
  Step step(p, work.first);
#pragma unroll 1
  for (int i = work.first; i < work.last; ++i, step.advance(p)) {
    const int pieces = step.pieces(p);
    int row = x.stage * p.stage_bytes;
    ptx::wait(&shared.x_full[x.stage], x.parity);
#pragma unroll 1
    for (int r = step.plane_h; r < p.R; r += p.h.planes, row += row_bytes) {
      int tap = row;
#pragma unroll 1
      for (int s = step.plane_w; s < p.S; s += p.w_axis.planes, tap += tap_bytes) {
        ptx::wait(&shared.w_full[w.stage], w.parity);
#pragma unroll 2
        for (int piece = 0; piece < pieces; ++piece) {
          uint32_t operand[kBlocks][4];
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) {
            ptx::load_matrices(swizzled(pixel[b] + tap, piece * 2 + lane / 16), operand[b]);
            if constexpr (sizeof(T) == 4) {
#pragma unroll
              for (uint32_t& bits : operand[b]) bits = ptx::round_tf32(bits);
            }
          }
          products.add_to_blocks(sum, operand, w.stage * kWeightBytes + piece * kPieceBytes);
        }
        products.release(&shared.w_empty[w.stage]);
        w.advance(p.w_stages);
      }
    }
    ptx::arrive(&shared.x_empty[x.stage]);
    x.advance(p.x_stages);
  }
}

template <typename T, int kKernel, Fetch kFetch>
__device__ inline void multiply_by_warps(const Params<T>& p, const Shared& shared, int warpgroup) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kWarpgroups = warpgroups(kKind, kFetch);
  constexpr int kBlocks = kKind.blocks() / kWarpgroups;
  constexpr int kChannels = kKind.channels;
  constexpr bool kBoxes = kFetch == Fetch::kShared;
  char* staging = shared.staging + warpgroup * (p.staging_bytes / kWarpgroups);
  Place x, w;
  for (int item = blockIdx.x; item < p.items; item += gridDim.x) {
    const Work work = work_at(p, item, kChannels);
    float sum[kBlocks][kChannels / 2];
    if constexpr (kBoxes) {
      multiply_copied_planes<T, kChannels, kBlocks>(p, shared, work, warpgroup, x, w, sum);
    } else {
      multiply_rows<T, kChannels, kFetch, WarpProducts>(p, shared, work, warpgroup, x, w, sum[0]);
    }
    if (p.splits > 1) {
      store_partial<kKernel>(p, item, warpgroup, sum);
      continue;
    }
    finish<T, kBoxes>(p, work.at, work.at.k, warpgroup * kBlocks, sum);
    if constexpr (!kBoxes) {
      if (p.out.planar) {
        Residual unused(shared, warpgroup, staging);
        store_planes<T, kChannels, false>(p, work.at, sum[0], warpgroup, unused, staging);
        continue;
      }
    }
    store_blocks<T, kBoxes, kChannels>(p, work.at, sum, warpgroup, staging);
  }
}

template <typename T, int kKernel, Fetch kFetch>
__global__ void __launch_bounds__(threads_of(kKernels[kKernel], kFetch), 1)
    convolve_by_warps(const __grid_constant__ Params<T> p) {
#if __CUDA_ARCH__ >= 800
  constexpr int kChannels = kKernels[kKernel].channels;
  constexpr int kWarpgroups = warpgroups(kKernels[kKernel], kFetch);
  extern __shared__ __align__(1024) char memory[];
  const Shared shared(p, memory, /*copied=*/true, kFetch == Fetch::kFlat);
  if (threadIdx.x == 0) {
    ptx::init_barriers(shared.x_full, kMostStages, kRowThreads);
    ptx::init_barriers(shared.x_empty, kMostStages, 128 * kWarpgroups);
    ptx::init_barriers(shared.w_full, kMostStages, 32);
    ptx::init_barriers(shared.w_empty, kMostStages, 128 * kWarpgroups);
  }
  if constexpr (kFetch == Fetch::kFlat) list_flat(p, shared.flat);
  __syncthreads();
  const int warpgroup = threadIdx.x / 128;
  if (warpgroup > 0) {
    multiply_by_warps<T, kKernel, kFetch>(p, shared, warpgroup - 1);
  } else if (threadIdx.x < 32) {
    if constexpr (kFetch == Fetch::kShared) {
      copy_tap_weights<T, kChannels>(p, shared);
    } else {
      load_row_weights<T, kChannels, kFetch, /*kTransposed=*/false, ThreadCopies>(
          p, shared, Walk<T>(p, kChannels));
    }
  } else if constexpr (kFetch == Fetch::kShared) {
    copy_planes<T, kChannels>(p, shared, threadIdx.x - 32);
  } else {
    load_rows<T, kFetch>(p, shared, threadIdx.x - 32, Walk<T>(p, kChannels));
  }
#endif
}

}  // namespace customconv::implicit_gemm
