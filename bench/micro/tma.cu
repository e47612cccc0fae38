// How fast TMA brings rows of a tensor into shared memory: boxes, im2col mode, multicast.
//
// Every block loads stage after stage into a ring and reads nothing. A stage is `pixels` rows of
// `row_bytes`, in `copies` equal parts. The tensor is (N, H, W, C) of 16 bits, and fits the L2
// cache.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/common/map.cuh"
#include "kernels/common/start.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/im2col.cuh"
#include "kernels/ptx/tma.cuh"
#include "program.cuh"

using namespace customconv;

namespace {

enum Mode { kBox = 0, kIm2col = 1 };

// As ptx::tma_load_im2col without offsets, into every thread block of the cluster that `blocks` has
// a bit for.
__device__ void multicast_im2col(uint16_t blocks, void* to, const CUtensorMap* map,
                                 ptx::Barrier* full, int c, int w, int h, int n) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], {0, 0}, %7;" ::"r"(
          ptx::shared_address(to)),
      "l"(map), "r"(ptx::shared_address(full)), "r"(c), "r"(w), "r"(h), "r"(n), "h"(blocks)
      : "memory");
}

// As ptx::tma_load, into the same thread blocks.
__device__ void multicast_box(uint16_t blocks, void* to, const CUtensorMap* map, ptx::Barrier* full,
                              int c, int w, int h, int n) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(ptx::shared_address(to)),
      "l"(map), "r"(ptx::shared_address(full)), "r"(c), "r"(w), "r"(h), "r"(n), "h"(blocks)
      : "memory");
}

struct Params {
  CUtensorMap map;
  int mode, stages, stage_bytes, copies, copy_bytes, steps, share;
  int N, H, W, box_w, box_h, channels, chunks;
  long long* clocks;  // of each block
};

__global__ void __launch_bounds__(64) load(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char memory[];
  auto* full = reinterpret_cast<ptx::Barrier*>(memory);
  ptx::Barrier* empty = full + 16;
  char* stages = memory + 1024;
  const int rank = p.share > 1 ? ptx::cluster_rank() : 0;
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      ptx::init_barrier(full + i, 1);
      ptx::init_barrier(empty + i, p.share);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();
  if (p.share > 1) ptx::meet_cluster();
  const long long begin = clock64();
  if (threadIdx.x == 0) {
    ptx::PipelineState state;
    // The cluster's blocks load parts of the same stage. Copies follow each other in the tensor;
    // where they are is added up, because divisions would take longer than a copy.
    int n = static_cast<int>(blockIdx.x) / p.share % p.N, h = 0, w = 0, c = 0;
    const int across = p.mode == kIm2col ? p.box_w * p.box_h : p.box_w;
    const int down = p.mode == kIm2col ? 1 : p.box_h;
    const auto advance = [&](int copies) {
      w += copies * across;
      for (; w >= p.W; w -= p.W) h += down;
      for (; h >= p.H; h -= p.H) ++n;
      while (n >= p.N) n -= p.N;
    };
    const auto all = static_cast<uint16_t>((1 << p.share) - 1);  // blocks of the cluster
    for (int i = 0; i < p.steps; ++i) {
      ptx::wait(empty + state.stage, state.parity ^ 1);
      ptx::arrive_and_expect_tx(full + state.stage, p.stage_bytes);
      const int own = p.copies / p.share;
      char* to = stages + state.stage * p.stage_bytes + rank * own * p.copy_bytes;
      advance(rank * own);
      for (int j = 0; j < own; ++j, to += p.copy_bytes, advance(1)) {
        if (p.mode == kIm2col) {
          if (p.share > 1) {
            multicast_im2col(all, to, &p.map, full + state.stage, c, w, h, n);
          } else {
            ptx::tma_load_im2col(to, &p.map, full + state.stage, c, w, h, n, 0, 0);
          }
        } else {
          if (p.share > 1) {
            multicast_box(all, to, &p.map, full + state.stage, c, w, h, n);
          } else {
            ptx::tma_load(to, &p.map, full + state.stage, c, w, h, n);
          }
        }
      }
      advance((p.share - 1 - rank) * own);
      c += p.channels;
      if (c >= p.channels * p.chunks) c = 0;
      state.advance(p.stages);
    }
  } else if (threadIdx.x == 32) {
    ptx::PipelineState state;
    for (int i = 0; i < p.steps; ++i) {
      ptx::wait(full + state.stage, state.parity);
      for (int r = 0; r < p.share; ++r) {
        if (p.share > 1) {
          ptx::arrive_cluster(ptx::cluster_address(ptx::shared_address(empty + state.stage), r));
        } else {
          ptx::arrive(empty + state.stage);
        }
      }
      state.advance(p.stages);
    }
    p.clocks[blockIdx.x] = clock64() - begin;
  }
  __syncthreads();
  if (p.share > 1) ptx::sync_cluster();
}

}  // namespace

// A stage has box_h * box_w pixels per copy.
extern "C" int measure_loads(const void* x, int N, int H, int W, int C, int channels, int mode,
                             int box_w, int box_h, int copies, int steps, int share, int blocks,
                             long long* clocks, void* stream) {
  return micro::guarded([&] {
    Params p{};
    p.mode = mode;
    p.N = N;
    p.H = H;
    p.W = W;
    p.box_w = box_w;
    p.box_h = box_h;
    p.channels = channels;
    p.copies = copies;
    p.steps = steps;
    p.share = share;
    p.chunks = (C + channels - 1) / channels;
    p.copy_bytes = box_w * box_h * channels * 2;
    p.stage_bytes = copies * p.copy_bytes;
    p.stages = std::min(200 * 1024 / p.stage_bytes, 16);
    p.clocks = clocks;
    const auto swizzle = channels == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                         : channels == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                          : CU_TENSOR_MAP_SWIZZLE_32B;
    if (mode == kIm2col) {
      const cuuint64_t w = W, h = H, row = C * 2;
      const Im2colBox box{{0, 0}, {0, 0}, {1, 1}, channels, box_w * box_h};
      p.map = make_im2col_map<4>(x, kMapType<__half>, {cuuint64_t(C), w, h, cuuint64_t(N)},
                                 {row, row * w, row * w * h}, box, swizzle);
    } else {
      const cuuint64_t c = C, w = W, h = H, n = N;
      const Boxes<4> boxes{{c, w, h, n},
                           {c * 2, c * w * 2, c * w * h * 2},
                           {cuuint32_t(channels), cuuint32_t(box_w), cuuint32_t(box_h), 1},
                           {1, 1, 1, 1}};
      p.map = make_map(x, kMapType<__half>, boxes, swizzle);
    }
    start("loads",
          {blocks, 64, 1024 + p.stages * p.stage_bytes, static_cast<cudaStream_t>(stream), false,
           share},
          load, p);
    return 0;
  });
}
