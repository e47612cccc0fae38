// A main loop for forward convolutions in float16 and TF32 on one loader: TMA's im2col mode.
//
// A tile is a run of `kM` positions by `kN` output channels. Positions are those of a grid of
// `pitch` columns and `period` rows an image, as im2col mode traverses it. There are two grids:
// - dense: the output's pixels. A stage is one tap of a tile, 64 channels of pixels and of weights.
// - padded: the input's pixels with the padding behind each row and each image. A stage of pixels
//   holds all taps: a tap is the same stage some rows further on. Weights have a ring of their own.
//   Positions in the padding are not stored.
//
// Planes (NCHW) are packed first: a kernel writes some images as NHWC into a workspace, from which
// the main loop reads; it stores planes. The two alternate, so that the workspace stays in L2.
//
// A cluster of two blocks may share pixels (for different output channels) or weights (for
// different pixels): each loads half of them for both. Or the blocks of a cluster split the sums of
// a tile.
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/common/divide.cuh"
#include "kernels/common/map.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/prefetch.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

using namespace customconv;

namespace {

constexpr int kRowBytes = 128;  // of a position
template <typename T>
constexpr int kRowChannels = kRowBytes / static_cast<int>(sizeof(T));
constexpr int kSlabBytes = 64 * kRowBytes;
constexpr int kMostStages = 12;
constexpr int kPrefetched = 3;     // stages, at most
constexpr int kStartBarrier = 15;  // the named barrier behind which mbarriers are ready

struct Params {
  CUtensorMap x, w, y;
  int items, share_x, share_w;  // tiles of a cluster; blocks that share pixels, and weights
  int splits;                   // or blocks that share a tile's sums
  int x_stages, w_stages, x_bytes;
  int chunks, groups, S;      // stages of a tile: 64 channels, times a tap each if dense
  int copies, copy_rows;      // of a block, into a stage of pixels
  int halo, image;            // positions before a tile that its stage begins; of an image
  int stride, pad, dilation;  // dense: from positions and taps to pixels
  int taps_h, taps_w;         // of a stage
  int step_h, step_w;         // bytes of a stage from one tap to the next
  int N, P, Q, K;
  bool boxes;  // pixels are a matrix: a single tap without padding or stride
  bool early;  // a kernel that packs the input may still run
  Divider<int32_t> by_tiles_k, by_pitch, by_period;
  void* out;
  const char *pixels, *filters;  // to be prefetched
  int prefetched;                // stages of a block's first tile; dense grid
  int H, W, pixel_bytes, filter_bytes, tap_bytes;
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

// The stages of a tile that a block multiplies.
struct Range {
  int first, last;
  __device__ Range(const Params& p, int rank) {
    const int all = p.chunks * p.groups;
    first = p.splits > 1 ? all * rank / p.splits : 0;
    last = p.splits > 1 ? all * (rank + 1) / p.splits : all;
  }
};

// What one warp loads: pixels, and if dense weights too. Each copy of a stage is a lane's.
template <typename T, int kM, int kN, bool kDense>
class PixelLoader {
 public:
  __device__ PixelLoader(const Params& p, const Memory& memory, int rank, int lane)
      : p_(p), memory_(memory), rank_(rank), lane_(lane) {}

  // The stages of a tile; `wait` tells whether earlier products may still read them.
  __device__ void load(const Tile& tile, Range steps, int wait_from) {
    // One image ahead, so that nothing is negative.
    const int copy = lane_ + (p_.share_x > 1 ? rank_ * p_.copies : 0);
    const Place place(p_, tile.position - p_.halo + p_.image + copy * p_.copy_rows);
    const int w = place.column * p_.stride - p_.pad, h = place.row * p_.stride - p_.pad;
    int c = steps.first, r = 0, s = 0;
    if (kDense && p_.groups > 1) {
      c = steps.first / p_.groups;
      s = steps.first % p_.groups;
      r = s / p_.S;
      s -= r * p_.S;
    }
    for (int i = steps.first; i < steps.last; ++i) {
      ptx::Barrier* full = memory_.x_full + turn_.stage;
      if (loaded_ >= wait_from) ptx::wait(memory_.x_empty + turn_.stage, turn_.parity ^ 1);
      if (lane_ == 0) {
        ptx::arrive_expecting(full, p_.x_bytes + (kDense ? kN * kRowBytes : 0));
      }
      __syncwarp();
      if (lane_ < p_.copies) {
        char* to = memory_.input + turn_.stage * p_.x_bytes + copy * p_.copy_rows * kRowBytes;
        const int channel = c * kRowChannels<T>;
        if (!p_.boxes) {
          load_im2col(to, &p_.x, full, channel, w, h, place.n - 1, s * p_.dilation, r * p_.dilation,
                      p_.share_x > 1);
        } else if (p_.share_x > 1) {
          ptx::multicast_box(3, to, &p_.x, full, channel, tile.position + copy * p_.copy_rows, 0);
        } else {
          ptx::copy_box(to, &p_.x, full, channel, tile.position + copy * p_.copy_rows, 0);
        }
      }
      if (kDense && lane_ == 31) {
        char* to = memory_.weights + turn_.stage * kN * kRowBytes;
        const int tap = r * p_.S + s;
        if (p_.share_w > 1) {
          constexpr int kHalf = kN / 2;
          ptx::multicast_box(3, to + rank_ * kHalf * kRowBytes, &p_.w, full, c * kRowChannels<T>,
                             tap, tile.k + rank_ * kHalf);
        } else {
          ptx::copy_box(to, &p_.w, full, c * kRowChannels<T>, tap, tile.k);
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

  // Waits until all stages are read, so that no block of the cluster arrives at one that has ended.
  __device__ void finish() {
    for (int i = 0; i < p_.x_stages; ++i) {
      ptx::wait(memory_.x_empty + turn_.stage, turn_.parity ^ 1);
      turn_.advance(p_.x_stages);
    }
  }

 private:
  const Params& p_;
  const Memory& memory_;
  int rank_, lane_, loaded_ = 0;
  ptx::Turn turn_;
};

template <typename T, int kN>
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
          ptx::multicast_box(3, to + rank * kHalf * kRowBytes, &p.w, full, c * kRowChannels<T>, tap,
                             tile.k + rank * kHalf);
        } else {
          ptx::copy_box(to, &p.w, full, c * kRowChannels<T>, tap, tile.k);
        }
      }
      turn.advance(p.w_stages);
    }
  }
}

// What a warpgroup multiplies.
template <typename T, int kBlocks, int kN, bool kDense>
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

  __device__ void multiply(float (&sum)[kBlocks][kN / 2], int steps) {
    int accumulate = 0;
#pragma unroll 1
    for (int i = steps; i > 0; --i) {
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
        ptx::Product<T, kN>::add(sum[b], ptx::advance(pixels_, at + b * kSlabBytes + k),
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

// A warpgroup's staging memory: two slabs of 64 positions by 128 bytes of channels, or of planes.
constexpr int kStagingBytes = 18 * 1024;
template <typename T>
constexpr int kPlaneBytes = 64 * static_cast<int>(sizeof(T)) + 16;  // of a channel's 64 positions

// Writes 64 positions by the channels of a slab, from `sum` on, as NHWC with the swizzle.
template <typename T>
__device__ inline void write_slab(const float* sum, uint32_t slab, int warp, int lane) {
  if constexpr (sizeof(T) == 2) {
    const int row = warp * 16 + lane % 16;
    const uint32_t to = slab + row * kRowBytes;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float* v = sum + j * 4;
      ptx::store_matrices(to + ((j + lane / 16) ^ (row % 8)) * 16, pack_pair(v[0], v[1]),
                          pack_pair(v[2], v[3]), pack_pair(v[4], v[5]), pack_pair(v[6], v[7]));
    }
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t unit = (j * 2 + lane % 4 / 2) ^ (row % 8);
        ptx::store_shared(slab + row * kRowBytes + unit * 16 + lane % 2 * 8, sum[j * 4 + half * 2],
                          sum[j * 4 + half * 2 + 1]);
      }
    }
  }
}
// The same as planes: for each channel 64 positions.
template <typename T>
__device__ inline void write_planes(const float* sum, uint32_t planes, int warp, int lane) {
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float* v = sum + j * 4;
      const int channel = j * 8 + lane / 16 * 8 + lane % 8;
      const uint32_t to = planes + channel * kPlaneBytes<T> + (warp * 16 + lane / 8 % 2 * 8) * 2;
      ptx::store_transposed_matrices(to, pack_pair(v[0], v[1]), pack_pair(v[2], v[3]),
                                     pack_pair(v[4], v[5]), pack_pair(v[6], v[7]));
    }
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int channel = j * 8 + lane % 4 * 2 + i, at = warp * 16 + half * 8 + lane / 4;
          ptx::store_shared(planes + channel * kPlaneBytes<T> + at * 4,
                            __float_as_uint(sum[j * 4 + half * 2 + i]));
        }
      }
    }
  }
}

// From a warpgroup's sums to the output. NHWC goes through slabs: by TMA if the grid is dense, else
// by threads, 16 bytes at a time.
template <typename T, int kBlocks, int kN, bool kDense>
__device__ inline void store_channels(const Params& p, const Tile& tile,
                                      float (&sum)[kBlocks][kN / 2], char* slabs, int own_row,
                                      int barrier, bool leads) {
  constexpr int kChannels = kRowChannels<T>, kUnit = 16 / static_cast<int>(sizeof(T));
  constexpr int kSlabs = kN / kChannels < 2 ? 1 : 2;
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const int position = tile.position + own_row + b * 64;
    const int pixel = kDense ? 0 : Place(p, position + warp * 16 + lane % 16).pixel(p);
#pragma unroll
    for (int first = 0; first < kN / kChannels; first += kSlabs) {
      if (kDense) {
        if (leads) ptx::await_store_reads();
        ptx::sync_threads<128>(barrier);
      } else {
        __syncwarp();
      }
#pragma unroll
      for (int i = 0; i < kSlabs; ++i) {
        write_slab<T>(sum[b] + (first + i) * kChannels / 2,
                      ptx::shared_address(slabs) + i * kSlabBytes, warp, lane);
      }
      if (kDense) {
        ptx::fence_shared_writes();
        ptx::sync_threads<128>(barrier);
        if (leads) {
#pragma unroll
          for (int i = 0; i < kSlabs; ++i) {
            store_matrix_box(&p.y, slabs + i * kSlabBytes, tile.k + (first + i) * kChannels,
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
          const int k = tile.k + first * kChannels + unit * kUnit;
          if (to < 0 || k >= p.K) continue;
          const int from = warp * 16 + at;
          const char* slab = slabs + unit / 8 * kSlabBytes + from * kRowBytes;
          *reinterpret_cast<uint4*>(static_cast<T*>(p.out) + static_cast<int64_t>(to) * p.K + k) =
              *reinterpret_cast<const uint4*>(slab + ((unit % 8) ^ (from % 8)) * 16);
        }
      }
    }
  }
}

// Planes: a warp stores channels, 16 bytes at a time if images are whole 16 bytes and the grid is
// dense, else two positions of a lane.
template <typename T, int kBlocks, int kN, bool kDense>
__device__ inline void store_planes(const Params& p, const Tile& tile,
                                    float (&sum)[kBlocks][kN / 2], char* staging, int own_row,
                                    int barrier) {
  constexpr int kSize = static_cast<int>(sizeof(T)), kChannels = kRowChannels<T>;
  constexpr int kVector = 16 / kSize, kLanes = 64 / kVector;  // of a channel
  using Pair = std::conditional_t<kSize == 2, uint32_t, uint2>;
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
  const int plane = p.P * p.Q;
  const bool vectors = kDense && plane % kVector == 0;
  const uint32_t planes = ptx::shared_address(staging);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const int position = tile.position + own_row + b * 64;
    // Of the lane's positions: where they are in the planes of output channel 0, or -1.
    int64_t own[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = vectors ? lane % kLanes * kVector : lane * 2 + i;
      const Place place(p, position + at);
      const bool exists = place.n < p.N && place.row < p.P && place.column < p.Q;
      own[i] = exists ? static_cast<int64_t>(place.n) * p.K * plane + place.row * p.Q + place.column
                      : -1;
    }
#pragma unroll
    for (int first = 0; first < kN; first += kChannels) {
      ptx::sync_threads<128>(barrier);
      write_planes<T>(sum[b] + first / 2, planes, warp, lane);
      ptx::sync_threads<128>(barrier);
      T* const out = static_cast<T*>(p.out) + static_cast<int64_t>(tile.k + first) * plane;
      const int count = min(kChannels, p.K - tile.k - first);
      if (vectors) {
#pragma unroll 2
        for (int c = warp * (32 / kLanes) + lane / kLanes; c < count; c += 4 * (32 / kLanes)) {
          const uint4 v = ptx::load_shared<uint4>(planes + c * kPlaneBytes<T> + lane % kLanes * 16);
          if (own[0] >= 0) {
            *reinterpret_cast<uint4*>(out + own[0] + static_cast<int64_t>(c) * plane) = v;
          }
        }
      } else {
        const bool pair = own[0] >= 0 && own[1] == own[0] + 1;
#pragma unroll 4
        for (int c = warp; c < count; c += 4) {
          const Pair v = ptx::load_shared<Pair>(planes + c * kPlaneBytes<T> + lane * 2 * kSize);
          const T* halves = reinterpret_cast<const T*>(&v);
          T* to = out + static_cast<int64_t>(c) * plane;
          if (pair && reinterpret_cast<uint64_t>(to + own[0]) % sizeof(Pair) == 0) {
            *reinterpret_cast<Pair*>(to + own[0]) = v;
          } else {
            if (own[0] >= 0) to[own[0]] = halves[0];
            if (own[1] >= 0) to[own[1]] = halves[1];
          }
        }
      }
    }
  }
}

// Planes of some images, (N, C, pixels), to (N, pixels, row) with zeros behind the last channel;
// a block has 64 pixels by 64 channels. Images of whole 16 bytes are read 16 bytes at a time.
template <typename T>
__global__ void __launch_bounds__(256)
    pack(const T* __restrict__ x, T* __restrict__ packed, int C, int pixels, int row) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T)), kPitch = 64 + kVector;
  __shared__ __align__(16) T tile[64][kPitch];
  ptx::start_dependents();
  const int first = blockIdx.x * 64, first_c = blockIdx.y * 64;
  const T* from = x + (static_cast<int64_t>(blockIdx.z) * C + first_c) * pixels + first;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  if (pixels % kVector == 0) {
    constexpr int kUnits = 64 / kVector;  // of a channel
#pragma unroll
    for (int i = threadIdx.x; i < 64 * kUnits; i += 256) {
      const int c = i / kUnits, at = i % kUnits * kVector;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (first_c + c < C && first + at < pixels) {
        v = *reinterpret_cast<const uint4*>(from + static_cast<int64_t>(c) * pixels + at);
      }
      *reinterpret_cast<uint4*>(&tile[c][at]) = v;
    }
  } else {
    T v[8][2];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int c = warp + j * 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = lane + i * 32;
        const bool exists = first_c + c < C && first + at < pixels;
        v[j][i] = exists ? from[static_cast<int64_t>(c) * pixels + at] : T(0);
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) tile[warp + j * 8][lane + i * 32] = v[j][i];
    }
  }
  __syncthreads();
  constexpr int kUnits = 64 / kVector;  // of a pixel's 64 channels
#pragma unroll
  for (int i = threadIdx.x; i < 64 * kUnits; i += 256) {
    // A warp has two units of 16 pixels: whole sectors, and few conflicts of banks.
    const int pixel = i / 32 % 4 * 16 + i / 2 % 16, unit = i / 128 * 2 + i % 2;
    if (first + pixel >= pixels || first_c + unit * kVector >= row) continue;
    alignas(16) T channels[kVector];
#pragma unroll
    for (int e = 0; e < kVector; ++e) channels[e] = tile[unit * kVector + e][pixel];
    const int64_t at = (static_cast<int64_t>(blockIdx.z) * pixels + first + pixel) * row;
    *reinterpret_cast<uint4*>(packed + at + first_c + unit * kVector) =
        *reinterpret_cast<const uint4*>(channels);
  }
}

// Adds up the sums of a cluster's blocks, in order of rank: each block adds and stores a part of
// the columns. All threads of the cluster call it, those that hold no sums too; NHWC, dense grid.
template <typename T, int kWarpgroups, int kBlocks, int kN>
__device__ inline void store_splits(const Params& p, const Tile& tile,
                                    float (&sum)[kBlocks][kN / 2], char* exchange, int group,
                                    int rank, bool multiplies) {
  constexpr int kSums = kBlocks * kN / 2, kThreads = kWarpgroups * 128;
  const int thread = static_cast<int>(threadIdx.x) - 128;
  const uint32_t own = ptx::shared_address(exchange) + static_cast<uint32_t>(thread) * 4;
  if (multiplies) {
    ptx::sync_threads(1, kThreads);  // none of them reads stages any more
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      ptx::store_shared(own + i * kThreads * 4, __float_as_uint(sum[i / (kN / 2)][i % (kN / 2)]));
    }
  }
  ptx::sync_cluster();
  if (multiplies) {
    const int count = kSums / p.splits;
    const int lane = thread % 32, warp = thread % 128 / 32;
#pragma unroll 4
    for (int i = rank * count; i < (rank + 1) * count; i += 2) {
      float total[2] = {};
      for (int from = 0; from < p.splits; ++from) {
        const uint32_t at = ptx::cluster_address(own + i * kThreads * 4, from);
        total[0] += ptx::load_cluster_float(at);
        total[1] += ptx::load_cluster_float(at + kThreads * 4);
      }
      const int b = i / (kN / 2), column = i % (kN / 2) / 4 * 8, half = i / 2 % 2;
      const int row = (group * kBlocks + b) * 64 + warp * 16 + half * 8 + lane / 4;
      const int64_t pixel = tile.position + row;
      const int k = tile.k + column + lane % 4 * 2;
      if (pixel >= static_cast<int64_t>(p.N) * p.P * p.Q || k >= p.K) continue;
      T* to = static_cast<T*>(p.out) + pixel * p.K + k;
      if constexpr (sizeof(T) == 2) {
        *reinterpret_cast<uint32_t*>(to) = pack_pair(total[0], total[1]);
      } else {
        *reinterpret_cast<float2*>(to) = make_float2(total[0], total[1]);
      }
    }
  }
  ptx::sync_cluster();  // the others have read this block's sums
}

// Brings the first stages of a tile near, while their tensor maps are on their way: a thread asks
// for a row of each stage.
template <int kM, int kN>
__device__ inline void prefetch_stages(const Params& p, const Tile& tile, int thread, int threads) {
  for (int i = thread; i < kM + kN; i += threads) {
    const char* from;
    int next = kRowBytes, count = p.prefetched;  // from a stage to the next: channels, or a tap
    if (i < kM) {
      const Place place(p, tile.position + i);
      const int h = place.row * p.stride - p.pad, w = place.column * p.stride - p.pad;
      if (place.n >= p.N || h < 0 || w < 0 || h >= p.H || w >= p.W)
        continue;  // the first tap is in the padding
      from = p.pixels + ((static_cast<int64_t>(place.n) * p.H + h) * p.W + w) * p.pixel_bytes;
      if (p.groups > 1) {
        next = p.dilation * p.pixel_bytes;
        count = min(count, (p.W - w + p.dilation - 1) / p.dilation);
      }
    } else {
      if (tile.k + i - kM >= p.K) continue;
      from = p.filters + static_cast<int64_t>(tile.k + i - kM) * p.filter_bytes;
      if (p.groups > 1) next = p.tap_bytes;
    }
    for (int stage = 0; stage < count; ++stage) ptx::prefetch_line(from + stage * next);
  }
}

template <typename T, int kWarpgroups, int kBlocks, int kN, int kOccupancy, bool kDense,
          bool kPlanes>
__global__ void __launch_bounds__(128 * (1 + kWarpgroups), kOccupancy)
    convolve(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kM = kWarpgroups * kBlocks * 64;
  constexpr int kThreads = 128 * (1 + kWarpgroups);
  extern __shared__ __align__(1024) char dynamic[];
  const Memory memory(p, dynamic, kWarpgroups * kStagingBytes, kN * kRowBytes);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int sharing = p.share_x * p.share_w, cluster = sharing * p.splits;
  const bool stamped = p.stamps != nullptr && blockIdx.x == 0;
  const int first = static_cast<int>(blockIdx.x) / cluster;
  const int stride = static_cast<int>(gridDim.x) / cluster;
  int rank = 0;
  if (warp == 0) {
    if (stamped && lane == 0) p.stamps[0] = clock64();
    if (lane == 0) ptx::prefetch_map(&p.x);
    if (lane == 1) ptx::prefetch_map(&p.w);
    const int of_x = kWarpgroups * (kDense ? sharing : p.share_x);
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
  if (cluster > 1) rank = ptx::cluster_rank();
  if (sharing > 1) {
    ptx::meet_cluster();
  } else if (warp == 0) {
    ptx::arrive_threads(kStartBarrier, kThreads);  // it goes on at once
  } else {
    ptx::sync_threads(kStartBarrier, kThreads);
  }

  if (warp < 4) {
    if (warp == 0) {
      if (p.early) ptx::await_dependency();
      PixelLoader<T, kM, kN, kDense> loader(p, memory, rank, lane);
      for (int item = first; item < p.items; item += stride) {
        loader.load(Tile(p, item, rank, kM, kN), Range(p, rank), p.x_stages);
      }
      if (sharing > 1) loader.finish();
    } else if (!kDense && warp == 1) {
      ptx::Turn turn;
      for (int item = first; item < p.items; item += stride) {
        load_weights<T, kN>(p, memory, Tile(p, item, rank, kM, kN), rank, turn);
      }
      if (sharing > 1) {
        for (int i = 0; i < p.w_stages; ++i) {
          ptx::wait(memory.w_empty + turn.stage, turn.parity ^ 1);
          turn.advance(p.w_stages);
        }
      }
    }
  } else {
    const int group = warp / 4 - 1, own_row = group * kBlocks * 64;
    if (kDense && p.prefetched > 0) {
      prefetch_stages<kM, kN>(p, Tile(p, first, rank, kM, kN), threadIdx.x - 128,
                              128 * kWarpgroups);
    }
    const bool leads = warp % 4 == 0 && ptx::elect_one();
    const bool stamps = stamped && group == 0 && leads;
    Multiplier<T, kBlocks, kN, kDense> multiplier(p, memory, own_row);
    char* staging = memory.staging + group * kStagingBytes;
    for (int item = first; item < p.items; item += stride) {
      const Tile tile(p, item, rank, kM, kN);
      float sum[kBlocks][kN / 2];
      if (stamps && item == first) {
        ptx::wait(memory.x_full, 0);
        p.stamps[1] = clock64();
      }
      const Range steps(p, rank);
      multiplier.multiply(sum, steps.last - steps.first);
      if (stamps && item == first) p.stamps[2] = clock64();
      if (kDense && !kPlanes && p.splits > 1) {
        store_splits<T, kWarpgroups, kBlocks, kN>(p, tile, sum, memory.weights, group, rank, true);
        return;
      }
      if constexpr (kPlanes) {
        store_planes<T, kBlocks, kN, kDense>(p, tile, sum, staging, own_row, 1 + group);
      } else {
        store_channels<T, kBlocks, kN, kDense>(p, tile, sum, staging, own_row, 1 + group, leads);
      }
      if (stamps && item == first) p.stamps[3] = clock64();
    }
    if (leads) ptx::await_store_reads();
    if (stamps) p.stamps[4] = clock64();
  }
  if (kDense && p.splits > 1) {  // of the loading warps, which hold no sums
    float none[kBlocks][kN / 2];
    store_splits<T, kWarpgroups, kBlocks, kN>(p, Tile(p, first, rank, kM, kN), none, memory.weights,
                                              0, rank, false);
  }
#endif
}

template <typename Function>
Function driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  return reinterpret_cast<Function>(found);
}

template <typename T>
int encode_boxes(CUtensorMap* map, const void* data, CUtensorMapDataType type, int rank,
                 const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box) {
  const cuuint32_t ones[] = {1, 1, 1, 1};
  return driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled")(
      map, type, rank, const_cast<void*>(data), sizes, strides, box, ones,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

template <typename T, int kWarpgroups, int kBlocks, int kN, int kOccupancy, bool kDense,
          bool kPlanes>
int launch_as(Params& p, int sms, cudaStream_t stream) {
  constexpr int kStaging = kWarpgroups * kStagingBytes, kWeights = kN * kRowBytes;
  const auto kernel = convolve<T, kWarpgroups, kBlocks, kN, kOccupancy, kDense, kPlanes>;
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
  const int cluster = p.share_x * p.share_w * p.splits;
  if (p.splits > 1) {
    const int sums = kWarpgroups * kBlocks * 64 * kN * 4;
    if (p.x_stages * (p.x_bytes + kWeights) < sums || kPlanes || !kDense) return 2005;
  }
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = p.items * cluster;
  if (p.splits == 1) config.gridDim = std::min(p.items, sms * kOccupancy / cluster) * cluster;
  config.blockDim = 128 * (1 + kWarpgroups);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = attributes;
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  if (p.early) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, p);
}
template <typename T, bool kPlanes, int kWarpgroups, int kBlocks, int kN, int kOccupancy>
int launch(Params& p, bool dense, int sms, cudaStream_t stream) {
  return dense ? launch_as<T, kWarpgroups, kBlocks, kN, kOccupancy, true, kPlanes>(p, sms, stream)
               : launch_as<T, kWarpgroups, kBlocks, kN, kOccupancy, false, kPlanes>(p, sms, stream);
}

struct Size {
  int m, n;
};
constexpr Size kSizes[] = {{256, 128}, {128, 256}, {128, 128}, {192, 128}, {256, 64},
                           {128, 64},  {64, 128},  {64, 64},   {64, 256}};

struct Problem {
  int N, C, H, W, K, R, S, stride, pad, dilation;
};

// Some images; `row` is the elements of an input pixel.
template <typename T, bool kPlanes>
int convolve_images(int tile, bool dense, int share, int prefetched, const Problem& from,
                    const void* x, int row, const void* w, void* y, bool early, int sms,
                    long long* stamps, cudaStream_t stream) {
  constexpr int kSize = static_cast<int>(sizeof(T)), kChannels = kRowChannels<T>;
  const Size size = kSizes[tile];
  const int N = from.N, H = from.H, W = from.W, K = from.K, R = from.R, S = from.S;
  const int pad = from.pad, dilation = from.dilation;
  Params p{};
  p.out = y;
  p.early = early;
  p.N = N;
  p.K = K;
  p.S = S;
  p.stride = from.stride;
  p.P = (H + 2 * pad - dilation * (R - 1) - 1) / from.stride + 1;
  p.Q = (W + 2 * pad - dilation * (S - 1) - 1) / from.stride + 1;
  if (p.stride > 8 || (!dense && (p.P > H + pad || p.Q > W + pad))) return 2007;
  const int pitch = dense ? p.Q : W + pad, period = dense ? p.P : H + pad;
  p.image = pitch * period;
  p.splits = share >= 4 ? share / 2 : 1;
  p.share_x = share == 1 ? 2 : 1;
  p.share_w = share == 2 ? 2 : 1;
  p.chunks = (from.C + kChannels - 1) / kChannels;
  if (p.splits > p.chunks * (dense ? R * S : 1)) return 2006;
  p.groups = dense ? R * S : 1;
  p.taps_h = dense ? 1 : R;
  p.taps_w = dense ? 1 : S;
  p.step_h = dilation * pitch * kRowBytes;
  p.step_w = dilation * kRowBytes;
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
  p.pixels = static_cast<const char*>(x);
  p.filters = static_cast<const char*>(w);
  p.prefetched = std::min({prefetched, p.chunks * p.groups, kPrefetched});
  if (p.groups > 1) p.prefetched = std::min(p.prefetched, S);
  p.H = H;
  p.W = W;
  p.pixel_bytes = row * kSize;
  p.tap_bytes = from.C * kSize;
  p.filter_bytes = R * S * from.C * kSize;
  p.by_pitch = Divider<int32_t>(pitch);
  p.by_period = Divider<int32_t>(period);
  p.by_tiles_k = Divider<int32_t>(items_k);
  p.stamps = stamps;

  const cuuint64_t c = row, k = K;
  const cuuint64_t x_sizes[] = {c, cuuint64_t(W), cuuint64_t(H), cuuint64_t(N)};
  const cuuint64_t x_strides[] = {c * kSize, c * W * kSize, c * W * H * kSize};
  // The corners of the box in which the first tap of each position lies.
  const int lower[] = {-p.pad, -p.pad};
  const int upper[] = {dense ? pad - dilation * (S - 1) : pad,
                       dense ? pad - dilation * (R - 1) : pad};
  const cuuint32_t steps[] = {1, cuuint32_t(p.stride), cuuint32_t(p.stride), 1};
  p.boxes = dense && R * S == 1 && pad == 0 && p.stride == 1;
  int error = 0;
  if (p.boxes) {
    const cuuint64_t pixels = cuuint64_t(N) * H * W;
    const cuuint64_t sizes[] = {c, pixels, 1}, pitches[] = {c * kSize, c * kSize * pixels};
    const cuuint32_t box[] = {cuuint32_t(kChannels), cuuint32_t(p.copy_rows), 1};
    error = encode_boxes<T>(&p.x, x, kMapType<T>, 3, sizes, pitches, box);
  } else {
    error = driver_function<decltype(&cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col")(
        &p.x, kMapType<T>, 4, const_cast<void*>(x), x_sizes, x_strides, lower, upper, kChannels,
        p.copy_rows, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  }
  if (error != 0) return 1000 + error;
  const cuuint64_t in = from.C;
  const cuuint64_t w_sizes[] = {in, cuuint64_t(R * S), k};
  const cuuint64_t w_strides[] = {in * kSize, in * R * S * kSize};
  const cuuint32_t w_box[] = {cuuint32_t(kChannels), 1, cuuint32_t(size.n / p.share_w)};
  error = encode_boxes<T>(&p.w, w, kMapType<T>, 3, w_sizes, w_strides, w_box);
  if (error != 0) return 1000 + error;
  if (!kPlanes) {
    const auto type = kSize == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : kMapType<T>;
    const cuuint64_t y_sizes[] = {k, cuuint64_t(N) * p.P * p.Q}, y_strides[] = {k * kSize};
    const cuuint32_t y_box[] = {cuuint32_t(kChannels), 64};
    error = encode_boxes<T>(&p.y, y, type, 2, y_sizes, y_strides, y_box);
    if (error != 0) return 1000 + error;
  }
  switch (tile) {
    case 0:
      return launch<T, kPlanes, 2, 2, 128, 1>(p, dense, sms, stream);
    case 1:
      return launch<T, kPlanes, 2, 1, 256, 1>(p, dense, sms, stream);
    case 2:
      return launch<T, kPlanes, 2, 1, 128, 1>(p, dense, sms, stream);
    case 4:
      return launch<T, kPlanes, 2, 2, 64, 1>(p, dense, sms, stream);
    case 5:
      return launch<T, kPlanes, 2, 1, 64, 2>(p, dense, sms, stream);
    default:
      break;
  }
  if constexpr (!kPlanes) {
    switch (tile) {
      case 3:
        return launch<T, kPlanes, 3, 1, 128, 1>(p, dense, sms, stream);
      case 6:
        return launch<T, kPlanes, 1, 1, 128, 2>(p, dense, sms, stream);
      case 7:
        return launch<T, kPlanes, 1, 1, 64, 2>(p, dense, sms, stream);
      default:
        return launch<T, kPlanes, 1, 1, 256, 1>(p, dense, sms, stream);
    }
  }
  return 2004;
}

template <typename T>
int convolve(int tile, int dense, int share, int prefetched, const Problem& p, const void* x,
             const void* w, void* y, int sms, long long* stamps, cudaStream_t stream) {
  if (tile < 0 || tile >= static_cast<int>(sizeof(kSizes) / sizeof(Size))) return 2002;
  if (!dense && p.stride > 1) return 2003;
  return convolve_images<T, false>(tile, dense != 0, share, prefetched, p, x, p.C, w, y, false, sms,
                                   stamps, stream);
}

// `only`: 1 for the kernels that pack, 2 for the others, else both.
template <typename T>
int convolve_planes(int tile, int dense, int images, int only, const Problem& p, const void* x,
                    const void* w, void* y, void* workspace, int sms, cudaStream_t stream) {
  if (tile < 0 || tile >= static_cast<int>(sizeof(kSizes) / sizeof(Size))) return 2002;
  if (!dense && p.stride > 1) return 2003;
  constexpr int kUnit = 16 / static_cast<int>(sizeof(T));
  const int row = (p.C + kUnit - 1) / kUnit * kUnit, pixels = p.H * p.W;
  const int64_t P = (p.H + 2 * p.pad - p.dilation * (p.R - 1) - 1) / p.stride + 1;
  const int64_t Q = (p.W + 2 * p.pad - p.dilation * (p.S - 1) - 1) / p.stride + 1;
  for (int n = 0; n < p.N; n += images) {
    Problem part = p;
    part.N = std::min(images, p.N - n);
    if (only != 2) {
      const dim3 blocks((pixels + 63) / 64, (row + 63) / 64, part.N);
      const T* from = static_cast<const T*>(x) + static_cast<int64_t>(n) * p.C * pixels;
      pack<T><<<blocks, 256, 0, stream>>>(from, static_cast<T*>(workspace), p.C, pixels, row);
      const cudaError_t error = cudaGetLastError();
      if (error != cudaSuccess) return error;
    }
    if (only == 1) continue;
    T* to = static_cast<T*>(y) + n * P * Q * p.K;
    const int status = convolve_images<T, true>(tile, dense != 0, 0, 0, part, workspace, row, w, to,
                                                only != 2, sms, nullptr, stream);
    if (status != 0) return status;
  }
  return 0;
}

}  // namespace

// Strides are of the dense grid only. Returns 0, a CUDA error, 1000 and a driver's error, or from
// 2000 on that this tile does not fit. `size`: bytes of an element. `share`: 0 none, 1 pixels, 2
// weights; 4, 8 or 16: two, four or eight blocks split a tile's sums. `prefetched`: stages that
// threads prefetch.
extern "C" int convolve_forward(int tile, int dense, int share, int prefetched, int size,
                                const void* x, const void* w, void* y, int N, int C, int H, int W,
                                int K, int R, int S, int stride, int pad, int dilation, int sms,
                                long long* stamps, void* stream) {
  cudaGetLastError();  // an earlier variant's
  const Problem p{N, C, H, W, K, R, S, stride, pad, dilation};
  const auto to = static_cast<cudaStream_t>(stream);
  return size == 2 ? convolve<__half>(tile, dense, share, prefetched, p, x, w, y, sms, stamps, to)
                   : convolve<float>(tile, dense, share, prefetched, p, x, w, y, sms, stamps, to);
}

// The same of planes, so many images at a time; weights are as above, channels last.
extern "C" int convolve_planes_forward(int tile, int dense, int images, int only, int size,
                                       const void* x, const void* w, void* y, void* workspace,
                                       int N, int C, int H, int W, int K, int R, int S, int stride,
                                       int pad, int dilation, int sms, void* stream) {
  cudaGetLastError();  // an earlier variant's
  const Problem p{N, C, H, W, K, R, S, stride, pad, dilation};
  const auto to = static_cast<cudaStream_t>(stream);
  return size == 2
             ? convolve_planes<__half>(tile, dense, images, only, p, x, w, y, workspace, sms, to)
             : convolve_planes<float>(tile, dense, images, only, p, x, w, y, workspace, sms, to);
}
