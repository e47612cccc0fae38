// Weight gradients, channels-last, float16: both operands are read in place, from runs of
// positions.
//
// A stage holds a run of positions of the padded input (see mainloop.cu): dy at the positions, with
// zeros in the padding, and x from `halo` positions before the first. The instruction sums over
// positions and transposes both operands; a tap is x some positions further on.
// - 3x3: a block has 64 output channels by 64 input channels by nine taps. Each of three warpgroups
//   has a filter row, whose three taps are the columns of one instruction.
// - 1x1: a block has 128 output channels by 256 input channels, a warpgroup 64 by 256.
// Blocks split the positions; a second kernel adds their sums up in order.
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/common/divide.cuh"
#include "kernels/common/start.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "program.cuh"

using namespace customconv;

namespace {

constexpr int kRowBytes = 128;  // of a position: 64 channels
constexpr int kMostStages = 8;
constexpr int kPositions = 128;  // of a stage

struct Params {
  CUtensorMap x, dy;
  int stages, stage_bytes, dy_bytes, x_slab_bytes;
  int copies, copy_rows;  // of x, for each 64 channels
  int halo, image;
  int row_bytes, tap_bytes;    // of x, from one filter row, and from one tap, to the next
  int tiles_c, splits, steps;  // steps: stages of all positions
  int K, C, taps;
  Divider<int32_t> by_tiles_c, by_tiles_k, by_pitch, by_period;
  float* partial;  // (split, k, tap, c)
};

// kRows: warpgroups have filter rows, and columns are taps; else they have output channels, and
// columns are input channels.
template <int kWarpgroups, int kColumns, bool kRows>
__global__ void __launch_bounds__(128 * (1 + kWarpgroups), 1)
    sum_products(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kSlabsK = kRows ? 1 : kWarpgroups, kSlabsC = kRows ? 1 : kColumns / 64;
  extern __shared__ __align__(1024) char memory[];
  auto* full = reinterpret_cast<ptx::Barrier*>(memory);
  ptx::Barrier* empty = full + kMostStages;
  char* stages = memory + 1024;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (warp == 0) {
    if (lane == 0) ptx::prefetch_map(&p.x);
    if (lane == 1) ptx::prefetch_map(&p.dy);
    if (lane < kMostStages) {
      ptx::init_barrier(full + lane, 1);
      ptx::init_barrier(empty + lane, kWarpgroups);
    }
    ptx::fence_barrier_init();
  }
  ptx::start_dependents();
  __syncthreads();
  int32_t rest = blockIdx.x;
  const int c = p.by_tiles_c.split(rest) * kSlabsC * 64,
            k = p.by_tiles_k.split(rest) * kSlabsK * 64;
  const int split = rest;
  if (warp < 4) {
    if (warp == 0) {
      ptx::Turn turn;
      // Lanes: first the slabs of dy, then the copies of the slabs of x.
      const int of_x = lane - kSlabsK;
      const int slab = lane < kSlabsK ? lane : of_x % kSlabsC;
      const int copy = lane < kSlabsK ? 0 : of_x / kSlabsC;
      // What is behind the last channel is not loaded: it reaches no result.
      const bool is_dy = lane < kSlabsK && k + slab * 64 < p.K;
      const bool is_x = of_x >= 0 && of_x < kSlabsC * p.copies && c + slab * 64 < p.C;
      const int slabs_k = min(kSlabsK, (p.K - k + 63) / 64);
      const int slabs_c = min(kSlabsC, (p.C - c + 63) / 64);
      const int bytes = slabs_k * kPositions * kRowBytes + slabs_c * p.x_slab_bytes;
      const int offset = is_dy ? 0 : copy * p.copy_rows - p.halo;
      const int at = is_dy ? slab * kPositions * kRowBytes
                           : p.dy_bytes + slab * p.x_slab_bytes + copy * p.copy_rows * kRowBytes;
      for (int i = split; i < p.steps; i += p.splits) {
        int32_t n = i * kPositions + offset + p.image;  // one image ahead: nothing is negative
        const int w = p.by_pitch.split(n), h = p.by_period.split(n);
        ptx::wait(empty + turn.stage, turn.parity ^ 1);
        if (lane == 0) ptx::arrive_expecting(full + turn.stage, bytes);
        __syncwarp();
        char* to = stages + turn.stage * p.stage_bytes + at;
        if (is_dy) ptx::copy_im2col(to, &p.dy, full + turn.stage, k + slab * 64, w, h, n - 1, 0, 0);
        if (is_x) ptx::copy_im2col(to, &p.x, full + turn.stage, c + slab * 64, w, h, n - 1, 0, 0);
        turn.advance(p.stages);
      }
    }
  } else {
    const int group = warp / 4 - 1;
    const bool tells = threadIdx.x % 128 == 0;
    const uint32_t first = ptx::shared_address(stages);
    const uint64_t dy =
        ptx::describe_transposed(first + (kRows ? 0 : group * kPositions * kRowBytes), 0);
    const uint64_t x =
        ptx::describe_transposed(first + p.dy_bytes + (kRows ? group * p.row_bytes : 0),
                                 kRows ? p.tap_bytes : p.x_slab_bytes);
    float sum[kColumns / 2] = {};
    ptx::Turn turn;
    int read = -1;
    for (int i = split; i < p.steps; i += p.splits) {
      ptx::wait(full + turn.stage, turn.parity);
      const uint32_t stage = turn.stage * p.stage_bytes;
      ptx::begin_products();
#pragma unroll
      for (int step = 0; step < kPositions / 16; ++step) {
        const uint32_t at = stage + step * 16 * kRowBytes;
        ptx::TransposedProduct<__half, kColumns>::add(sum, ptx::advance(dy, at),
                                                      ptx::advance(x, at));
      }
      ptx::commit_products();
      ptx::await_products<1>();
      if (tells && read >= 0) ptx::arrive(empty + read);
      read = turn.stage;
      turn.advance(p.stages);
    }
    ptx::await_products<0>();
    const int own_k = k + (kRows ? 0 : group * 64) + warp % 4 * 16 + lane / 4;
    float* to = p.partial + static_cast<int64_t>(split) * p.K * p.taps * p.C;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int tap = kRows ? group * 3 + j / 8 : 0;
      const int own_c = c + (kRows ? j % 8 : j) * 8 + lane % 4 * 2;
      if (own_c >= p.C) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = own_k + half * 8;
        if (row >= p.K) continue;
        *reinterpret_cast<float2*>(to + (static_cast<int64_t>(row) * p.taps + tap) * p.C + own_c) =
            make_float2(sum[j * 4 + half * 2], sum[j * 4 + half * 2 + 1]);
      }
    }
  }
#endif
}

// Adds up the splits of four elements by eight threads: each adds every eighth, then the first adds
// theirs in order.
__global__ void __launch_bounds__(256)
    add_splits(const float* __restrict__ partial, __half* __restrict__ dw, int count, int splits) {
  __shared__ float4 part[7][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32;
  const auto add = [](float4& sum, const float4& v) {
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
  };
  ptx::await_dependency();
  for (int first = blockIdx.x * 128; first < count; first += gridDim.x * 128) {
    const int i = first + lane * 4;
    float4 sum = make_float4(0, 0, 0, 0);
    if (i < count) {
#pragma unroll 4
      for (int s = row; s < splits; s += 8) {
        add(sum, *reinterpret_cast<const float4*>(partial + static_cast<int64_t>(s) * count + i));
      }
    }
    if (row > 0) part[row - 1][lane] = sum;
    __syncthreads();
    if (row == 0 && i < count) {
#pragma unroll
      for (int j = 0; j < 7; ++j) add(sum, part[j][lane]);
      *reinterpret_cast<__half2*>(dw + i) = __floats2half2_rn(sum.x, sum.y);
      *reinterpret_cast<__half2*>(dw + i + 2) = __floats2half2_rn(sum.z, sum.w);
    }
    __syncthreads();
  }
}

// A tensor whose grid has more columns and rows than its images.
CUtensorMap map_grid(const void* data, int N, int H, int W, int C, int more_h, int more_w,
                     int pixels) {
  micro::Im2col from{N, H, W, C, {0, 0}, {more_w, more_h}};
  from.channels = 64;
  from.pixels = pixels;
  return micro::map_im2col<__half>(data, from);
}

template <int kWarpgroups, int kColumns, bool kRows>
int launch(Params& p, int blocks, cudaStream_t stream) {
  p.stages = std::min((227 * 1024 - 1024) / p.stage_bytes, kMostStages);
  if (p.stages < 2) return micro::kDoesNotFit;
  start("weight gradients",
        {blocks, 128 * (1 + kWarpgroups), 1024 + p.stages * p.stage_bytes, stream},
        sum_products<kWarpgroups, kColumns, kRows>, p);
  return 0;
}

int run(const void* x, const void* dy, void* dw, float* partial, int N, int C, int H, int W, int K,
        int R, int pad, int dilation, int splits, cudaStream_t stream) {
  if ((R != 1 && R != 3) || C % 8 != 0 || K % 8 != 0) return micro::kDoesNotFit;
  const int P = H + 2 * pad - dilation * (R - 1), Q = W + 2 * pad - dilation * (R - 1);
  const int pitch = W + pad, period = H + pad;
  if (P > period || Q > pitch) return micro::kDoesNotFit;
  const bool rows = R == 3;
  const int slabs_k = rows ? 1 : 2, slabs_c = rows ? 1 : 4;
  const int span = dilation * (R - 1) * (pitch + 1);
  Params p{};
  p.copies = (kPositions + span + 255) / 256;
  p.copy_rows = ((kPositions + span + p.copies - 1) / p.copies + 7) / 8 * 8;
  p.x_slab_bytes = p.copies * p.copy_rows * kRowBytes;
  p.dy_bytes = slabs_k * kPositions * kRowBytes;
  p.stage_bytes = p.dy_bytes + slabs_c * p.x_slab_bytes;
  p.halo = pad * (pitch + 1);
  p.image = pitch * period;
  p.row_bytes = dilation * pitch * kRowBytes;
  p.tap_bytes = dilation * kRowBytes;
  p.steps = (N * p.image + kPositions - 1) / kPositions;
  p.splits = std::min(splits, p.steps);
  p.K = K;
  p.C = C;
  p.taps = R * R;
  p.partial = partial;
  const int tiles_k = (K + slabs_k * 64 - 1) / (slabs_k * 64);
  p.tiles_c = (C + slabs_c * 64 - 1) / (slabs_c * 64);
  p.by_tiles_c = Divider<int32_t>(p.tiles_c);
  p.by_tiles_k = Divider<int32_t>(tiles_k);
  p.by_pitch = Divider<int32_t>(pitch);
  p.by_period = Divider<int32_t>(period);
  p.x = map_grid(x, N, H, W, C, pad, pad, p.copy_rows);
  p.dy = map_grid(dy, N, P, Q, K, period - P, pitch - Q, kPositions);
  const int blocks = tiles_k * p.tiles_c * p.splits;
  const int status =
      rows ? launch<3, 192, true>(p, blocks, stream) : launch<2, 256, false>(p, blocks, stream);
  if (status != 0) return status;
  const int count = K * C * R * R;
  start("splits", {std::min((count + 127) / 128, 8 * 132), 256, 0, stream, /*early=*/true},
        add_splits, static_cast<const float*>(partial), static_cast<__half*>(dw), count, p.splits);
  return 0;
}

}  // namespace

// Stride 1, 1x1 or 3x3; dw is (K, R, S, C). `partial`: `splits` times dw in float32.
extern "C" int convolve_wgrad(const void* x, const void* dy, void* dw, float* partial, int N, int C,
                              int H, int W, int K, int R, int pad, int dilation, int splits,
                              void* stream) {
  return micro::guarded([&] {
    return run(x, dy, dw, partial, N, C, H, W, K, R, pad, dilation, splits,
               static_cast<cudaStream_t>(stream));
  });
}
