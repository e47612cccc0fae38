// Weight gradients in TF32: the copy engine brings boxes of x and dy, a warpgroup transposes those
// of dy, the others multiply them by elements of x that they read into registers.
#pragma once

#include "kernels/common/divide.cuh"
#include "kernels/implicit_gemm/weight/tf32_geometry.h"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm::weight::tf32 {

struct Params {
  CUtensorMap x, y;
  int outer, groups, pairs;           // of lines that are no group's, of four lines, of two columns
  uint32_t x_outer, x_group, x_line;  // bytes of x from one to the next
  uint32_t x_column, x_tap, x_filter_row;
  uint32_t y_outer, y_column;     // of dy; groups follow each other
  int x_box_bytes, y_box_bytes;   // of memory
  int x_brought, y_brought;       // what copies bring
  int x_at, stage_bytes, stages;  // where boxes of x are in a stage
  int along_k, along_c, filter_rows;
  bool by_images;
  int cluster;  // thread blocks that share boxes of dy, one or two
  int images, rows, columns, tiles, splits;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int R, S, group_C, group_K;
  Divider<int32_t> by_chunks, by_filter_sets, by_blocks_c, by_blocks_k, by_groups;
  Divider<int32_t> by_tiles_q, by_tiles_p;
  // Of each thread block its sums, as its threads hold them, four at a time; null where results are
  // stored.
  float4* partial;
  float* weight;
  int64_t weight_k, weight_c, weight_r, weight_s;
  bool pairs_c;  // results of neighbouring input channels can be stored at once
};

// What a thread block sums up.
struct Share {
  int split;
  int group, k, c;                 // the first channels, of the group's
  int blocks_k, blocks_c, rows_r;  // blocks of channels that exist, and rows of the filter
  int r, s;                        // the first tap

  __device__ Share(const Params& p, const Kernel& kind, int32_t rest) {
    s = p.by_chunks.split(rest) * kind.taps;
    r = p.by_filter_sets.split(rest) * p.filter_rows;
    c = p.by_blocks_c.split(rest) * p.along_c * kBlock;
    k = p.by_blocks_k.split(rest) * p.along_k * kind.blocks * kBlock;
    group = p.by_groups.split(rest);
    split = rest;
    blocks_k = min(p.along_k * kind.blocks, (p.group_K - k + kBlock - 1) / kBlock);
    blocks_c = min(p.along_c, (p.group_C - c + kBlock - 1) / kBlock);
    rows_r = min(p.filter_rows, p.R - r);
  }

  // That have something to sum.
  __device__ int warpgroups(const Params& p, const Kernel& kind) const {
    if (p.along_k > 1) return (blocks_k + kind.blocks - 1) / kind.blocks;
    return p.along_c > 1 ? blocks_c : rows_r;
  }
};

// And of it a warpgroup.
struct Role {
  int block_k, block_c, filter_row;
  bool exists;

  __device__ Role(const Params& p, const Kernel& kind, const Share& share, int warpgroup) {
    const bool along_k = p.along_k > 1, along_c = p.along_c > 1;
    block_k = along_k ? warpgroup * kind.blocks : 0;
    block_c = along_c ? warpgroup : 0;
    filter_row = along_k || along_c ? 0 : warpgroup;
    exists = block_k < share.blocks_k && block_c < share.blocks_c && filter_row < share.rows_r;
  }
};

// Of four of a thread's sums the first: they are of two input channels by two output channels of a
// tap, all neighbours. A group's channels are multiples of four.
struct Spot {
  int k, c, r, s;
  bool exists;

  __device__ Spot(const Params& p, const Kernel& kind, const Share& share, int warp, int lane,
                  int i) {
    const Role role(p, kind, share, warp / 4);
    const int product = i / 8, tap = product / kind.blocks, block = product % kind.blocks;
    k = share.k + (role.block_k + block) * kBlock + i % 8 * 8 + lane % 4 * 2;
    c = share.c + role.block_c * kBlock + warp % 4 * 16 + lane / 4 * 2;
    r = share.r + role.filter_row;
    s = share.s + tap;
    exists = role.exists && s < p.S && k < p.group_K && c < p.group_C;
  }
};

__device__ inline void store(const Params& p, const Share& share, const Spot& at,
                             const float (&sums)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float* to = p.weight + (share.group * p.group_K + at.k + i) * p.weight_k + at.c * p.weight_c +
                at.r * p.weight_r + at.s * p.weight_s;
    if (p.pairs_c) {
      *reinterpret_cast<float2*>(to) = make_float2(sums[i], sums[i + 2]);
    } else {
      to[0] = sums[i];
      to[p.weight_c] = sums[i + 2];
    }
  }
}

// A block's shared memory.
struct Memory {
  __device__ Memory(const Params& p, char* memory)
      : stages(memory),
        full(reinterpret_cast<ptx::Barrier*>(memory + p.stages * p.stage_bytes)),
        ready(full + kMostStages),
        empty(ready + kMostStages) {}

  char* stages;
  ptx::Barrier *full, *ready, *empty;  // copied, transposed, read
};

// A whole warp; one of the threads starts the copies. Those of dy that two blocks share each of
// them starts in turn.
__device__ inline void load_boxes(const Params& p, const Memory& memory, const Share& share) {
  const bool elected = ptx::elect_one();
  const int k = share.group * p.group_K + share.k, c = share.group * p.group_C + share.c;
  const int x_boxes =
      min(p.along_c * (kBlock / kXBlock), (p.group_C - share.c + kXBlock - 1) / kXBlock);
  const int bytes = share.blocks_k * p.y_brought + x_boxes * p.x_brought;
  const int first_h = share.r * p.dilation_h - p.pad_h, first_w = share.s * p.dilation_w - p.pad_w;
  const int rank = ptx::cluster_rank();
  constexpr uint16_t kBoth = 3;
  int copies = 0;  // of dy
  ptx::Turn turn;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    int32_t n = tile;
    const int w = p.by_tiles_q.split(n) * p.columns, h = p.by_tiles_p.split(n) * p.rows;
    n *= p.images;
    char* y = memory.stages + turn.stage * p.stage_bytes;
    char* x = y + p.x_at;
    ptx::Barrier* full = &memory.full[turn.stage];
    ptx::wait(&memory.empty[turn.stage], turn.parity ^ 1);
    if (elected) {
      ptx::arrive_expecting(full, bytes);
#pragma unroll 1
      for (int i = 0; i < share.blocks_k; ++i, y += p.y_box_bytes) {
        const int line = p.by_images ? n : h, other = p.by_images ? h : n;
        if (p.cluster == 1) {
          ptx::copy_box(y, &p.y, full, k + i * kBlock, line, w, other);
        } else if (copies++ % 2 == rank) {
          ptx::multicast_box(kBoth, y, &p.y, full, k + i * kBlock, line, w, other);
        }
      }
#pragma unroll 1
      for (int i = 0; i < x_boxes; ++i) {
        ptx::copy_box(x + i * p.x_box_bytes, &p.x, full, c + i * kXBlock, w * p.stride_w + first_w,
                      h * p.stride_h + first_h, n);
      }
    }
    turn.advance(p.stages);
  }
  if (p.cluster == 1) return;
  // The other block tells this one that it has read its boxes.
  for (int i = 0; i < p.stages; ++i) {
    ptx::wait(&memory.empty[turn.stage], turn.parity ^ 1);
    turn.advance(p.stages);
  }
}

// So many warps transpose what dy's boxes have brought: of four lines, one column, the lines'
// elements of each channel come to lie side by side.
template <int kWarps>
__device__ inline void transpose(const Params& p, const Memory& memory, const Share& share,
                                 int warp) {
  constexpr int kUnits = 2, kHalves = kBlock / 32;  // at a time, of a unit
  const int bytes = share.blocks_k * p.y_box_bytes;
  const uint32_t lane = threadIdx.x % 32;
  ptx::Turn turn;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    ptx::wait(&memory.full[turn.stage], turn.parity);
    const uint32_t stage = ptx::shared_address(memory.stages + turn.stage * p.stage_bytes);
#pragma unroll 1
    for (int first = warp * kUnits * kUnitBytes; first < bytes;
         first += kWarps * kUnits * kUnitBytes) {
      uint32_t v[kUnits * kHalves][kLines];
#pragma unroll
      for (int i = 0; i < kUnits * kHalves; ++i) {
        const uint32_t from =
            stage + first + i / kHalves * kUnitBytes + (i % kHalves * 32 + lane) * 4;
#pragma unroll
        for (int line = 0; line < kLines; ++line) {
          v[i][line] = ptx::load_shared<uint32_t>(from + line * kYRowBytes);
        }
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kUnits * kHalves; ++i) {
        ptx::store_shared(stage + first + (i * 32 + lane) * 16,
                          make_uint4(v[i][0], v[i][1], v[i][2], v[i][3]));
      }
    }
    ptx::fence_shared_writes();
    __syncwarp();
    if (lane == 0) ptx::arrive(&memory.ready[turn.stage]);
    turn.advance(p.stages);
  }
}

// The sums of a warpgroup: 64 input channels, rows of the products.
template <int kKernel>
__device__ inline void multiply(const Params& p, const Memory& memory, const Share& share,
                                const Role& role, int warp,
                                float (&sums)[kKernels[kKernel].products()][32]) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kKept = kKind.window() - kKind.fresh();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t stages = ptx::shared_address(memory.stages);
  const uint32_t y_own = stages + role.block_k * p.y_box_bytes;
  // A thread's rows are two neighbouring channels.
  const uint32_t x_own = stages + p.x_at + (role.block_c * 2 + warp % 4 / 2) * p.x_box_bytes +
                         role.filter_row * p.x_filter_row + lane % 4 * p.x_line + warp % 2 * 64 +
                         lane / 4 * 8;
  const uint32_t empty =
      ptx::cluster_address(ptx::shared_address(memory.empty), lane < p.cluster ? lane : 0);
  const auto load_x = [](uint32_t at) {
    return ptx::load_shared<uint2>(at ^ (at >> 3 & 0x70));  // the swizzle
  };
  ptx::Turn turn;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    ptx::wait(&memory.full[turn.stage], turn.parity);
    ptx::wait(&memory.ready[turn.stage], turn.parity);
    const uint32_t stage = turn.stage * p.stage_bytes;
#pragma unroll 1
    for (int i = 0; i < p.outer; ++i) {
#pragma unroll 1
      for (int j = 0; j < p.groups; ++j) {
        uint32_t x = x_own + stage + i * p.x_outer + j * p.x_group;
        uint64_t y =
            ptx::describe_blocks(y_own + stage + i * p.y_outer + j * kUnitBytes, p.y_column);
        uint2 window[kKind.window()];
#pragma unroll
        for (int l = 0; l < kKept; ++l) window[l] = load_x(x + l * kXRowBytes);
        x += kKept * kXRowBytes;
#pragma unroll 1
        for (int pair = 0; pair < p.pairs; ++pair) {
#pragma unroll
          for (int l = 0; l < kKind.fresh(); ++l) {
            const uint32_t far =
                kKind.step == 0 ? l / kPair * p.x_tap + l % kPair * p.x_column : l * kXRowBytes;
            window[kKept + l] = load_x(x + far);
          }
          ptx::begin_products();
#pragma unroll
          for (int tap = 0; tap < kKind.taps; ++tap) {
            const uint2& first = window[kKind.step == 0 ? tap * kPair : tap];
            const uint2& second = window[kKind.step == 0 ? tap * kPair + 1 : tap + kKind.step];
            const uint32_t rows[4] = {first.x, first.y, second.x, second.y};
#pragma unroll
            for (int block = 0; block < kKind.blocks; ++block) {
              ptx::Product<float, kBlock>::add(sums[tap * kKind.blocks + block], rows,
                                               ptx::advance(y, block * p.y_box_bytes), 1);
            }
          }
          ptx::commit_products();
          ptx::await_products<0>();
          x += kKind.step == 0 ? kPair * p.x_column : kKind.fresh() * kXRowBytes;
          y = ptx::advance(y, kPair * p.y_column);
#pragma unroll
          for (int l = 0; l < kKept; ++l) window[l] = window[kKind.fresh() + l];
        }
      }
    }
    __syncwarp();
    if (lane < p.cluster) ptx::arrive_cluster(empty + turn.stage * sizeof(ptx::Barrier));
    turn.advance(p.stages);
  }
}

template <int kKernel>
__global__ void __launch_bounds__(kKernels[kKernel].threads(), 1)
    sum_weights(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kTransposingWarps = 3;
  // Of 512 registers that each warp in four has.
  constexpr int kGiven = kKind.warpgroups == 3 ? 80 : 88;
  constexpr int kTaken = kKind.warpgroups == 3 ? 144 : 208;
  extern __shared__ __align__(1024) char stages[];
  const Memory memory(p, stages);
  const Share share(p, kKind, static_cast<int32_t>(blockIdx.x));
  // The same for all threads of a warp, and the compiler is told so.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  ptx::start_dependents();
  if (threadIdx.x < kMostStages) {
    ptx::init_barrier(&memory.full[threadIdx.x], 1);
    ptx::init_barrier(&memory.ready[threadIdx.x], kTransposingWarps);
    int readers = share.warpgroups(p, kKind);
    if (p.cluster > 1) {
      readers += Share(p, kKind, static_cast<int32_t>(blockIdx.x ^ 1)).warpgroups(p, kKind);
    }
    ptx::init_barrier(&memory.empty[threadIdx.x], readers * 4);
    ptx::fence_barrier_init();
  }
  if (threadIdx.x == 32) {
    ptx::prefetch_map(&p.x);
    ptx::prefetch_map(&p.y);
  }
  __syncthreads();
  if (p.cluster > 1) ptx::meet_cluster();
  if (warp >= kKind.warpgroups * 4) {
    ptx::give_registers<kGiven>();
    if (warp == kKind.warpgroups * 4) {
      load_boxes(p, memory, share);
    } else {
      transpose<kTransposingWarps>(p, memory, share, warp - kKind.warpgroups * 4 - 1);
    }
    return;
  }
  const Role role(p, kKind, share, warp / 4);
  if (!role.exists) return;
  ptx::take_registers<kTaken>();
  float sums[kKind.products()][32] = {};
  multiply<kKernel>(p, memory, share, role, warp, sums);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kVectors = kKind.products() * 8;
  if (p.partial != nullptr) {
    float4* const to =
        p.partial + (int64_t{blockIdx.x} * kKind.warpgroups * 4 + warp) * kVectors * 32 + lane;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float* sum = sums[i / 8] + i % 8 * 4;
      to[i * 32] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const Spot at(p, kKind, share, warp, lane, i);
    const float* sum = sums[i / 8] + i % 8 * 4;
    if (at.exists) store(p, share, at, {sum[0], sum[1], sum[2], sum[3]});
  }
#endif
}

}  // namespace customconv::implicit_gemm::weight::tf32
