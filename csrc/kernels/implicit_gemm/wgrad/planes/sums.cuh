// Channels-first weight gradients: rows of x and slabs of dy come to shared memory, warpgroups
// fetch operands from the rows, as each tap needs them, and multiply them by the slabs.
#pragma once

#include "kernels/implicit_gemm/promotion.cuh"
#include "kernels/implicit_gemm/wgrad/planes/operands.cuh"
#include "kernels/implicit_gemm/wgrad/planes/rows.cuh"
#include "kernels/implicit_gemm/wgrad/planes/runs.cuh"
#include "kernels/implicit_gemm/wgrad/planes/totals.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm::wgrad::planes {

// The sums of a warpgroup.
template <typename T, int kKernel, Fetch kFetch, bool kOdd>
__device__ inline void multiply(
    const Params<T>& p, const Memory& memory, const Share& share, const Rows& rows, int first_step,
    float (&sum)[kKernels[kKernel].taps][kKernels[kKernel].k_blocks * 32]) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kTogether = kKind.together();
  const uint64_t slabs = ptx::describe_rows(ptx::shared_address(memory.stages), 1024);
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    ptx::wait(&memory.full[state.stage], state.parity);
    const uint32_t stage = state.stage * p.stage_bytes;
    std::conditional_t<has_table(kFetch), LookedUp<T, kFetch, kKind.taps>,
                       Fetched<T, kFetch, kOdd, kKind.taps>>
        fetched[kTogether];
    uint32_t operand[kTogether][kKind.taps][4];
    const auto load = [&](int step) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        fetched[i].load(p, stage, rows, min(step + i * p.along_p, p.steps - 1));
      }
    };
    const auto join = [&] {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) fetched[i].join(rows, operand[i]);
    };
    const auto add = [&](int step, int count) {
      ptx::warpgroup_arrive();
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const uint64_t own = ptx::advance(slabs, stage + p.slab_at[step + i * p.along_p]);
#pragma unroll
        for (int tap = 0; tap < kKind.taps; ++tap) {
          ptx::Product<T, kKind.k_blocks * kBlock>::add(sum[tap], operand[i][tap], own, 1);
        }
      }
      ptx::warpgroup_commit_batch();
    };
    load(first_step);
    join();
#pragma unroll 1
    for (int step = first_step; step < p.steps; step += kTogether * p.along_p) {
      // The next operands are on their way while these are multiplied. They are asked for first, so
      // that they need registers of their own: the compiler takes those that products under way
      // still read for free.
      load(step + kTogether * p.along_p);
      if (kTogether > 1 && step + p.along_p < p.steps) {
        add(step, kTogether);
      } else {
        add(step, 1);
      }
      ptx::warpgroup_wait<0>();
      join();
    }
    ptx::arrive(&memory.empty[state.stage]);
    state.advance(p.stages);
  }
}

// The same of a single tap whose pixels lie in slabs, too, from `x` on: nothing is fetched, and a
// tile's last product is under way while the next tile is awaited.
template <typename T, int kKernel>
__device__ inline void multiply_slabs(const Params<T>& p, const Memory& memory, const Share& share,
                                      uint32_t x, int first_step,
                                      float (&sum)[kKernels[kKernel].k_blocks * 32]) {
  constexpr Kernel kKind = kKernels[kKernel];
  const uint64_t y_slabs = ptx::describe_rows(ptx::shared_address(memory.stages), 1024);
  const uint64_t x_slabs = ptx::describe_rows(x, 1024);
  ptx::PipelineState state;
  int done = -1;  // the stage that products under way may still read
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    ptx::wait(&memory.full[state.stage], state.parity);
    const uint32_t stage = state.stage * p.stage_bytes;
#pragma unroll 1
    for (int step = first_step; step < p.steps; step += p.along_p) {
      ptx::warpgroup_arrive();
      ptx::Product<T, kKind.k_blocks * kBlock>::add(
          sum, ptx::advance(x_slabs, stage + p.unit_at[step][0]),
          ptx::advance(y_slabs, stage + p.slab_at[step]), 1);
      ptx::warpgroup_commit_batch();
      ptx::warpgroup_wait<1>();
      if (done >= 0) ptx::arrive(&memory.empty[done]);
      done = -1;
    }
    done = state.stage;
    state.advance(p.stages);
  }
  ptx::warpgroup_wait<0>();
}

// Waits until a stage is complete.
template <int kKernel, typename T>
__device__ inline void await_stage(const Params<T>& p, const Memory& memory,
                                   const ptx::PipelineState& state) {
  ptx::wait(&memory.full[state.stage], state.parity);
  if (kKernels[kKernel].halves && halves_copies(p)) {
    ptx::wait(&memory.halved[state.stage], state.parity);
  }
}

// The sums of a warpgroup, of halves of a single tap. The small products of two steps come first:
// see promotion.cuh, and products.cuh of the main loop. Operands are fetched and halved while
// products of others are under way.
template <typename T, int kKernel, Fetch kFetch>
__device__ inline void multiply_halves(const Params<T>& p, const Memory& memory, const Share& share,
                                       const Rows& rows, int first_step,
                                       float (&sum)[kKernels[kKernel].k_blocks * 32]) {
  constexpr Kernel kKind = kKernels[kKernel];
  using Product = ptx::Product<T, kKind.k_blocks * kBlock>;
  const uint64_t slabs = ptx::describe_rows(ptx::shared_address(memory.stages), 1024);
  Promotion<kKind.k_blocks * 32> promotion;
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    await_stage<kKernel>(p, memory, state);
    const uint32_t stage = state.stage * p.stage_bytes;
    std::conditional_t<has_table(kFetch), LookedUp<T, kFetch, 1>, Fetched<T, kFetch, false, 1>>
        fetched;
    struct Operand {
      uint32_t high[4], low[4];
    };
    Operand first, second;
    const auto load = [&](int step) { fetched.load(p, stage, rows, min(step, p.steps - 1)); };
    const auto join = [&](Operand& operand) {
      uint32_t word[1][4];
      fetched.template join</*kRounds=*/false>(rows, word);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const Halved halved = halve(word[0][j]);
        operand.high[j] = halved.high;
        operand.low[j] = halved.low;
      }
    };
    const auto slab = [&](int step) { return ptx::advance(slabs, stage + p.slab_at[step]); };
    const auto add_small = [&](const Operand& operand, uint64_t own, int accumulate) {
      Product::add(promotion.part, operand.low, own, accumulate);
      Product::add(promotion.part, operand.high, ptx::advance(own, p.low_y), 1);
    };
    const auto add_large = [&](const Operand& operand, uint64_t own) {
      Product::add(promotion.part, operand.high, own, 1);
      ptx::warpgroup_commit_batch();
    };
    load(first_step);
    join(first);
#pragma unroll 1
    for (int step = first_step; step < p.steps; step += 2 * p.along_p) {
      const int next = step + p.along_p;
      load(next);
      ptx::warpgroup_arrive();
      add_small(first, slab(step), 0);
      ptx::warpgroup_commit_batch();
      join(second);
      load(next + p.along_p);
      ptx::warpgroup_arrive();
      if (next < p.steps) {
        add_small(second, slab(next), 1);
        add_large(first, slab(step));
        add_large(second, slab(next));
      } else {
        add_large(first, slab(step));
        ptx::warpgroup_commit_batch();
      }
      ptx::warpgroup_wait<1>();
      ptx::keep(first.high);
      ptx::keep(first.low);
      join(first);
      ptx::warpgroup_wait<0>();
      ptx::keep(second.high);
      ptx::keep(second.low);
      promotion.promote();
    }
    ptx::arrive(&memory.empty[state.stage]);
    state.advance(p.stages);
  }
  promotion.finish(sum);
}

// The same where pixels lie in slabs, too.
template <typename T, int kKernel>
__device__ inline void multiply_halved_slabs(const Params<T>& p, const Memory& memory,
                                             const Share& share, uint32_t x, int first_step,
                                             float (&sum)[kKernels[kKernel].k_blocks * 32]) {
  constexpr Kernel kKind = kKernels[kKernel];
  using Product = ptx::Product<T, kKind.k_blocks * kBlock>;
  const uint64_t y_slabs = ptx::describe_rows(ptx::shared_address(memory.stages), 1024);
  const uint64_t x_slabs = ptx::describe_rows(x, 1024);
  Promotion<kKind.k_blocks * 32> promotion;
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    await_stage<kKernel>(p, memory, state);
    const uint32_t stage = state.stage * p.stage_bytes;
#pragma unroll 1
    for (int step = first_step; step < p.steps; step += 2 * p.along_p) {
      const auto add = [&](int count) {
        ptx::warpgroup_arrive();
#pragma unroll
        for (int small = 1; small >= 0; --small) {
#pragma unroll
          for (int i = 0; i < count; ++i) {
            const uint64_t own_x =
                ptx::advance(x_slabs, stage + p.unit_at[step + i * p.along_p][0]);
            const uint64_t own_y = ptx::advance(y_slabs, stage + p.slab_at[step + i * p.along_p]);
            if (small != 0) {
              Product::add(promotion.part, ptx::advance(own_x, p.low_x), own_y, i > 0);
              Product::add(promotion.part, own_x, ptx::advance(own_y, p.low_y), 1);
            } else {
              Product::add(promotion.part, own_x, own_y, 1);
            }
          }
        }
        ptx::warpgroup_commit_batch();
      };
      if (step + p.along_p < p.steps) {
        add(2);
      } else {
        add(1);
      }
      ptx::warpgroup_wait<0>();
      promotion.promote();
    }
    ptx::arrive(&memory.empty[state.stage]);
    state.advance(p.stages);
  }
  promotion.finish(sum);
}

// A thread block, and what it sums up.
struct Block {
  int rank;    // in its cluster
  int part;    // of sums, before warpgroups have some each
  int number;  // of the blocks of a part
  Share share;

  template <typename T>
  __device__ Block(const Params<T>& p, int32_t index)
      : rank(p.by_cluster.split(index)), share(p, index) {
    part = share.split;
    number = index - part * p.blocks;
    share.split = part * p.by_cluster.divisor() + rank;
  }
};

// Which of the sums a thread has.
struct Role {
  int warp, lane;
  int first_step;         // the first of a tile's for its warpgroup
  int place;              // of its warpgroup, among those of a split
  int box_c, filter_row;  // its warpgroup's

  template <typename T>
  __device__ Role(const Params<T>& p, int thread)
      // The same for all threads of a warp, and the compiler is told so.
      : warp(__shfl_sync(~0u, thread / 32, 0)), lane(thread % 32) {
    const int warpgroup = warp / 4;
    first_step = p.along_p > 1 ? warpgroup : 0;
    place = warpgroup - first_step;
    box_c = p.along_rows > 1 ? place : 0;
    filter_row = place - box_c;
  }
};

template <typename T, int kKernel, Fetch kFetch>
__global__ void __launch_bounds__(kKernels[kKernel].threads(), 1)
    sum_planes(const __grid_constant__ Params<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr Kernel kKind = kKernels[kKernel];
  static_assert(kKind.shares_registers());
  extern __shared__ __align__(1024) char stages[];
  const Memory memory(p, stages);
  const Share share = Block(p, static_cast<int>(blockIdx.x)).share;
  const Role role(p, static_cast<int>(threadIdx.x));
  const int sum_threads = p.along_p * share.boxes_c * share.boxes_r * 128;
  ptx::launch_dependent_grids();
  if (threadIdx.x == 0) {
    // For a warp that starts copies, one thread arrives.
    const int arrive = has_table(kFetch) ? kKind.loaders - 31 : p.boxed ? 1 : kKind.loaders;
    ptx::init_barriers(memory.full, kMostStages, arrive);
    if (kKind.halves) ptx::init_barriers(memory.halved, kMostStages, kKind.loaders - 32);
    ptx::init_barriers(memory.empty, kMostStages, sum_threads);
    ptx::init_barriers(memory.raw_full, kRawStages, 1);
    ptx::init_barrier(memory.arrived, 1);
    ptx::fence_barrier_init();
  }
  if (p.has_zeros) {  // of x, that nobody loads
    for (int i = 0; i < p.stages; ++i) {
      char* const x = stages + i * p.stage_bytes + p.x_at;
      for (int at = threadIdx.x * kUnitBytes; at < p.stage_bytes - p.x_at;
           at += kKind.threads() * kUnitBytes) {
        *reinterpret_cast<uint4*>(x + at) = make_uint4(0, 0, 0, 0);
      }
    }
  }
  __syncthreads();
  if (role.warp >= kKind.warpgroups * 4) {
    ptx::warpgroup_reg_dealloc<kKind.loader_registers>();
    const int thread = static_cast<int>(threadIdx.x) - kKind.warpgroups * 128;
    if constexpr (has_table(kFetch)) {
      if (thread < 32) {
        load_runs<T, kKernel>(p, memory, share, role.lane);
      } else {
        arrange_runs<T, kKernel>(p, memory, share, thread - 32);
      }
    } else if (kKind.has(kByBoxes) && p.boxed) {
      if (thread < 32) {
        load_boxes<T, kKernel>(p, memory, share);
      } else if constexpr (kKind.halves) {
        halve_boxes(p, memory, share, thread - 32, kKind.loaders - 32);
      }
    } else if constexpr (kKind.has(kByThreads)) {
      if (p.vector == 8) {
        load_rows<T, kKernel, 8>(p, memory, share, thread);
      } else if (p.vector == 4) {
        load_rows<T, kKernel, 4>(p, memory, share, thread);
      } else {
        load_rows<T, kKernel, 0>(p, memory, share, thread);
      }
    }
    return;
  }
  if (role.box_c >= share.boxes_c || role.filter_row >= share.boxes_r) return;
  ptx::warpgroup_reg_alloc<kKind.math_registers>();
  float sum[kKind.taps][kKind.k_blocks * 32] = {};
  constexpr int kSize = static_cast<int>(sizeof(T));
  constexpr int kPixels = kUnit<T> / 4;  // of a thread
  const int first = first_tap(p, share.chunk, kKind.taps);
  const uint32_t x = ptx::shared_address(stages) + p.x_at + (p.flat ? 0 : role.box_c * p.x_block);
  Rows rows;
  bool odd = false;
  if constexpr (kFetch == Fetch::kSlabs && kKind.halves) {
    multiply_halved_slabs<T, kKernel>(p, memory, share, x, role.first_step, sum[0]);
  } else if constexpr (kFetch == Fetch::kSlabs) {
    multiply_slabs<T, kKernel>(p, memory, share, x, role.first_step, sum[0]);
  } else if constexpr (has_table(kFetch)) {
    const int run = p.x_runs > 1 ? role.filter_row : 0;
    rows.table = ptx::shared_address(stages) + p.table_at + role.filter_row * p.table_bytes +
                 role.lane % 4 * (kKind.taps > 1 ? 16 : 8);
    // Pixels of words are as far from those of dy in all tiles.
    const Beginning tile(p, share, 0);
    const int begin =
        begin_of_run(p, Meeting(p, share, first, tile.pixel), tile.before, role.filter_row);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = place_of_row(role.warp % 4 * 16 + role.lane / 4 + i * 8, p.row_classes);
      const int slack = slack_of<T>(row / (kBlock / p.x_classes), p.x_c);
      const int half = kFetch == Fetch::kTablePairs ? (begin + slack) & 1 : 0;
      rows.at[i] = x + run * p.x_row + row * p.x_channel + (slack - half) * kSize;
      rows.shift[i] = half * 16;
    }
  } else {
    const int slack = Begin(p, first).slack;
    odd = kFetch != Fetch::kElements && slack % 2 != 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = role.warp % 4 * 16 + role.lane / 4 + i * 8;
      rows.at[i] = x + (slack + role.lane % 4 * kPixels * p.stride_w) * kSize - (odd ? kSize : 0);
      if (p.flat) {
        int32_t rest = min(share.c + role.box_c * kBlock + row, p.group_C - 1);
#pragma unroll
        for (int j = 0; j < 2; ++j) rows.at[i] += p.by_flat[j].split(rest) * p.flat_bytes[j];
        rows.at[i] += rest * p.flat_bytes[2];
      } else {
        rows.at[i] += role.filter_row * p.dilation_h * p.x_row + row * p.x_channel;
      }
    }
  }
  if constexpr (kFetch != Fetch::kSlabs && kKind.halves) {
    multiply_halves<T, kKernel, kFetch>(p, memory, share, rows, role.first_step, sum[0]);
  } else if constexpr (kFetch != Fetch::kSlabs) {
    if (odd) {
      constexpr bool kCanBeOdd = kFetch != Fetch::kElements && !has_table(kFetch);
      multiply<T, kKernel, kFetch, kCanBeOdd>(p, memory, share, rows, role.first_step, sum);
    } else {
      multiply<T, kKernel, kFetch, false>(p, memory, share, rows, role.first_step, sum);
    }
  }
  constexpr int kVectors = kKind.blocks() * 8;
  float* const sums = &sum[0][0];
  const Block block(p, ptx::block_index_anew());
  const Role own_role(p, ptx::thread_index_anew());
  const int cluster = p.by_cluster.divisor();
  const Own own{block.rank, __ffs(8 / cluster) - 1};
  if (cluster > 1) add_cluster<kVectors>(memory, sum_threads, own, cluster, sums);
  if (p.partial == nullptr) {
    store_in_order<kKernel>(p, memory, block.share, sum_threads, own, own_role.box_c,
                            own_role.filter_row, sums);
    return;
  }
  // Parts are one behind the other.
  const int64_t number =
      ((int64_t{block.part} * p.along_p + own_role.first_step) * p.blocks + block.number) *
          (kKind.warpgroups / p.along_p) +
      own_role.place;
  float4* const to = p.partial + (number * 4 + own_role.warp % 4) * kVectors * 32 + own_role.lane;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (!own.has(i)) continue;
    to[own.origin(i) * 32] =
        make_float4(sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]);
  }
#endif
}

}  // namespace customconv::implicit_gemm::wgrad::planes
