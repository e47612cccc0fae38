// A main loop for forward convolutions, channels-last, float16, on one loader: TMA's im2col mode.
//
// A tile is a run of `kM` positions by `kN` output channels. Positions are those of a grid of
// `pitch` columns and `period` rows an image, as im2col mode traverses it. There are two grids:
// - dense: the output's pixels. A stage holds one tap of a tile, so it is as long as the tile.
// - padded: the input's pixels with the padding behind each row and each image. A stage holds all
//   taps: a tap is the same stage some rows further on. Positions in the padding are not stored.
//
// A cluster of two blocks may share pixels (for different output channels) or weights (for
// different pixels): each loads half of them for both.
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/common/divide.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

using namespace customconv;

namespace {

using T = __half;
constexpr int kRowBytes = 128;  // of a position: 64 channels
constexpr int kMostStages = 16;

struct Params {
  CUtensorMap x, w, y;
  T* out;
  int N, P, Q, K, R, S;
  int pitch, period, images;  // of the grid
  int positions, halo;        // halo: positions of a stage before the tile's first
  int step_h, step_w;         // padded grid: rows of a stage from one tap to the next
  int tap_h, tap_w;           // dense grid: offsets from one tap to the next
  int stride, pad;            // dense grid: from positions to the input's pixels
  int chunks, groups;         // stages of a tile are (chunk, group of taps)
  int taps_h, taps_w;         // of a group
  int copies, copy_rows, copy_rank;
  int x_stages, w_stages, x_bytes;
  int tiles_m, tiles_k, items, share_x, share_w;
  bool dense;
  Divider<int32_t> by_pitch, by_period, by_tiles_k, by_S;
  long long* stamps;
};

__device__ inline long long now() {
  long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__device__ inline void load_im2col(void* to, const CUtensorMap* map, ptx::Barrier* full, int c,
                                   int w, int h, int n, int offset_w, int offset_h) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(ptx::shared_address(to)),
      "l"(map), "r"(ptx::shared_address(full)), "r"(c), "r"(w), "r"(h), "r"(n),
      "h"(static_cast<uint16_t>(offset_w)), "h"(static_cast<uint16_t>(offset_h))
      : "memory");
}
__device__ inline void multicast_im2col(void* to, const CUtensorMap* map, ptx::Barrier* full, int c,
                                        int w, int h, int n, int offset_w, int offset_h) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(
          ptx::shared_address(to)),
      "l"(map), "r"(ptx::shared_address(full)), "r"(c), "r"(w), "r"(h), "r"(n),
      "h"(static_cast<uint16_t>(offset_w)), "h"(static_cast<uint16_t>(offset_h)),
      "h"(static_cast<uint16_t>(3))
      : "memory");
}
__device__ inline void store_matrix_box(const CUtensorMap* map, const void* from, int c, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(ptx::shared_address(from)), "r"(c), "r"(row)
      : "memory");
}

__device__ inline uint32_t pack_pair(float a, float b) {
  const __half2 pair = __floats2half2_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

struct Tile {
  int position, k;
};
template <int kM, int kN>
__device__ inline Tile tile_at(const Params& p, int item, int rank) {
  int32_t m = item;
  const int k = p.by_tiles_k.split(m);
  if (p.share_x > 1) return {m * kM, (k * 2 + rank) * kN};
  if (p.share_w > 1) return {(m * 2 + rank) * kM, k * kN};
  return {m * kM, k * kN};
}

// Where a position is in the grid; `pixel` is its number among the output's, or -1.
struct Place {
  int n, row, column;
  __device__ Place(const Params& p, int position) {
    int32_t rest = position;
    column = p.by_pitch.split(rest);
    row = p.by_period.split(rest);
    n = rest;
  }
  __device__ int pixel(const Params& p) const {
    return n < p.N && row < p.P && column < p.Q ? (n * p.P + row) * p.Q + column : -1;
  }
};

template <int kWarpgroups, int kBlocks, int kN>
__global__ void __launch_bounds__(128 * (1 + kWarpgroups), 1)
    convolve(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kM = kWarpgroups * kBlocks * 64;
  constexpr int kWeightBytes = kN * kRowBytes;
  constexpr int kSlabs =
      kN < 128 ? 1 : 2;  // of 64 positions by 64 channels that a warpgroup stages
  extern __shared__ __align__(1024) char memory[];
  auto* x_full = reinterpret_cast<ptx::Barrier*>(memory);
  ptx::Barrier* x_empty = x_full + kMostStages;
  ptx::Barrier* w_full = x_empty + kMostStages;
  ptx::Barrier* w_empty = w_full + kMostStages;
  char* staging = memory + 1024;
  char* weights = staging + kWarpgroups * kSlabs * 64 * kRowBytes;
  char* input = weights + p.w_stages * kWeightBytes;

  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int warpgroup = warp / 4;
  const bool stamped = p.stamps != nullptr && blockIdx.x == 0 && threadIdx.x == 128;
  if (stamped) p.stamps[0] = now();
  const int cluster = p.share_x * p.share_w;
  const int rank = cluster > 1 ? ptx::cluster_rank() : 0;
  if (warp == 0 && ptx::elect_one()) {
    ptx::prefetch_map(&p.x);
    ptx::prefetch_map(&p.w);
    for (int i = 0; i < p.x_stages; ++i) {
      ptx::init_barrier(x_full + i, 1);
      ptx::init_barrier(x_empty + i, kWarpgroups * p.share_x);
    }
    for (int i = 0; i < p.w_stages; ++i) {
      ptx::init_barrier(w_full + i, 1);
      ptx::init_barrier(w_empty + i, kWarpgroups * p.share_w);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();
  if (cluster > 1) ptx::meet_cluster();
  const int first = static_cast<int>(blockIdx.x) / cluster;
  const int stride = static_cast<int>(gridDim.x) / cluster;

  if (warpgroup == 0) {
    ptx::give_registers<40>();
    if (warp == 0) {  // pixels
      ptx::Turn x;
      for (int item = first; item < p.items; item += stride) {
        const Tile tile = tile_at<kM, kN>(p, item, rank);
        // One image ahead, so that nothing is negative.
        const int begin =
            tile.position - p.halo + p.pitch * p.period + (lane + rank * p.copy_rank) * p.copy_rows;
        const Place place(p, begin);
        const int column = place.column * p.stride - p.pad, row = place.row * p.stride - p.pad;
        for (int c = 0; c < p.chunks; ++c) {
          for (int group = 0; group < p.groups; ++group) {
            int32_t r = group;
            const int s = p.by_S.split(r);
            ptx::wait(x_empty + x.stage, x.parity ^ 1);
            if (lane == 0) ptx::arrive_expecting(x_full + x.stage, p.x_bytes);
            __syncwarp();
            if (lane < p.copies) {
              char* to = input + x.stage * p.x_bytes +
                         (lane + rank * p.copy_rank) * p.copy_rows * kRowBytes;
              if (p.share_x > 1) {
                multicast_im2col(to, &p.x, x_full + x.stage, c * 64, column, row, place.n - 1,
                                 s * p.tap_w, r * p.tap_h);
              } else {
                load_im2col(to, &p.x, x_full + x.stage, c * 64, column, row, place.n - 1,
                            s * p.tap_w, r * p.tap_h);
              }
            }
            x.advance(p.x_stages);
          }
        }
      }
    } else if (warp == 1) {  // weights
      ptx::Turn w;
      const int taps = p.R * p.S;
      for (int item = first; item < p.items; item += stride) {
        const Tile tile = tile_at<kM, kN>(p, item, rank);
        for (int c = 0; c < p.chunks; ++c) {
          for (int tap = 0; tap < taps; ++tap) {
            ptx::wait(w_empty + w.stage, w.parity ^ 1);
            if (ptx::elect_one()) {
              char* to = weights + w.stage * kWeightBytes;
              ptx::arrive_expecting(w_full + w.stage, kWeightBytes);
              if (p.share_w > 1) {
                constexpr int kHalf = kN / 2;
                ptx::multicast_box(3, to + rank * kHalf * kRowBytes, &p.w, w_full + w.stage, c * 64,
                                   tap, tile.k + rank * kHalf);
              } else {
                ptx::copy_box(to, &p.w, w_full + w.stage, c * 64, tap, tile.k);
              }
            }
            w.advance(p.w_stages);
          }
        }
      }
    }
  } else {
    ptx::take_registers<kWarpgroups == 3 ? 152 : 232>();
    const int group = warpgroup - 1, thread = threadIdx.x % 128;
    const bool leads = warp % 4 == 0 && ptx::elect_one();
    const bool tells_x = thread < p.share_x, tells_w = thread < p.share_w;
    const auto remote = [&](ptx::Barrier* barrier, int share) {
      const uint32_t own = ptx::shared_address(barrier);
      return share > 1 ? ptx::cluster_address(own, thread & 1) : own;
    };
    const uint32_t x_told = remote(x_empty, p.share_x), w_told = remote(w_empty, p.share_w);
    const uint64_t pixels = ptx::describe_rows(ptx::shared_address(input), 8 * kRowBytes);
    const uint64_t filters = ptx::describe_rows(ptx::shared_address(weights), 8 * kRowBytes);
    const int own_row = group * kBlocks * 64;
    ptx::Turn x, w;
    for (int item = first; item < p.items; item += stride) {
      const Tile tile = tile_at<kM, kN>(p, item, rank);
      float sum[kBlocks][kN / 2];
      int accumulate = 0, x_read = -1, w_read = -1;  // stages that products under way still read
      const auto release = [&] {
        if (tells_w && w_read >= 0) ptx::arrive_cluster(w_told + w_read * 8);
        if (tells_x && x_read >= 0) ptx::arrive_cluster(x_told + x_read * 8);
        x_read = -1;
      };
#pragma unroll 1
      for (int i = p.chunks * p.groups; i > 0; --i) {
        ptx::wait(x_full + x.stage, x.parity);
        if (stamped && accumulate == 0) p.stamps[1] = now();
        int row = x.stage * p.x_bytes + own_row * kRowBytes;
#pragma unroll 1
        for (int r = 0; r < p.taps_h; ++r, row += p.step_h) {
          int at = row;
#pragma unroll 1
          for (int s = 0; s < p.taps_w; ++s, at += p.step_w) {
            ptx::wait(w_full + w.stage, w.parity);
            ptx::begin_products();
#pragma unroll
            for (int k = 0; k < kRowBytes; k += 32) {
#pragma unroll
              for (int b = 0; b < kBlocks; ++b) {
                ptx::Product<T, kN>::add(sum[b], ptx::advance(pixels, at + b * 64 * kRowBytes + k),
                                         ptx::advance(filters, w.stage * kWeightBytes + k),
                                         k > 0 || accumulate);
              }
            }
            ptx::commit_products();
            accumulate = 1;
            ptx::await_products<1>();
            release();
            w_read = w.stage;
            w.advance(p.w_stages);
          }
        }
        x_read = x.stage;
        x.advance(p.x_stages);
      }
      ptx::await_products<0>();
      release();
      if (stamped) p.stamps[2] = now();
      char* own = staging + group * kSlabs * 64 * kRowBytes;
      const int row = warp % 4 * 16 + lane % 16;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int position = tile.position + own_row + b * 64;
        int pixel = -1;
        if (!p.dense) pixel = Place(p, position + warp % 4 * 16 + lane % 16).pixel(p);
#pragma unroll
        for (int half = 0; half < kN / 64; half += kSlabs) {
          if (p.dense) {
            if (leads) ptx::await_store_reads();
            ptx::sync_threads<128>(1 + group);
          } else {
            __syncwarp();
          }
#pragma unroll
          for (int i = 0; i < kSlabs; ++i) {
            const uint32_t slab = ptx::shared_address(own) + i * 64 * kRowBytes + row * kRowBytes;
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
              const float* v = sum[b] + (half + i) * 32 + j * 4;
              ptx::store_matrices(slab + ((j + lane / 16) ^ (row % 8)) * 16, pack_pair(v[0], v[1]),
                                  pack_pair(v[2], v[3]), pack_pair(v[4], v[5]),
                                  pack_pair(v[6], v[7]));
            }
          }
          if (p.dense) {
            ptx::fence_shared_writes();
            ptx::sync_threads<128>(1 + group);
            if (leads) {
#pragma unroll
              for (int i = 0; i < kSlabs; ++i) {
                store_matrix_box(&p.y, own + i * 64 * kRowBytes, tile.k + (half + i) * 64,
                                 position);
              }
              ptx::commit_stores();
            }
          } else {
            __syncwarp();
#pragma unroll 4
            for (int i = lane; i < 16 * 8 * kSlabs; i += 32) {
              const int at = i / (8 * kSlabs), unit = i % (8 * kSlabs);
              const int to = __shfl_sync(~0u, pixel, at);
              const int k = tile.k + half * 64 + unit * 8;
              if (to < 0 || k >= p.K) continue;
              const int from = warp % 4 * 16 + at;
              const char* slab = own + unit / 8 * 64 * kRowBytes + from * kRowBytes;
              *reinterpret_cast<uint4*>(p.out + static_cast<int64_t>(to) * p.K + k) =
                  *reinterpret_cast<const uint4*>(slab + ((unit % 8) ^ (from % 8)) * 16);
            }
          }
        }
      }
      if (stamped) p.stamps[3] = now();
    }
    if (leads) ptx::await_store_reads();
    if (stamped) p.stamps[4] = now();
  }
  if (cluster > 1) ptx::meet_cluster();
#endif
}

template <typename Function>
Function driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  return reinterpret_cast<Function>(found);
}

int encode_boxes(CUtensorMap* map, const void* data, int rank, const cuuint64_t* sizes,
                 const cuuint64_t* strides, const cuuint32_t* box) {
  const cuuint32_t ones[] = {1, 1, 1, 1};
  return driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled")(
      map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, const_cast<void*>(data), sizes, strides, box,
      ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

template <int kWarpgroups, int kBlocks, int kN>
int launch(Params& p, int sms, cudaStream_t stream) {
  constexpr int kSlabs = kN < 128 ? 1 : 2;
  const auto kernel = convolve<kWarpgroups, kBlocks, kN>;
  const int staging = kWarpgroups * kSlabs * 64 * kRowBytes;
  const int room = 227 * 1024 - 1024 - staging;
  const int least = p.dense ? 3 : 2;
  p.x_stages = least;
  p.w_stages = least;
  const auto bytes = [&] { return p.x_stages * p.x_bytes + p.w_stages * kN * kRowBytes; };
  if (bytes() > room) return 2001;
  for (bool more = true; more;) {
    more = false;
    if (p.w_stages < kMostStages && bytes() + kN * kRowBytes <= room &&
        (!p.dense || p.w_stages <= p.x_stages)) {
      ++p.w_stages;
      more = true;
    }
    const int most_x = p.dense ? kMostStages : 4;
    if (p.x_stages < most_x && bytes() + p.x_bytes <= room && (p.dense || p.w_stages >= 4)) {
      ++p.x_stages;
      more = true;
    }
  }
  const int shared = 1024 + staging + bytes();
  const int cluster = p.share_x * p.share_w;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = std::min(p.items * cluster, sms / cluster * cluster);
  config.blockDim = 128 * (1 + kWarpgroups);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, p);
}

}  // namespace

// share: 0 none, 1 pixels, 2 weights. Returns 0, a CUDA error, 1000 and a driver's error, or from
// 2000 on that this tile does not fit. Stride: of the dense grid only.
extern "C" int convolve_forward(int tile, int dense, int share, const void* x, const void* w,
                                void* y, int N, int C, int H, int W, int K, int R, int S,
                                int stride, int pad, int dilation, int sms, long long* stamps,
                                void* stream) {
  struct Size {
    int m, n;
  };
  const Size sizes[] = {{256, 128}, {128, 256}, {128, 128}, {192, 128},
                        {256, 64},  {128, 64},  {64, 64}};
  if (tile < 0 || tile >= 7) return 2002;
  const Size size = sizes[tile];
  if (!dense && stride > 1) return 2003;
  Params p{};
  p.dense = dense != 0;
  p.out = static_cast<T*>(y);
  p.N = N;
  p.K = K;
  p.R = R;
  p.S = S;
  p.P = (H + 2 * pad - dilation * (R - 1) - 1) / stride + 1;
  p.Q = (W + 2 * pad - dilation * (S - 1) - 1) / stride + 1;
  p.pitch = p.dense ? p.Q : W + pad;
  p.period = p.dense ? p.P : H + pad;
  p.positions = N * p.pitch * p.period;
  p.share_x = share == 1 ? 2 : 1;
  p.share_w = share == 2 ? 2 : 1;
  p.chunks = (C + 63) / 64;
  p.groups = p.dense ? R * S : 1;
  p.taps_h = p.dense ? 1 : R;
  p.taps_w = p.dense ? 1 : S;
  p.step_h = dilation * p.pitch * kRowBytes;
  p.step_w = dilation * kRowBytes;
  p.tap_h = p.tap_w = p.dense ? dilation : 0;
  p.stride = stride;
  p.pad = p.dense ? pad : 0;
  p.halo = p.dense ? 0 : pad * p.pitch + pad;
  const int span = p.dense ? 0 : dilation * ((R - 1) * p.pitch + S - 1);
  p.copies = (size.m + span + 255) / 256;
  if (p.share_x > 1) p.copies = (p.copies + 1) / 2 * 2;
  p.copy_rows = ((size.m + span + p.copies - 1) / p.copies + 7) / 8 * 8;
  p.x_bytes = p.copies * p.copy_rows * kRowBytes;
  p.copies /= p.share_x;
  p.copy_rank = p.share_x > 1 ? p.copies : 0;
  p.tiles_m = (p.positions + size.m - 1) / size.m;
  p.tiles_k = (K + size.n - 1) / size.n;
  const int tiles_k = (p.tiles_k + p.share_x - 1) / p.share_x;
  p.items = (p.tiles_m + p.share_w - 1) / p.share_w * tiles_k;
  p.by_pitch = Divider<int32_t>(p.pitch);
  p.by_period = Divider<int32_t>(p.period);
  p.by_tiles_k = Divider<int32_t>(tiles_k);
  p.by_S = Divider<int32_t>(S);
  p.stamps = stamps;

  const cuuint64_t c = C, k = K;
  const cuuint64_t x_sizes[] = {c, cuuint64_t(W), cuuint64_t(H), cuuint64_t(N)};
  const cuuint64_t x_strides[] = {c * 2, c * W * 2, c * W * H * 2};
  // The corners of the box in which the first tap of each position lies.
  const int lower[] = {p.dense ? -pad : 0, p.dense ? -pad : 0};
  const int upper[] = {p.dense ? pad - dilation * (S - 1) : pad,
                       p.dense ? pad - dilation * (R - 1) : pad};
  const cuuint32_t steps[] = {1, cuuint32_t(stride), cuuint32_t(stride), 1};
  int error = driver_function<decltype(&cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col")(
      &p.x, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, const_cast<void*>(x), x_sizes, x_strides, lower,
      upper, 64, p.copy_rows, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (error != 0) return 1000 + error;
  const cuuint64_t w_sizes[] = {c, cuuint64_t(R * S), k}, w_strides[] = {c * 2, c * R * S * 2};
  const cuuint32_t w_box[] = {64, 1, cuuint32_t(size.n / p.share_w)};
  error = encode_boxes(&p.w, w, 3, w_sizes, w_strides, w_box);
  if (error != 0) return 1000 + error;
  const cuuint64_t y_sizes[] = {k, cuuint64_t(N) * p.P * p.Q}, y_strides[] = {k * 2};
  const cuuint32_t y_box[] = {64, 64};
  error = encode_boxes(&p.y, y, 2, y_sizes, y_strides, y_box);
  if (error != 0) return 1000 + error;
  const auto to = static_cast<cudaStream_t>(stream);
  switch (tile) {
    case 0:
      return launch<2, 2, 128>(p, sms, to);
    case 1:
      return launch<2, 1, 256>(p, sms, to);
    case 2:
      return launch<2, 1, 128>(p, sms, to);
    case 3:
      return launch<3, 1, 128>(p, sms, to);
    case 4:
      return launch<2, 2, 64>(p, sms, to);
    case 5:
      return launch<2, 1, 64>(p, sms, to);
    default:
      return launch<1, 1, 64>(p, sms, to);
  }
}
