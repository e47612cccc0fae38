// A main loop for forward convolutions, channels-last, float16, on one loader: TMA's im2col mode.
//
// A tile is a run of `kM` positions by `kN` output channels. Positions are those of a grid of
// `pitch` columns and `period` rows an image, as im2col mode traverses it. There are two grids:
// - dense: the output's pixels. A stage is one tap of a tile, 64 channels of pixels and of weights.
// - padded: the input's pixels with the padding behind each row and each image. A stage of pixels
//   holds all taps: a tap is the same stage some rows further on. Weights have a ring of their own.
//   Positions in the padding are not stored.
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

constexpr int kRowBytes = 128;  // of a position: 64 channels
constexpr int kSlabBytes = 64 * kRowBytes;
constexpr int kMostStages = 12;
constexpr int kStartBarrier = 15;  // the named barrier behind which mbarriers are ready

struct Params {
  CUtensorMap x, w, y;
  int items, share_x, share_w;  // tiles of a cluster; blocks that share pixels, and weights
  int x_stages, w_stages, x_bytes;
  int chunks, groups, S;      // stages of a tile: 64 channels, times a tap each if dense
  int copies, copy_rows;      // of a block, into a stage of pixels
  int halo, image;            // positions before a tile that its stage begins; of an image
  int stride, pad, dilation;  // dense: from positions and taps to pixels
  int taps_h, taps_w;         // of a stage
  int step_h, step_w;         // bytes of a stage from one tap to the next
  int N, P, Q, K;
  Divider<int32_t> by_tiles_k, by_pitch, by_period;
  __half* out;
  long long* stamps;  // clocks at which block 0 is done with parts of its first tile, or null
};

__device__ inline void load_im2col(void* to, const CUtensorMap* map, ptx::Barrier* full, int c,
                                   int w, int h, int n, int offset_w, int offset_h, bool both) {
  if (both) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(
            ptx::shared_address(to)),
        "l"(map), "r"(ptx::shared_address(full)), "r"(c), "r"(w), "r"(h), "r"(n),
        "h"(static_cast<uint16_t>(offset_w)), "h"(static_cast<uint16_t>(offset_h)),
        "h"(static_cast<uint16_t>(3))
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(ptx::shared_address(to)),
        "l"(map), "r"(ptx::shared_address(full)), "r"(c), "r"(w), "r"(h), "r"(n),
        "h"(static_cast<uint16_t>(offset_w)), "h"(static_cast<uint16_t>(offset_h))
        : "memory");
  }
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

// A block's shared memory.
struct Memory {
  ptx::Barrier *x_full, *x_empty, *w_full, *w_empty;
  char *staging, *weights, *input;
  __device__ Memory(const Params& p, char* memory, int staging_bytes, int weight_bytes)
      : x_full(reinterpret_cast<ptx::Barrier*>(memory)),
        x_empty(x_full + kMostStages),
        w_full(x_empty + kMostStages),
        w_empty(w_full + kMostStages),
        staging(memory + 1024),
        weights(staging + staging_bytes),
        input(weights + p.w_stages * weight_bytes) {}
};

struct Tile {
  int position, k;  // its first
  __device__ Tile(const Params& p, int item, int rank, int kM, int kN) {
    int32_t m = item;
    const int own_k = p.by_tiles_k.split(m);
    k = (p.share_x > 1 ? own_k * 2 + rank : own_k) * kN;
    position = (p.share_w > 1 ? m * 2 + rank : m) * kM;
  }
};

// Where a position is in the grid.
struct Place {
  int n, row, column;
  __device__ Place(const Params& p, int position) {
    int32_t rest = position;
    column = p.by_pitch.split(rest);
    row = p.by_period.split(rest);
    n = rest;
  }
  // Its number among the output's pixels, or -1.
  __device__ int pixel(const Params& p) const {
    return n < p.N && row < p.P && column < p.Q ? (n * p.P + row) * p.Q + column : -1;
  }
};

// What one warp loads: pixels, and if dense weights too. Each copy of a stage is a lane's.
template <int kM, int kN, bool kDense>
class PixelLoader {
 public:
  __device__ PixelLoader(const Params& p, const Memory& memory, int rank, int lane)
      : p_(p), memory_(memory), rank_(rank), lane_(lane) {}

  // The stages of a tile; `wait` tells whether earlier products may still read them.
  __device__ void load(const Tile& tile, int wait_from) {
    // One image ahead, so that nothing is negative.
    const int copy = lane_ + (p_.share_x > 1 ? rank_ * p_.copies : 0);
    const Place place(p_, tile.position - p_.halo + p_.image + copy * p_.copy_rows);
    const int w = place.column * p_.stride - p_.pad, h = place.row * p_.stride - p_.pad;
    int r = 0, s = 0, c = 0;
    const int last = p_.chunks * p_.groups;
    for (int i = 0; i < last; ++i) {
      ptx::Barrier* full = memory_.x_full + turn_.stage;
      if (loaded_ >= wait_from) ptx::wait(memory_.x_empty + turn_.stage, turn_.parity ^ 1);
      if (lane_ == 0) {
        ptx::arrive_expecting(full, p_.x_bytes + (kDense ? kN * kRowBytes : 0));
      }
      __syncwarp();
      if (lane_ < p_.copies) {
        char* to = memory_.input + turn_.stage * p_.x_bytes + copy * p_.copy_rows * kRowBytes;
        load_im2col(to, &p_.x, full, c * 64, w, h, place.n - 1, s * p_.dilation, r * p_.dilation,
                    p_.share_x > 1);
      }
      if (kDense && lane_ == 31) {
        char* to = memory_.weights + turn_.stage * kN * kRowBytes;
        const int tap = r * p_.S + s;
        if (p_.share_w > 1) {
          constexpr int kHalf = kN / 2;
          ptx::multicast_box(3, to + rank_ * kHalf * kRowBytes, &p_.w, full, c * 64, tap,
                             tile.k + rank_ * kHalf);
        } else {
          ptx::copy_box(to, &p_.w, full, c * 64, tap, tile.k);
        }
      }
      turn_.advance(p_.x_stages);
      ++loaded_;
      if (!kDense) {
        ++c;
      } else if (++s == p_.S) {
        s = 0;
        if (++r * p_.S == p_.groups) {
          r = 0;
          ++c;
        }
      }
    }
  }

 private:
  const Params& p_;
  const Memory& memory_;
  int rank_, lane_, loaded_ = 0;
  ptx::Turn turn_;
};

template <int kN>
__device__ inline void load_weights(const Params& p, const Memory& memory, const Tile& tile,
                                    int rank, ptx::Turn& turn) {
  const int taps = p.taps_h * p.taps_w;
  for (int c = 0; c < p.chunks; ++c) {
    for (int tap = 0; tap < taps; ++tap) {
      ptx::wait(memory.w_empty + turn.stage, turn.parity ^ 1);
      if (ptx::elect_one()) {
        char* to = memory.weights + turn.stage * kN * kRowBytes;
        ptx::Barrier* full = memory.w_full + turn.stage;
        ptx::arrive_expecting(full, kN * kRowBytes);
        if (p.share_w > 1) {
          constexpr int kHalf = kN / 2;
          ptx::multicast_box(3, to + rank * kHalf * kRowBytes, &p.w, full, c * 64, tap,
                             tile.k + rank * kHalf);
        } else {
          ptx::copy_box(to, &p.w, full, c * 64, tap, tile.k);
        }
      }
      turn.advance(p.w_stages);
    }
  }
}

// What a warpgroup multiplies.
template <int kBlocks, int kN, bool kDense>
class Multiplier {
 public:
  __device__ Multiplier(const Params& p, const Memory& memory, int own_row)
      : p_(p),
        memory_(memory),
        pixels_(ptx::describe_rows(
            ptx::shared_address(memory.input) + static_cast<uint32_t>(own_row) * kRowBytes,
            8 * kRowBytes)),
        filters_(ptx::describe_rows(ptx::shared_address(memory.weights), 8 * kRowBytes)) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const bool both_x = p.share_x > 1, both_w = p.share_w > 1;
    const bool told_both = kDense ? both_x || both_w : both_x;
    tells_x_ = thread < (told_both ? 2 : 1);
    tells_w_ = thread < (both_w ? 2 : 1);
    x_told_ = told(memory.x_empty, told_both, thread);
    w_told_ = told(memory.w_empty, both_w, thread);
  }

  __device__ void multiply(float (&sum)[kBlocks][kN / 2]) {
    int accumulate = 0;
#pragma unroll 1
    for (int i = p_.chunks * p_.groups; i > 0; --i) {
      ptx::wait(memory_.x_full + x_.stage, x_.parity);
      if constexpr (kDense) {
        add(sum, x_.stage * p_.x_bytes, x_.stage, accumulate);
        accumulate = 1;
        release();
      } else {
        int row = x_.stage * p_.x_bytes;
#pragma unroll 1
        for (int r = 0; r < p_.taps_h; ++r, row += p_.step_h) {
          int at = row;
#pragma unroll 1
          for (int s = 0; s < p_.taps_w; ++s, at += p_.step_w) {
            ptx::wait(memory_.w_full + w_.stage, w_.parity);
            add(sum, at, w_.stage, accumulate);
            accumulate = 1;
            release();
            w_read_ = w_.stage;
            w_.advance(p_.w_stages);
          }
        }
      }
      x_read_ = x_.stage;
      x_.advance(p_.x_stages);
    }
    ptx::await_products<0>();
    release();
  }

 private:
  static __device__ uint32_t told(ptx::Barrier* barrier, bool both, int thread) {
    const uint32_t own = ptx::shared_address(barrier);
    return both ? ptx::cluster_address(own, thread & 1) : own;
  }

  // The products of a tap; those before the last ones are complete then.
  __device__ void add(float (&sum)[kBlocks][kN / 2], int at, int w_stage, int accumulate) {
    ptx::begin_products();
#pragma unroll
    for (int k = 0; k < kRowBytes; k += 32) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        ptx::Product<__half, kN>::add(sum[b], ptx::advance(pixels_, at + b * kSlabBytes + k),
                                      ptx::advance(filters_, w_stage * kN * kRowBytes + k),
                                      k > 0 || accumulate);
      }
    }
    ptx::commit_products();
    ptx::await_products<1>();
  }

  // Gives back the stages that completed products have read.
  __device__ void release() {
    if (!kDense && tells_w_ && w_read_ >= 0) ptx::arrive_cluster(w_told_ + w_read_ * 8);
    if (tells_x_ && x_read_ >= 0) ptx::arrive_cluster(x_told_ + x_read_ * 8);
    x_read_ = w_read_ = -1;
  }

  const Params& p_;
  const Memory& memory_;
  uint64_t pixels_, filters_;
  bool tells_x_, tells_w_;
  uint32_t x_told_, w_told_;
  int x_read_ = -1, w_read_ = -1;  // stages that products under way still read
  ptx::Turn x_, w_;
};

// From a warpgroup's sums to the output, through slabs of 64 positions by 64 channels: by TMA if
// the grid is dense, else by threads, 16 bytes at a time.
template <int kBlocks, int kN, int kSlabs, bool kDense>
__device__ inline void store(const Params& p, const Tile& tile, float (&sum)[kBlocks][kN / 2],
                             char* slabs, int own_row, int barrier, bool leads) {
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
  const int row = warp * 16 + lane % 16;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const int position = tile.position + own_row + b * 64;
    const int pixel = kDense ? 0 : Place(p, position + row).pixel(p);
#pragma unroll
    for (int first = 0; first < kN / 64; first += kSlabs) {
      if (kDense) {
        if (leads) ptx::await_store_reads();
        ptx::sync_threads<128>(barrier);
      } else {
        __syncwarp();
      }
#pragma unroll
      for (int i = 0; i < kSlabs; ++i) {
        const uint32_t to = ptx::shared_address(slabs) + i * kSlabBytes + row * kRowBytes;
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          const float* v = sum[b] + (first + i) * 32 + j * 4;
          ptx::store_matrices(to + ((j + lane / 16) ^ (row % 8)) * 16, pack_pair(v[0], v[1]),
                              pack_pair(v[2], v[3]), pack_pair(v[4], v[5]), pack_pair(v[6], v[7]));
        }
      }
      if (kDense) {
        ptx::fence_shared_writes();
        ptx::sync_threads<128>(barrier);
        if (leads) {
#pragma unroll
          for (int i = 0; i < kSlabs; ++i) {
            store_matrix_box(&p.y, slabs + i * kSlabBytes, tile.k + (first + i) * 64, position);
          }
          ptx::commit_stores();
        }
      } else {
        __syncwarp();
#pragma unroll 4
        for (int i = lane; i < 16 * 8 * kSlabs; i += 32) {
          const int at = i / (8 * kSlabs), unit = i % (8 * kSlabs);
          const int to = __shfl_sync(~0u, pixel, at);
          const int k = tile.k + first * 64 + unit * 8;
          if (to < 0 || k >= p.K) continue;
          const int from = warp * 16 + at;
          const char* slab = slabs + unit / 8 * kSlabBytes + from * kRowBytes;
          *reinterpret_cast<uint4*>(p.out + static_cast<int64_t>(to) * p.K + k) =
              *reinterpret_cast<const uint4*>(slab + ((unit % 8) ^ (from % 8)) * 16);
        }
      }
    }
  }
}

constexpr int slabs_of(int n) { return n < 128 ? 1 : 2; }

template <int kWarpgroups, int kBlocks, int kN, int kOccupancy, bool kDense>
__global__ void __launch_bounds__(128 * (1 + kWarpgroups), kOccupancy)
    convolve(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kM = kWarpgroups * kBlocks * 64, kSlabs = slabs_of(kN);
  constexpr int kThreads = 128 * (1 + kWarpgroups);
  extern __shared__ __align__(1024) char dynamic[];
  const Memory memory(p, dynamic, kWarpgroups * kSlabs * kSlabBytes, kN * kRowBytes);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int cluster = p.share_x * p.share_w;
  const bool stamped = p.stamps != nullptr && blockIdx.x == 0;
  const int first = static_cast<int>(blockIdx.x) / cluster;
  const int stride = static_cast<int>(gridDim.x) / cluster;
  int rank = 0;
  if (warp == 0) {
    if (stamped && lane == 0) p.stamps[0] = clock64();
    if (lane == 0) ptx::prefetch_map(&p.x);
    if (lane == 1) ptx::prefetch_map(&p.w);
    const int of_x = kWarpgroups * (kDense ? cluster : p.share_x);
    if (lane < kMostStages) {
      ptx::init_barrier(memory.x_full + lane, 1);
      ptx::init_barrier(memory.x_empty + lane, of_x);
      if (!kDense) {
        ptx::init_barrier(memory.w_full + lane, 1);
        ptx::init_barrier(memory.w_empty + lane, kWarpgroups * p.share_w);
      }
    }
    ptx::fence_barrier_init();
    __syncwarp();
  }
  if (cluster > 1) {
    rank = ptx::cluster_rank();
    ptx::meet_cluster();
  } else if (warp == 0) {
    ptx::arrive_threads(kStartBarrier, kThreads);  // it goes on at once
  } else {
    ptx::sync_threads(kStartBarrier, kThreads);
  }

  if (warp < 4) {
    if (warp == 0) {
      PixelLoader<kM, kN, kDense> loader(p, memory, rank, lane);
      for (int item = first; item < p.items; item += stride) {
        loader.load(Tile(p, item, rank, kM, kN), p.x_stages);
      }
    } else if (!kDense && warp == 1) {
      ptx::Turn turn;
      for (int item = first; item < p.items; item += stride) {
        load_weights<kN>(p, memory, Tile(p, item, rank, kM, kN), rank, turn);
      }
    }
  } else {
    const int group = warp / 4 - 1, own_row = group * kBlocks * 64;
    const bool leads = warp % 4 == 0 && ptx::elect_one();
    const bool stamps = stamped && group == 0 && leads;
    Multiplier<kBlocks, kN, kDense> multiplier(p, memory, own_row);
    char* slabs = memory.staging + group * kSlabs * kSlabBytes;
    for (int item = first; item < p.items; item += stride) {
      const Tile tile(p, item, rank, kM, kN);
      float sum[kBlocks][kN / 2];
      if (stamps && item == first) {
        ptx::wait(memory.x_full, 0);
        p.stamps[1] = clock64();
      }
      multiplier.multiply(sum);
      if (stamps && item == first) p.stamps[2] = clock64();
      store<kBlocks, kN, kSlabs, kDense>(p, tile, sum, slabs, own_row, 1 + group, leads);
      if (stamps && item == first) p.stamps[3] = clock64();
    }
    if (leads) ptx::await_store_reads();
    if (stamps) p.stamps[4] = clock64();
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

template <int kWarpgroups, int kBlocks, int kN, int kOccupancy, bool kDense>
int launch_as(Params& p, int sms, cudaStream_t stream) {
  constexpr int kStaging = kWarpgroups * slabs_of(kN) * kSlabBytes, kWeights = kN * kRowBytes;
  const auto kernel = convolve<kWarpgroups, kBlocks, kN, kOccupancy, kDense>;
  const int room = (228 / kOccupancy - 1) * 1024 - 1024 - kStaging;
  if (kDense) {
    p.x_stages = p.w_stages = std::min(room / (p.x_bytes + kWeights), kMostStages);
  } else {
    p.w_stages = 4;
    p.x_stages = std::min((room - p.w_stages * kWeights) / p.x_bytes, 4);
    if (p.x_stages >= 2) {
      p.w_stages = std::min((room - p.x_stages * p.x_bytes) / kWeights, kMostStages);
    }
  }
  if (p.x_stages < (kDense ? 3 : 2)) return 2001;
  const int shared = 1024 + kStaging + p.x_stages * p.x_bytes + p.w_stages * kWeights;
  const int cluster = p.share_x * p.share_w;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = std::min(p.items * cluster, sms * kOccupancy / cluster * cluster);
  config.blockDim = 128 * (1 + kWarpgroups);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, p);
}
template <int kWarpgroups, int kBlocks, int kN, int kOccupancy>
int launch(Params& p, bool dense, int sms, cudaStream_t stream) {
  return dense ? launch_as<kWarpgroups, kBlocks, kN, kOccupancy, true>(p, sms, stream)
               : launch_as<kWarpgroups, kBlocks, kN, kOccupancy, false>(p, sms, stream);
}

struct Size {
  int m, n;
};
constexpr Size kSizes[] = {{256, 128}, {128, 256}, {128, 128}, {192, 128}, {256, 64},
                           {128, 64},  {64, 128},  {64, 64},   {64, 256}};

}  // namespace

// share: 0 none, 1 pixels, 2 weights. Returns 0, a CUDA error, 1000 and a driver's error, or from
// 2000 on that this tile does not fit. Strides are of the dense grid only.
extern "C" int convolve_forward(int tile, int dense, int share, const void* x, const void* w,
                                void* y, int N, int C, int H, int W, int K, int R, int S,
                                int stride, int pad, int dilation, int sms, long long* stamps,
                                void* stream) {
  if (tile < 0 || tile >= static_cast<int>(sizeof(kSizes) / sizeof(Size))) return 2002;
  const Size size = kSizes[tile];
  if (!dense && stride > 1) return 2003;
  Params p{};
  p.out = static_cast<__half*>(y);
  p.N = N;
  p.K = K;
  p.S = S;
  p.P = (H + 2 * pad - dilation * (R - 1) - 1) / stride + 1;
  p.Q = (W + 2 * pad - dilation * (S - 1) - 1) / stride + 1;
  const int pitch = dense ? p.Q : W + pad, period = dense ? p.P : H + pad;
  p.image = pitch * period;
  p.share_x = share == 1 ? 2 : 1;
  p.share_w = share == 2 ? 2 : 1;
  p.chunks = (C + 63) / 64;
  p.groups = dense ? R * S : 1;
  p.taps_h = dense ? 1 : R;
  p.taps_w = dense ? 1 : S;
  p.step_h = dilation * pitch * kRowBytes;
  p.step_w = dilation * kRowBytes;
  p.stride = stride;
  p.pad = dense ? pad : 0;
  p.dilation = dilation;
  p.halo = dense ? 0 : pad * pitch + pad;
  const int span = dense ? 0 : dilation * ((R - 1) * pitch + S - 1);
  const int parts = p.share_x * ((size.m + span + 256 * p.share_x - 1) / (256 * p.share_x));
  p.copy_rows = ((size.m + span + parts - 1) / parts + 7) / 8 * 8;
  p.x_bytes = parts * p.copy_rows * kRowBytes;
  p.copies = parts / p.share_x;
  const int tiles_m = (N * p.image + size.m - 1) / size.m, tiles_k = (K + size.n - 1) / size.n;
  const int items_k = (tiles_k + p.share_x - 1) / p.share_x;
  p.items = (tiles_m + p.share_w - 1) / p.share_w * items_k;
  p.by_pitch = Divider<int32_t>(pitch);
  p.by_period = Divider<int32_t>(period);
  p.by_tiles_k = Divider<int32_t>(items_k);
  p.stamps = stamps;

  const cuuint64_t c = C, k = K;
  const cuuint64_t x_sizes[] = {c, cuuint64_t(W), cuuint64_t(H), cuuint64_t(N)};
  const cuuint64_t x_strides[] = {c * 2, c * W * 2, c * W * H * 2};
  // The corners of the box in which the first tap of each position lies.
  const int lower[] = {-p.pad, -p.pad};
  const int upper[] = {dense ? pad - dilation * (S - 1) : pad,
                       dense ? pad - dilation * (R - 1) : pad};
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
      return launch<2, 2, 128, 1>(p, dense, sms, to);
    case 1:
      return launch<2, 1, 256, 1>(p, dense, sms, to);
    case 2:
      return launch<2, 1, 128, 1>(p, dense, sms, to);
    case 3:
      return launch<3, 1, 128, 1>(p, dense, sms, to);
    case 4:
      return launch<2, 2, 64, 1>(p, dense, sms, to);
    case 5:
      return launch<2, 1, 64, 2>(p, dense, sms, to);
    case 6:
      return launch<1, 1, 128, 2>(p, dense, sms, to);
    case 7:
      return launch<1, 1, 64, 2>(p, dense, sms, to);
    default:
      return launch<1, 1, 256, 1>(p, dense, sms, to);
  }
}
