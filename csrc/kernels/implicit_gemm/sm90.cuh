// The kernel for Hopper: one warpgroup loads, two multiply (wgmma) from where the loads put it.
#pragma once

#include "kernels/implicit_gemm/epilogue.cuh"
#include "kernels/implicit_gemm/gather.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm {

template <typename T>
struct Params {
  CUtensorMap x, w, y;
  Output<T> out;
  Gather<T> gather;
  int R, S;
  Axis h, w_axis;
  int stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w;
  int rows, columns, images;  // of a tile
  int pitch, plane_rows;
  bool lines;
  int x_stages, w_stages;
  bool boxed_out;
  int plane_bytes, boxed_bytes;
  int slab_bytes, staging_bytes;   // of a warpgroup's stores in boxes; of all
  uint32_t block_at[kMostBlocks];  // in a plane, of a block's first pixel
  uint32_t group_bytes;            // from eight of its pixels to the next eight
  int items, steps, splits;
  int chunks, last_products;  // of the last chunk, which may hold few channels
  Divider<int32_t> tiles_k, tiles_q, tiles_p, tiles_n;
  float* partial;
};

// What a thread block does next: a tile, and of its sum the steps [first, last).
struct Work {
  Corner at;
  int tile, split;
  int first, last;
};

template <typename T>
__device__ inline Work work_at(const Params<T>& p, int item, int columns) {
  Work work;
  int32_t rest = item;
  work.at.k = p.tiles_k.split(rest) * columns;
  work.at.q = p.tiles_q.split(rest) * p.columns;
  work.at.p = p.tiles_p.split(rest) * p.rows;
  work.at.n = p.tiles_n.split(rest) * p.images;
  work.split = rest;
  work.tile = item - rest * (p.items / p.splits);
  work.first = static_cast<int>(int64_t{p.steps} * work.split / p.splits);
  work.last = static_cast<int>(int64_t{p.steps} * (work.split + 1) / p.splits);
  return work;
}

// A position in a ring of stages, and the parity of the round it is in.
struct Place {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A step: a chunk of channels of one plane.
struct Step {
  int chunk, plane_h, plane_w;
  template <typename T>
  __device__ Step(const Params<T>& p, int index) {
    plane_w = index % p.w_axis.planes;
    plane_h = index / p.w_axis.planes % p.h.planes;
    chunk = index / (p.w_axis.planes * p.h.planes);
  }
  template <typename T>
  __device__ void advance(const Params<T>& p) {
    if (++plane_w < p.w_axis.planes) return;
    plane_w = 0;
    if (++plane_h < p.h.planes) return;
    plane_h = 0;
    ++chunk;
  }
};

// Whether a tile's channels are whole slabs.
template <typename T>
constexpr bool stores_boxes(int columns) {
  return columns * static_cast<int>(sizeof(T)) % kRowBytes == 0;
}

struct Shared {
  char* planes;
  char* weights;
  char* staging;
  ptx::Barrier* x_full;
  ptx::Barrier* x_empty;
  ptx::Barrier* w_full;
  ptx::Barrier* w_empty;
};

// One thread starts all copies of the weights, and of the input where that comes in boxes.
template <typename T, int kColumns, bool kGathered>
__device__ inline void load_boxes(const Params<T>& p, const Shared& shared) {
  constexpr int kChunk = kRowBytes / static_cast<int>(sizeof(T));
  Place x, w;
  for (int item = blockIdx.x; item < p.items; item += gridDim.x) {
    const Work work = work_at(p, item, kColumns);
    Step step(p, work.first);
    for (int i = work.first; i < work.last; ++i, step.advance(p)) {
      if constexpr (!kGathered) {
        ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
        ptx::arrive_expecting(&shared.x_full[x.stage], p.boxed_bytes);
        ptx::copy_box(shared.planes + x.stage * p.plane_bytes, &p.x, &shared.x_full[x.stage],
                      step.chunk * kChunk,
                      work.at.q * p.stride_w - p.pad_w + step.plane_w * p.dilation_w,
                      work.at.p * p.stride_h - p.pad_h + step.plane_h * p.dilation_h, work.at.n);
        x.advance(p.x_stages);
      }
      for (int r = step.plane_h; r < p.R; r += p.h.planes) {
        for (int s = step.plane_w; s < p.S; s += p.w_axis.planes) {
          ptx::wait(&shared.w_empty[w.stage], w.parity ^ 1);
          ptx::arrive_expecting(&shared.w_full[w.stage], kColumns * kRowBytes);
          ptx::copy_box(shared.weights + w.stage * kColumns * kRowBytes, &p.w,
                        &shared.w_full[w.stage], step.chunk * kChunk, r * p.S + s, work.at.k);
          w.advance(p.w_stages);
        }
      }
    }
  }
}

template <typename T, int kColumns>
__device__ inline void gather_planes(const Params<T>& p, const Shared& shared, int thread) {
  Place x;
  for (int item = blockIdx.x; item < p.items; item += gridDim.x) {
    const Work work = work_at(p, item, kColumns);
    Step step(p, work.first);
    for (int i = work.first; i < work.last; ++i, step.advance(p)) {
      ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
      gather_plane(p.gather, work.at.n,
                   work.at.p * p.stride_h - p.pad_h + step.plane_h * p.dilation_h,
                   work.at.q * p.stride_w - p.pad_w + step.plane_w * p.dilation_w, step.chunk,
                   shared.planes + x.stage * p.plane_bytes, thread);
      ptx::fence_shared_writes();
      ptx::arrive(&shared.x_full[x.stage]);
      x.advance(p.x_stages);
    }
  }
}

template <typename T, int kColumns, int kBlocks>
__device__ inline void multiply(const Params<T>& p, const Shared& shared, int warpgroup) {
  constexpr int kSums = kColumns / 2;
  constexpr int kProducts = kRowBytes / 32;
  const bool leader = threadIdx.x % 128 == 0;
  Place x, w;
  for (int item = blockIdx.x; item < p.items; item += gridDim.x) {
    const Work work = work_at(p, item, kColumns);
    Step step(p, work.first);
    float sum[kBlocks][kSums];
    int accumulate = 0;
    ptx::Barrier* w_done = nullptr;  // what the products under way still read
    ptx::Barrier* x_done = nullptr;
    for (int i = work.first; i < work.last; ++i, step.advance(p)) {
      ptx::wait(&shared.x_full[x.stage], x.parity);
      const uint32_t plane = ptx::shared_address(shared.planes + x.stage * p.plane_bytes);
      const int products = step.chunk + 1 == p.chunks ? p.last_products : kProducts;
      uint32_t row = 0;
      for (int r = step.plane_h; r < p.R; r += p.h.planes, row += p.h.step * p.pitch * kRowBytes) {
        uint32_t tap = row;
        for (int s = step.plane_w; s < p.S;
             s += p.w_axis.planes, tap += p.w_axis.step * kRowBytes) {
          ptx::wait(&shared.w_full[w.stage], w.parity);
          const uint32_t filters =
              ptx::shared_address(shared.weights + w.stage * kColumns * kRowBytes);
          ptx::begin_products();
#pragma unroll
          for (int j = 0; j < kProducts; ++j) {
            if (j == products) break;
#pragma unroll
            for (int b = 0; b < kBlocks; ++b) {
              const uint32_t pixels = plane + tap + p.block_at[warpgroup * kBlocks + b];
              ptx::Product<T, kColumns>::add(
                  sum[b], ptx::describe_rows(pixels + j * 32, p.group_bytes),
                  ptx::describe_rows(filters + j * 32, 8 * kRowBytes), accumulate);
            }
            accumulate = 1;
          }
          ptx::commit_products();
          ptx::await_products<1>();
          if (leader) {
            if (w_done != nullptr) ptx::arrive(w_done);
            if (x_done != nullptr) ptx::arrive(x_done);
          }
          w_done = &shared.w_empty[w.stage];
          x_done = nullptr;
          w.advance(p.w_stages);
        }
      }
      x_done = &shared.x_empty[x.stage];
      x.advance(p.x_stages);
    }
    ptx::await_products<0>();
    if (leader) {
      ptx::arrive(w_done);
      ptx::arrive(x_done);
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int block = warpgroup * kBlocks + b;
      if (p.splits > 1) {
        const int64_t place = int64_t{item} * (kBlocks * kWarpgroups) + block;
        float* to = p.partial + place * (kBlockPixels * kColumns) + threadIdx.x % 128;
#pragma unroll
        for (int j = 0; j < kSums; ++j) to[j * 128] = sum[b][j];
      } else {
        add_bias<T, kColumns>(p.out, work.at, sum[b]);
        if (!p.boxed_out) {
          store_block<T, kColumns>(p.out, work.at, sum[b], block,
                                   shared.staging + warpgroup * 4 * staging_bytes<T>(kColumns));
        }
      }
    }
    if constexpr (stores_boxes<T>(kColumns)) {
      if (p.boxed_out) {
        store_boxes<T, kColumns, kBlocks>(p.out, &p.y, work.at, sum, warpgroup,
                                          shared.staging + warpgroup * p.slab_bytes);
      }
    }
  }
  if (p.boxed_out && leader) ptx::await_store_reads();
}

template <typename T, int kColumns, int kBlocks, bool kGathered>
__global__ void __launch_bounds__(kThreads, 1) convolve(const __grid_constant__ Params<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  Shared shared;
  shared.planes = memory;
  shared.staging = shared.planes + p.x_stages * p.plane_bytes;
  shared.weights = shared.staging + p.staging_bytes;
  shared.x_full =
      reinterpret_cast<ptx::Barrier*>(shared.weights + p.w_stages * kColumns * kRowBytes);
  shared.x_empty = shared.x_full + kMostStages;
  shared.w_full = shared.x_empty + kMostStages;
  shared.w_empty = shared.w_full + kMostStages;

  if (threadIdx.x == 0) {
    for (int i = 0; i < p.x_stages; ++i) {
      ptx::init_barrier(&shared.x_full[i], kGathered ? kGatherThreads : 1);
      ptx::init_barrier(&shared.x_empty[i], kWarpgroups);
    }
    for (int i = 0; i < p.w_stages; ++i) {
      ptx::init_barrier(&shared.w_full[i], 1);
      ptx::init_barrier(&shared.w_empty[i], kWarpgroups);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();
  const int warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) {
    ptx::give_registers<kGathered ? 88 : 40>();
    if (threadIdx.x == 0) {
      load_boxes<T, kColumns, kGathered>(p, shared);
    } else if (kGathered && threadIdx.x >= 32) {
      gather_planes<T, kColumns>(p, shared, threadIdx.x - 32);
    }
  } else {
    ptx::take_registers<kGathered ? 208 : 232>();
    multiply<T, kColumns, kBlocks>(p, shared, warpgroup - 1);
  }
#endif
}

// Adds up the parts of a tile's sums, always in the same order, and stores them.
template <typename T, int kColumns>
__global__ void __launch_bounds__(128) add_splits(const __grid_constant__ Params<T> p, int blocks) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  constexpr int kSums = kColumns / 2;
  const int tiles = p.items / p.splits;
  const int tile = blockIdx.x / blocks, block = blockIdx.x % blocks;
  float sum[kSums] = {};
  for (int split = 0; split < p.splits; ++split) {
    const int64_t place = (int64_t{split} * tiles + tile) * blocks + block;
    const float* from = p.partial + place * (kBlockPixels * kColumns) + threadIdx.x;
#pragma unroll
    for (int j = 0; j < kSums; ++j) sum[j] += from[j * 128];
  }
  const Corner at = work_at(p, tile, kColumns).at;
  add_bias<T, kColumns>(p.out, at, sum);
  store_block<T, kColumns>(p.out, at, sum, block, memory);
#endif
}

}  // namespace customconv::implicit_gemm
