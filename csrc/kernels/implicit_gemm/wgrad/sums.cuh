// Weight gradients: TMA brings boxes of dy and x, or warps fill them or transpose planes
// into them, warpgroups multiply them where they lie, all taps of a box.
#pragma once

#include "kernels/implicit_gemm/wgrad/anew.cuh"
#include "kernels/implicit_gemm/wgrad/cluster.cuh"
#include "kernels/implicit_gemm/wgrad/fill.cuh"
#include "kernels/implicit_gemm/wgrad/geometry.h"
#include "kernels/implicit_gemm/wgrad/output.cuh"
#include "kernels/implicit_gemm/wgrad/transpose.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm::wgrad {

// Pairs of runs of pixels in one dimension, and how far apart they are in boxes, in bytes.
struct Loop {
  int count;
  uint32_t y_step, x_step;
};

template <typename T>
struct Params : Output<T> {
  CUtensorMap x, y;
  Filled<T> filled_x, filled_y;   // where TMA can't
  bool transposes;                // tensors are planes:
  Transposed<T> transposed[2];    // x and dy
  Loop loops[3];                  // the longest last
  uint32_t y_pair, x_pair;        // bytes from the first run of a pair to the second
  uint32_t column_step;           // bytes from a block of columns to the next
  uint32_t filter_row;            // bytes of x from a row of the filter to the next
  int y_box_bytes, x_box_bytes;   // of memory
  int y_brought, x_brought;       // what copies bring
  int x_at, stage_bytes, stages;  // where boxes of x are in a stage
  int images, rows, columns, tiles;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  Divider<int32_t> by_tiles_q, by_tiles_p;
  bool clustered;               // see Tile
  Divider<int32_t> by_cluster;  // its thread blocks, neighbours
};

// A block's shared memory.
struct Memory {
  template <typename T>
  __device__ Memory(const Params<T>& p, char* memory)
      : stages(memory),
        full(reinterpret_cast<ptx::Barrier*>(memory + p.stages * p.stage_bytes)),
        empty(full + kMostStages),
        arrived(empty + kMostStages),
        tables(memory + p.stages * p.stage_bytes + kBarrierBytes) {}

  char* stages;
  ptx::Barrier *full, *empty;
  ptx::Barrier* arrived;  // the sums of the cluster's other blocks
  char* tables;           // of places in boxes that are transposed
};

// One of the threads starts the copies: a warp, or where threads fill boxes, all of those that do.
template <typename T, int kKernel, bool kFills>
__device__ inline void load_boxes(const Params<T>& p, const Memory& memory, const Share& share,
                                  int thread) {
  constexpr Kernel kKind = kKernels[kKernel];
  const bool elected = kFills ? thread == 0 : ptx::elect_one();
  const bool copies_x = !kFills || p.filled_x.data == nullptr;
  const bool copies_y = !kFills || p.filled_y.data == nullptr;
  const int k = share.group * p.group_K + share.k, c = share.group * p.group_C + share.c;
  const int bytes =
      (copies_y ? share.boxes_k * p.y_brought : 0) + (copies_x ? share.boxes_c * p.x_brought : 0);
  const int first_h = share.r * p.dilation_h - p.pad_h;
  const int first_w = first_tap(p, share.chunk, kKind.blocks) * p.dilation_w - p.pad_w;
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    const Origin at(p, tile);
    char* y = memory.stages + state.stage * p.stage_bytes;
    char* x = y + p.x_at;
    ptx::Barrier* full = &memory.full[state.stage];
    ptx::wait(&memory.empty[state.stage], state.parity ^ 1);
    const int column = at.q * p.stride_w + first_w, row = at.p * p.stride_h + first_h;
    if (elected) {
      ptx::arrive_and_expect_tx(full, bytes);
#pragma unroll 1
      for (int i = 0; copies_y && i < share.boxes_k; ++i) {
        ptx::tma_load(y + i * p.y_box_bytes, &p.y, full, k + i * kBlock, at.q, at.p, at.n);
      }
#pragma unroll 1
      for (int i = 0; copies_x && i < share.boxes_c; ++i) {
        ptx::tma_load(x + i * p.x_box_bytes, &p.x, full, c + i * kBlock, column, row, at.n);
      }
    }
    if constexpr (kFills) {
      const auto fill = [&](const Filled<T>& from, char* to, int channel, int w, int h) {
        fill_box<kRowBytes / 16, /*kSwizzled=*/true>(from, ptx::shared_address(to), channel,
                                                     {w, h, at.n}, thread, kFillers);
      };
#pragma unroll 1
      for (int i = 0; !copies_y && i < share.boxes_k; ++i) {
        fill(p.filled_y, y + i * p.y_box_bytes, k + i * kBlock, at.q, at.p);
      }
#pragma unroll 1
      for (int i = 0; !copies_x && i < share.boxes_c; ++i) {
        fill(p.filled_x, x + i * p.x_box_bytes, c + i * kBlock, column, row);
      }
      ptx::fence_shared_writes();
      ptx::arrive(full);
    }
    state.advance(p.stages);
  }
}

// Threads transpose planes into boxes.
template <typename T, int kKernel>
__device__ inline void turn_boxes(const Params<T>& p, const Memory& memory, const Share& share,
                                  int thread) {
  constexpr Kernel kKind = kKernels[kKernel];
  const uint32_t tables[2] = {ptx::shared_address(memory.tables),
                              ptx::shared_address(memory.tables) + p.transposed[0].count * 8};
  const int first_w = first_tap(p, share.chunk, kKind.blocks) * p.dilation_w - p.pad_w;
  // Tiles begin at even columns.
  const int odd = p.transposed[0].pairs ? first_w & 1 : 0;
  tabulate_places(p.transposed[0], tables[0], odd, thread, kFillers);
  tabulate_places(p.transposed[1], tables[1], /*odd=*/0, thread, kFillers);
  ptx::named_barrier_sync<kFillers>(kFillersBarrier);
  const int k = share.group * p.group_K + share.k, c = share.group * p.group_C + share.c;
  const int first_h = share.r * p.dilation_h - p.pad_h;
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    const Origin at(p, tile);
    const uint32_t y = ptx::shared_address(memory.stages) + state.stage * p.stage_bytes;
    bool waits = true;
    const auto may_store = [&] {
      if (waits) ptx::wait(&memory.empty[state.stage], state.parity ^ 1);
      waits = false;
    };
#pragma unroll 1
    for (int i = 0; i < share.boxes_c + share.boxes_k; ++i) {
      const bool of_y = i >= share.boxes_c;
      TurnedBox box{tables[1], y, k, 0, {at.q, at.p, at.n}, 0};
      if (of_y) {
        box.to += (i - share.boxes_c) * p.y_box_bytes;
        box.channel += (i - share.boxes_c) * kBlock;
      } else {
        box = {tables[0],
               y + p.x_at + i * p.x_box_bytes,
               c + i * kBlock,
               0,
               {at.q * p.stride_w + first_w, at.p * p.stride_h + first_h, at.n},
               odd};
      }
      const Transposed<T>& from = p.transposed[of_y];
      box.channels = from.channels - box.channel;
      const bool few = box.channels <= kBlock / 2;
      if (from.pairs) {
        few ? turn_box<true, kBlock / 2>(from, box, thread, kFillers, may_store)
            : turn_box<true, kBlock>(from, box, thread, kFillers, may_store);
      } else {
        few ? turn_box<false, kBlock / 2>(from, box, thread, kFillers, may_store)
            : turn_box<false, kBlock>(from, box, thread, kFillers, may_store);
      }
    }
    may_store();  // where there was no place
    ptx::fence_shared_writes();
    ptx::arrive(&memory.full[state.stage]);
    state.advance(p.stages);
  }
}

// The sums of a warpgroup: 64 output channels, rows of the instruction, by its columns.
template <typename T, int kKernel>
__device__ inline void multiply(const Params<T>& p, const Memory& memory, const Share& share,
                                int box_k, int filter_row,
                                float (&sum)[kKernels[kKernel].blocks * 32]) {
  constexpr Kernel kKind = kKernels[kKernel];
  const uint32_t stages = ptx::shared_address(memory.stages);
  const uint64_t y = ptx::describe_transposed(stages + box_k * p.y_box_bytes, 16, p.y_pair);
  const uint64_t x = ptx::describe_transposed(stages + p.x_at + filter_row * p.filter_row,
                                              p.column_step, p.x_pair);
  const bool tells = threadIdx.x % 128 == 0;
  ptx::PipelineState state;
  int done = -1;  // the stage that products under way may still read
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    ptx::wait(&memory.full[state.stage], state.parity);
    const uint32_t stage = state.stage * p.stage_bytes;
#pragma unroll 1
    for (int i = 0; i < p.loops[0].count; ++i) {
#pragma unroll 1
      for (int j = 0; j < p.loops[1].count; ++j) {
        uint32_t y_at = stage + i * p.loops[0].y_step + j * p.loops[1].y_step;
        uint32_t x_at = stage + i * p.loops[0].x_step + j * p.loops[1].x_step;
#pragma unroll 1
        for (int l = 0; l < p.loops[2].count; ++l) {
          ptx::warpgroup_arrive();
          ptx::TransposedProduct<T, kKind.blocks * kBlock>::add(sum, ptx::advance(y, y_at),
                                                                ptx::advance(x, x_at));
          ptx::warpgroup_commit_batch();
          ptx::warpgroup_wait<1>();
          if (tells && done >= 0) ptx::arrive(&memory.empty[done]);
          done = -1;
          y_at += p.loops[2].y_step;
          x_at += p.loops[2].x_step;
        }
      }
    }
    done = state.stage;
    state.advance(p.stages);
  }
  ptx::warpgroup_wait<0>();
}

// Stores what a thread block adds up of a cluster's sums: a thread eight columns of two rows at a
// time.
template <int kKernel, typename T>
__device__ inline void store_total(const Params<T>& p, const Share& share, const Gathered& all,
                                   int rank) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kLanes = 4;  // of a row
  const int warps = share.boxes_k * share.boxes_r * 4, log = all.log;
  const int thread = static_cast<int>(threadIdx.x);
  const int vector = thread & ((1 << log) - 1), row = thread >> log & 7;
  // Neighbouring threads take a row's vectors, in all or some of a warp's blocks of columns.
  const int first = thread >> (log + 3), step = warps * 4 >> log;
#pragma unroll 1
  for (int warp = first % warps; warp < warps; warp += step) {
#pragma unroll 1
    for (int block = first / warps; block < kKind.blocks; block += max(4 >> log, 1)) {
      const Spot at(p, share, kKind.blocks, warp, row * kLanes, block * 8 + (rank << log) + vector);
      if (!at.exists) continue;
      float4 fours[kLanes];
      all.add_up(warp * kKind.blocks + block, vector, row * kLanes, fours);
      float total[2][2 * kLanes];
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        total[0][i * 2] = fours[i].x;
        total[0][i * 2 + 1] = fours[i].y;
        total[1][i * 2] = fours[i].z;
        total[1][i * 2 + 1] = fours[i].w;
      }
      renew_eights(p, share, at, total);
      store_eights(p, share, at, total);
    }
  }
}

template <typename T, int kKernel, bool kFills>
__global__ void __launch_bounds__(kKernels[kKernel].threads(kFills), 1)
    sum_weights(const __grid_constant__ Params<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr Kernel kKind = kKernels[kKernel];
  extern __shared__ __align__(1024) char stages[];
  const Memory memory(p, stages);
  auto rest = static_cast<int32_t>(blockIdx.x);
  const int rank = p.by_cluster.split(rest);
  Share share(p, rest);
  if (p.clustered) share.split = rank;
  // The same for all threads of a warp, and the compiler is told so.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  ptx::launch_dependent_grids();
  if (threadIdx.x == 32) {
    if (!p.transposes && p.filled_x.data == nullptr) ptx::prefetch_tma_descriptor(&p.x);
    if (!p.transposes && p.filled_y.data == nullptr) ptx::prefetch_tma_descriptor(&p.y);
  }
  if (threadIdx.x == 0) {
    const int fillers = kFills ? kFillers : 0, copier = kFills && p.transposes ? 0 : 1;
    ptx::init_barriers(memory.full, kMostStages, copier + fillers);
    ptx::init_barriers(memory.empty, kMostStages, share.boxes_k * share.boxes_r);
    ptx::init_barrier(memory.arrived, 1);
    ptx::fence_barrier_init();
  }
  __syncthreads();
  // All threads of a cluster meet before sums overwrite boxes.
  const auto meet = [&] {
    __syncwarp();
    if (p.by_cluster.divisor() > 1) ptx::meet_cluster();
  };
  if (warp >= kKind.warpgroups * 4) {
    const int thread = static_cast<int>(threadIdx.x) - kKind.warpgroups * 128;
    if constexpr (kFills) {
      if (p.transposes) {
        turn_boxes<T, kKernel>(p, memory, share, thread);
        meet();
        return;
      }
    }
    load_boxes<T, kKernel, kFills>(p, memory, share, thread);
    meet();
    return;
  }
  const int warpgroup = warp / 4;
  const int box_k = p.along_rows > 1 ? warpgroup : 0, filter_row = p.along_rows > 1 ? 0 : warpgroup;
  if (box_k >= share.boxes_k || filter_row >= share.boxes_r) {
    meet();
    return;
  }
  float sum[kKind.blocks * 32] = {};
  multiply<T, kKernel>(p, memory, share, box_k, filter_row, sum);
  constexpr int kVectors = kKind.blocks * 8;
  if (p.clustered) {
    const Gathered all =
        exchange<kVectors>(memory.stages, memory.arrived, share.boxes_k * share.boxes_r * 128, rank,
                           p.by_cluster.divisor(), sum);
    store_total<kKernel>(p, share, all, rank);
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float4* const to =
      p.partial + (int64_t{blockIdx.x} * kKind.warpgroups * 4 + warp) * kVectors * 32 + lane;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    to[i * 32] = make_float4(sum[i * 4], sum[i * 4 + 1], sum[i * 4 + 2], sum[i * 4 + 3]);
  }
#endif
}

}  // namespace customconv::implicit_gemm::wgrad
