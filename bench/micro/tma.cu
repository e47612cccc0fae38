// How fast TMA brings rows of a tensor into shared memory: boxes, im2col mode, multicast.
//
// Every block loads stage after stage into a ring and reads nothing. A stage is `pixels` rows of
// `row_bytes`, in `copies` equal parts. The tensor is (N, H, W, C) of 16 bits, and fits the L2
// cache.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/tma.cuh"

using namespace customconv;

namespace {

enum Mode { kBox = 0, kIm2col = 1 };

struct Params {
  CUtensorMap map;
  int mode, stages, stage_bytes, copies, copy_bytes, steps, share;
  int N, H, W, box_w, box_h, chunks;
  long long* clocks;  // of each block
};

__device__ void load_im2col(void* to, const CUtensorMap* map, ptx::Barrier* full, int c, int w,
                            int h, int n, int share) {
  const uint16_t zero = 0;
  if (share > 1) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %7}, %8;" ::"r"(
            ptx::shared_address(to)),
        "l"(map), "r"(ptx::shared_address(full)), "r"(c), "r"(w), "r"(h), "r"(n), "h"(zero),
        "h"(static_cast<uint16_t>((1 << share) - 1))
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %7};" ::"r"(ptx::shared_address(to)),
        "l"(map), "r"(ptx::shared_address(full)), "r"(c), "r"(w), "r"(h), "r"(n), "h"(zero)
        : "memory");
  }
}

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
    ptx::Turn turn;
    // The cluster's blocks load parts of the same stage. Copies follow each other in the tensor.
    const int first = static_cast<int>(blockIdx.x) / p.share * 977;
    for (int i = 0; i < p.steps; ++i) {
      ptx::wait(empty + turn.stage, turn.parity ^ 1);
      ptx::arrive_expecting(full + turn.stage, p.stage_bytes);
      const int c = i % p.chunks * 64;
      const int own = p.copies / p.share;
      for (int j = rank * own; j < (rank + 1) * own; ++j) {
        char* to = stages + turn.stage * p.stage_bytes + j * p.copy_bytes;
        const int number = first + i * p.copies + j;
        int w, h, n;  // of the copy's first pixel
        if (p.mode == kIm2col) {
          n = static_cast<int>(static_cast<int64_t>(number) * p.box_w * p.box_h %
                               (p.N * p.H * p.W));
          w = n % p.W;
          h = n / p.W % p.H;
          n /= p.W * p.H;
        } else {
          const int across = p.W / p.box_w, down = p.H / p.box_h;
          w = number % across * p.box_w;
          h = number / across % down * p.box_h;
          n = number / across / down % p.N;
        }
        if (p.mode == kIm2col) {
          load_im2col(to, &p.map, full + turn.stage, c, w, h, n, p.share);
        } else if (p.share > 1) {
          ptx::multicast_box(static_cast<uint16_t>((1 << p.share) - 1), to, &p.map,
                             full + turn.stage, c, w, h, n);
        } else {
          ptx::copy_box(to, &p.map, full + turn.stage, c, w, h, n);
        }
      }
      turn.advance(p.stages);
    }
  } else if (threadIdx.x == 32) {
    ptx::Turn turn;
    for (int i = 0; i < p.steps; ++i) {
      ptx::wait(full + turn.stage, turn.parity);
      for (int r = 0; r < p.share; ++r) {
        if (p.share > 1) {
          ptx::arrive_cluster(ptx::cluster_address(ptx::shared_address(empty + turn.stage), r));
        } else {
          ptx::arrive(empty + turn.stage);
        }
      }
      turn.advance(p.stages);
    }
    p.clocks[blockIdx.x] = clock64() - begin;
  }
  __syncthreads();
  if (p.share > 1) ptx::sync_cluster();
}

template <typename Function>
Function driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  return reinterpret_cast<Function>(found);
}

}  // namespace

// A stage has box_h * box_w pixels per copy. Returns a CUDA error, or 1000 and the driver's.
extern "C" int measure_loads(const void* x, int N, int H, int W, int C, int channels, int mode,
                             int box_w, int box_h, int copies, int steps, int share, int blocks,
                             long long* clocks, void* stream) {
  Params p{};
  p.mode = mode;
  p.N = N;
  p.H = H;
  p.W = W;
  p.box_w = box_w;
  p.box_h = box_h;
  p.copies = copies;
  p.steps = steps;
  p.share = share;
  p.chunks = C / 64;
  p.copy_bytes = box_w * box_h * channels * 2;
  p.stage_bytes = copies * p.copy_bytes;
  p.stages = 200 * 1024 / p.stage_bytes < 16 ? 200 * 1024 / p.stage_bytes : 16;
  p.clocks = clocks;
  const cuuint64_t sizes[] = {cuuint64_t(C), cuuint64_t(W), cuuint64_t(H), cuuint64_t(N)};
  const cuuint64_t strides[] = {cuuint64_t(C) * 2, cuuint64_t(C) * W * 2,
                                cuuint64_t(C) * W * H * 2};
  const cuuint32_t steps4[] = {1, 1, 1, 1};
  const auto swizzle = channels == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                       : channels == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                        : CU_TENSOR_MAP_SWIZZLE_32B;
  CUresult result;
  if (mode == kIm2col) {
    const int lower[] = {0, 0}, upper[] = {0, 0};
    result = driver_function<decltype(&cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col")(
        &p.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, const_cast<void*>(x), sizes, strides, lower,
        upper, channels, box_w * box_h, steps4, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  } else {
    const cuuint32_t box[] = {cuuint32_t(channels), cuuint32_t(box_w), cuuint32_t(box_h), 1};
    result = driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled")(
        &p.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, const_cast<void*>(x), sizes, strides, box,
        steps4, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  }
  if (result != CUDA_SUCCESS) return 1000 + result;
  const int shared = 1024 + p.stages * p.stage_bytes;
  cudaFuncSetAttribute(load, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(share), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = 64;
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, load, p);
}
