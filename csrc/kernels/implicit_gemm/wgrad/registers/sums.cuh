// Weight gradients with x in registers: TMA brings boxes of x and dy, or a warp fills
// them, a warpgroup transposes those of float32 dy, the others multiply dy by elements of x that
// they read.
#pragma once

#include "kernels/common/divide.cuh"
#include "kernels/implicit_gemm/halves.cuh"
#include "kernels/implicit_gemm/promotion.cuh"
#include "kernels/implicit_gemm/wgrad/anew.cuh"
#include "kernels/implicit_gemm/wgrad/cluster.cuh"
#include "kernels/implicit_gemm/wgrad/fill.cuh"
#include "kernels/implicit_gemm/wgrad/registers/geometry.h"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm::wgrad::registers {

// Products along one dimension of a tile, and how far apart their operands are, in bytes.
struct Loop {
  int count;
  uint32_t x_step, y_step;
};

template <typename T>
struct Params {
  CUtensorMap x, y;
  Filled<T> filled_x, filled_y;  // where TMA can't
  Loop loops[3];                 // of pairs of columns the last; of a single tap the longest
  uint32_t x_line;               // bytes of x from one to the next
  uint32_t x_column, x_tap, x_filter_row;
  uint32_t x_lead;                // few channels: bytes in front of what the first tap meets
  uint32_t y_column;              // of dy
  int x_box_bytes, y_box_bytes;   // of memory
  int low_y;                      // bytes of dy from high halves to low ones
  int x_brought;                  // what a copy brings, of y the whole box
  int x_at, stage_bytes, stages;  // where boxes of x are in a stage
  int along_k, along_c, filter_rows;
  bool by_images;
  int images, rows, columns, tiles, splits;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int R, S, group_C, group_K;
  int product_rows;  // of a group
  Divider<int32_t> by_chunks, by_filter_sets, by_blocks_c, by_blocks_k, by_groups;
  Divider<int32_t> by_tiles_q, by_tiles_p;
  Divider<int32_t> by_S, by_C;
  // The sums of each thread block, as its threads hold them, four at a time; null where results are
  // stored.
  float4* partial;
  T* weight;
  int64_t weight_k, weight_c, weight_r, weight_s;
  bool pairs_c;    // results of neighbouring input channels can be stored at once
  bool clustered;  // as of the other kernels
  Divider<int32_t> by_cluster;
  Source<T> from;

  __device__ bool fills() const { return filled_x.data != nullptr || filled_y.data != nullptr; }
};

// What a thread block sums up.
struct Share {
  int split;
  int group, k, c;                 // the first channels, of the group's
  int blocks_k, blocks_c, rows_r;  // blocks of channels that exist, and rows of the filter
  int r, s;                        // the first tap

  template <typename T>
  __device__ Share(const Params<T>& p, const Kernel& kind, int32_t rest) {
    s = p.by_chunks.split(rest) * kind.taps;
    r = p.by_filter_sets.split(rest) * p.filter_rows;
    c = p.by_blocks_c.split(rest) * p.along_c * kBlock;
    k = p.by_blocks_k.split(rest) * p.along_k * kind.blocks * kBlock;
    group = p.by_groups.split(rest);
    split = rest;
    blocks_k = min(p.along_k * kind.blocks, (p.group_K - k + kBlock - 1) / kBlock);
    blocks_c = min(p.along_c, (p.product_rows - c + kBlock - 1) / kBlock);
    rows_r = min(p.filter_rows, p.R - r);
  }

  // That have something to sum.
  template <typename T>
  __device__ int warpgroups(const Params<T>& p, const Kernel& kind) const {
    if (p.along_k > 1) return (blocks_k + kind.blocks - 1) / kind.blocks;
    return p.along_c > 1 ? blocks_c : rows_r;
  }
};

// And of it a warpgroup.
struct Role {
  int block_k, block_c, filter_row;
  bool exists;

  template <typename T>
  __device__ Role(const Params<T>& p, const Kernel& kind, const Share& share, int warpgroup) {
    const bool along_k = p.along_k > 1, along_c = p.along_c > 1;
    block_k = along_k ? warpgroup * kind.blocks : 0;
    block_c = along_c ? warpgroup : 0;
    filter_row = along_k || along_c ? 0 : warpgroup;
    exists = block_k < share.blocks_k && block_c < share.blocks_c && filter_row < share.rows_r;
  }
};

// An element of the weight.
struct Element {
  int k, c, r, s;  // k, c of the group's
  bool exists;
};

// Four of a thread's sums, the i-th such four of its warp: of two rows of the product, i / 2, by
// two output channels, neighbours.
struct Spot {
  int k, row, rows_apart, r, s;
  bool few, exists;

  template <typename T>
  __device__ Spot(const Params<T>& p, const Kernel& kind, const Share& share, int warp, int lane,
                  int i)
      : few(kind.few) {
    const Role role(p, kind, share, warp / 4);
    const int product = i / 8, tap = product / kind.blocks, block = product % kind.blocks;
    k = share.k + (role.block_k + block) * kBlock + i % 8 * 8 + lane % 4 * 2;
    row = first_row(kind, lane) + share.c + role.block_c * kBlock + warp % 4 * 16;
    rows_apart = kind.few ? 8 : 1;
    r = share.r + role.filter_row;
    s = share.s + tap;
    exists = role.exists && s < p.S && k < p.group_K && row < p.product_rows;
  }

  // A thread's first row of its warp's sixteen; its second is the next, or eight on for `few`.
  static __device__ int first_row(const Kernel& kind, int lane) {
    return kind.few ? lane / 4 : lane / 4 * 2;
  }

  template <typename T>
  __device__ Element element(const Params<T>& p, int i) const {
    Element e{k + i % 2, row + i / 2 * rows_apart, r, s, exists};
    e.exists = exists && e.k < p.group_K && e.c < p.product_rows;
    if (!few) return e;
    int32_t tap = e.c;
    e.c = p.by_C.split(tap);
    e.s = p.by_S.split(tap);
    e.r = tap;
    return e;
  }
};

// Computes those of a thread's four anew that are not numbers.
template <typename T>
__device__ inline void renew(const Params<T>& p, const Source<T>& from, const Share& share,
                             const Spot& at, float (&sums)[4]) {
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    const Element e = at.element(p, i);
    if (from.is_right(sums[i]) || !e.exists) continue;
    sums[i] = sum_anew(from, share.group, e.c, share.group * p.group_K + e.k, e.r, e.s);
  }
}

template <typename T>
__device__ inline void store(const Params<T>& p, const Share& share, const Spot& at,
                             const float (&sums)[4]) {
  const auto place = [&](const Element& e) {
    return p.weight + (share.group * p.group_K + e.k) * p.weight_k + e.c * p.weight_c +
           e.r * p.weight_r + e.s * p.weight_s;
  };
  if constexpr (sizeof(T) == 4) {
    if (p.pairs_c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Element e = at.element(p, i);
        if (e.exists) *reinterpret_cast<float2*>(place(e)) = make_float2(sums[i], sums[i + 2]);
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Element e = at.element(p, i);
    if (e.exists) *place(e) = narrow<T>(sums[i]);
  }
}

// A block's shared memory.
struct Memory {
  template <typename T>
  __device__ Memory(const Params<T>& p, char* memory)
      : stages(memory),
        full(reinterpret_cast<ptx::Barrier*>(memory + p.stages * p.stage_bytes)),
        ready(full + kMostStages),
        empty(ready + kMostStages),
        arrived(empty + kMostStages) {}

  char* stages;
  ptx::Barrier *full, *ready, *empty;  // copied, transposed, read
  ptx::Barrier* arrived;               // the sums of the cluster's other blocks
};

// A whole warp; one of the threads starts the copies.
template <typename T, int kKernel>
__device__ inline void load_boxes(const Params<T>& p, const Memory& memory, const Share& share) {
  constexpr bool kFew = kKernels[kKernel].few, kRounds = !kKernels[kKernel].halves;
  const bool elected = ptx::elect_one();
  const int k = share.group * p.group_K + share.k, c = share.group * p.group_C + share.c;
  const int x_boxes =
      kFew ? 1 : min(p.along_c * (kBlock / kXBlock), (p.group_C - share.c + kXBlock - 1) / kXBlock);
  const bool copies_x = p.filled_x.data == nullptr, copies_y = p.filled_y.data == nullptr;
  const int bytes =
      (copies_y ? share.blocks_k * p.y_box_bytes : 0) + (copies_x ? x_boxes * p.x_brought : 0);
  const int first_h = share.r * p.dilation_h - p.pad_h, first_w = share.s * p.dilation_w - p.pad_w;
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    const Origin at(p, tile);
    char* y = memory.stages + state.stage * p.stage_bytes;
    char* x = y + p.x_at;
    ptx::Barrier* full = &memory.full[state.stage];
    ptx::wait(&memory.empty[state.stage], state.parity ^ 1);
    const int line = p.by_images ? at.n : at.p, other = p.by_images ? at.p : at.n;
    const int x_w = at.q * p.stride_w + first_w, x_h = at.p * p.stride_h + first_h;
    if (elected) {
      ptx::arrive_and_expect_tx(full, bytes);
#pragma unroll 1
      for (int i = 0; copies_y && i < share.blocks_k; ++i) {
        ptx::tma_load(y + i * p.y_box_bytes, &p.y, full, k + i * kBlock, line, at.q, other);
      }
      if (kFew && copies_x) {
        const int lead = static_cast<int>(p.x_lead / sizeof(T));
        ptx::tma_load(x, &p.x, full, x_w * p.group_C - lead, x_h, at.n);
      } else {
#pragma unroll 1
        for (int i = 0; !kFew && copies_x && i < x_boxes; ++i) {
          ptx::tma_load(x + i * p.x_box_bytes, &p.x, full, c + i * kXBlock, x_w, x_h, at.n);
        }
      }
    }
    if constexpr (sizeof(T) == 4) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
      for (int i = 0; !copies_y && i < share.blocks_k; ++i) {
        fill_box<kBlock / 4, /*kSwizzled=*/false, kRounds>(
            p.filled_y, ptx::shared_address(y + i * p.y_box_bytes), k + i * kBlock,
            {line, at.q, other}, lane, 32);
      }
      if (kFew && !copies_x) {
        const int lead = static_cast<int>(p.x_lead / sizeof(T));
        copy_rows(p.filled_x, ptx::shared_address(x), {x_w * p.group_C - lead, x_h, at.n}, lane,
                  32);
      }
#pragma unroll 1
      for (int i = 0; !kFew && !copies_x && i < x_boxes; ++i) {
        fill_box<kXRowBytes / 16, /*kSwizzled=*/true, kRounds>(
            p.filled_x, ptx::shared_address(x + i * p.x_box_bytes), c + i * kXBlock,
            {x_w, x_h, at.n}, lane, 32);
      }
      if (kFew && !copies_x && copies_y) {
        ptx::arrive_after_copies(full);
      } else if (p.fills()) {
        if (kFew && !copies_x) ptx::await_copies();
        ptx::arrive(full);
      }
    }
    state.advance(p.stages);
  }
}

// So many warps transpose what boxes of float32 dy have brought: of four lines, one column, the
// lines' elements of each channel come to lie side by side. `kHalving`: they are halved.
template <int kWarps, bool kHalving>
__device__ inline void transpose(const Params<float>& p, const Memory& memory, const Share& share,
                                 int warp) {
  constexpr int kUnits = 2, kHalves = kBlock / 32;  // at a time, of a unit
  constexpr int kLines = 4, kLineBytes = kBlock * 4;
  const int bytes = share.blocks_k * p.y_box_bytes;
  const uint32_t lane = threadIdx.x % 32;
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    ptx::wait(&memory.full[state.stage], state.parity);
    const uint32_t stage = ptx::shared_address(memory.stages + state.stage * p.stage_bytes);
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
          v[i][line] = ptx::load_shared<uint32_t>(from + line * kLineBytes);
        }
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kUnits * kHalves; ++i) {
        const uint32_t to = stage + first + (i * 32 + lane) * 16;
        const uint4 unit = make_uint4(v[i][0], v[i][1], v[i][2], v[i][3]);
        if constexpr (kHalving) {
          halve_unit(to, static_cast<int>(p.low_y), unit);
        } else {
          ptx::store_shared(to, unit);
        }
      }
    }
    ptx::fence_shared_writes();
    ptx::arrive(&memory.ready[state.stage]);
    state.advance(p.stages);
  }
}

// What a thread reads of x for a product of few channels: of two rows, two columns. An operand of
// four bytes is an element of its line, or one of each of two lines.
template <typename T>
__device__ inline uint32_t load_element(uint32_t at, uint32_t line) {
  if constexpr (sizeof(T) == 4) return ptx::load_shared<uint32_t>(at);
  const uint32_t first = ptx::load_shared<uint16_t>(at);
  return first | static_cast<uint32_t>(ptx::load_shared<uint16_t>(at + line)) << 16;
}

// So many products of each sum, and on to the next ones. `kept` are columns of x that were read for
// those before.
template <typename T, int kKernel, int kCount, typename Load, int kHeld>
__device__ inline void add_products(const Params<T>& p, const Load& load_x, uint32_t& x,
                                    uint64_t& y, uint2 (&kept)[kHeld],
                                    float (&sums)[kKernels[kKernel].products()][32]) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kFresh = kKind.fresh(), kKept = kKind.kept();
  uint2 columns[kKept + kCount * kFresh];
#pragma unroll
  for (int i = 0; i < kKept; ++i) columns[i] = kept[i];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int j = 0; j < kFresh; ++j) {
      const uint32_t far =
          kKind.step == 0 ? j / kPair * p.x_tap + j % kPair * p.x_column : j * kXRowBytes;
      columns[kKept + i * kFresh + j] = load_x(x + far);
    }
    x += p.loops[2].x_step;
  }
  ptx::warpgroup_arrive();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int tap = 0; tap < kKind.taps; ++tap) {
      const int at = i * kFresh + (kKind.step == 0 ? tap * kPair : tap);
      const uint2 &first = columns[at], &second = columns[at + max(kKind.step, 1)];
      const uint32_t rows[4] = {first.x, first.y, second.x, second.y};
#pragma unroll
      for (int block = 0; block < kKind.blocks; ++block) {
        ptx::Product<T, kBlock, sizeof(T) == 2>::add(sums[tap * kKind.blocks + block], rows,
                                                     ptx::advance(y, block * p.y_box_bytes), 1);
      }
    }
    y = ptx::advance(y, p.loops[2].y_step);
  }
  ptx::warpgroup_commit_batch();
  ptx::warpgroup_wait<0>();
#pragma unroll
  for (int i = 0; i < kKept; ++i) kept[i] = columns[kCount * kFresh + i];
}

// So many products of each sum, of halves of a single tap, promoted by pairs. The small products of
// a pair come first. Operands are read and halved while products of others are under way.
template <typename T, int kKernel, typename Load>
__device__ inline void add_halves(const Params<T>& p, const Load& load_x, uint32_t x, uint64_t y,
                                  int count, Promotion<32> (&promotion)[kKernels[kKernel].blocks]) {
  constexpr int kBlocks = kKernels[kKernel].blocks;
  using Product = ptx::Product<T, kBlock>;
  struct Operand {
    uint32_t high[4], low[4];
  };
  Operand first, second;
  const auto read = [&](Operand& operand) {
    const uint2 columns[2] = {load_x(x), load_x(x + p.x_column)};
    const uint32_t rows[4] = {columns[0].x, columns[0].y, columns[1].x, columns[1].y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Halved halved = halve(rows[i]);
      operand.high[i] = halved.high;
      operand.low[i] = halved.low;
    }
  };
  const auto each_block = [&](uint64_t at, const auto& add) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) add(promotion[i].part, ptx::advance(at, i * p.y_box_bytes));
  };
  const auto add_small = [&](const Operand& operand, uint64_t at, int accumulate) {
    each_block(at, [&](float (&part)[32], uint64_t own) {
      Product::add(part, operand.low, own, accumulate);
      Product::add(part, operand.high, ptx::advance(own, p.low_y), 1);
    });
  };
  const auto add_large = [&](const Operand& operand, uint64_t at) {
    each_block(at,
               [&](float (&part)[32], uint64_t own) { Product::add(part, operand.high, own, 1); });
    ptx::warpgroup_commit_batch();
  };
  // Where there is nothing more to read, it is read again.
  const auto advance_x = [&](bool more) { x += more ? p.loops[2].x_step : 0; };
  read(first);
#pragma unroll 1
  for (int left = count; left > 0; left -= 2) {
    const uint64_t next = ptx::advance(y, p.loops[2].y_step);
    ptx::warpgroup_arrive();
    add_small(first, y, 0);
    ptx::warpgroup_commit_batch();
    advance_x(left > 1);
    read(second);
    ptx::warpgroup_arrive();
    if (left > 1) {
      add_small(second, next, 1);
      add_large(first, y);
      add_large(second, next);
    } else {
      add_large(first, y);
      ptx::warpgroup_commit_batch();
    }
    ptx::warpgroup_wait<1>();
    ptx::keep(first.high);
    ptx::keep(first.low);
    advance_x(left > 2);
    read(first);
    ptx::warpgroup_wait<0>();
    ptx::keep(second.high);
    ptx::keep(second.low);
    y = ptx::advance(next, p.loops[2].y_step);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) promotion[i].promote();
  }
}

// The sums of a warpgroup: 64 rows of the products.
template <typename T, int kKernel>
__device__ inline void multiply(const Params<T>& p, const Memory& memory, const Share& share,
                                const Role& role, int warp,
                                float (&sums)[kKernels[kKernel].products()][32]) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kKept = kKind.kept();
  constexpr bool kFew = kKind.few;
  constexpr bool kTransposes = sizeof(T) == 2;  // the instruction
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t stages = ptx::shared_address(memory.stages);
  const uint32_t y_own = stages + role.block_k * p.y_box_bytes;
  uint32_t x_own = stages + p.x_at + lane % 4 * (4 / sizeof(T)) * p.x_line;
  uint32_t second_row = 0;  // bytes from the thread's first
  if constexpr (kFew) {
    const auto place = [&](int row) {
      int32_t filter_row = min(row, p.product_rows - 1);
      const int tap = p.by_S.divisor() * p.by_C.divisor();
      const int element = filter_row % tap;
      filter_row /= tap;
      return filter_row * p.x_filter_row + p.x_lead + element * static_cast<uint32_t>(sizeof(T));
    };
    const int row = share.c + role.block_c * kBlock + warp % 4 * 16 + Spot::first_row(kKind, lane);
    x_own += place(row);
    second_row = place(row + 8) - place(row);
  } else {
    x_own += (role.block_c * 2 + warp % 4 / 2) * p.x_box_bytes + role.filter_row * p.x_filter_row +
             warp % 2 * 64 + Spot::first_row(kKind, lane) * 4;
  }
  const auto load_x = [&](uint32_t at) {
    if constexpr (kFew) {
      return make_uint2(load_element<T>(at, p.x_line), load_element<T>(at + second_row, p.x_line));
    } else {
      return ptx::load_shared<uint2>(at ^ (at >> 3 & 0x70));  // the swizzle
    }
  };
  Promotion<32> promotion[kKind.blocks];
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    ptx::wait(&memory.full[state.stage], state.parity);
    if constexpr (!kTransposes) ptx::wait(&memory.ready[state.stage], state.parity);
    const uint32_t stage = state.stage * p.stage_bytes;
#pragma unroll 1
    for (int i = 0; i < p.loops[0].count; ++i) {
#pragma unroll 1
      for (int j = 0; j < p.loops[1].count; ++j) {
        const uint32_t y_at = y_own + stage + i * p.loops[0].y_step + j * p.loops[1].y_step;
        uint64_t y = kTransposes ? ptx::describe_transposed(y_at, 16, p.y_column)
                                 : ptx::describe_blocks(y_at, p.y_column);
        uint32_t x = x_own + stage + i * p.loops[0].x_step + j * p.loops[1].x_step;
        int left = p.loops[2].count;
        if constexpr (kKind.halves) {
          add_halves<T, kKernel>(p, load_x, x, y, left, promotion);
        } else {
          uint2 kept[kKept + 1];  // there are no empty arrays
#pragma unroll
          for (int l = 0; l < kKept; ++l) kept[l] = load_x(x + l * kXRowBytes);
          x += kKept * kXRowBytes;
          if constexpr (kKind.batch() > 1) {
#pragma unroll 1
            for (; left >= kKind.batch(); left -= kKind.batch()) {
              add_products<T, kKernel, kKind.batch()>(p, load_x, x, y, kept, sums);
            }
          }
#pragma unroll 1
          for (; left > 0; --left) add_products<T, kKernel, 1>(p, load_x, x, y, kept, sums);
        }
      }
    }
    ptx::arrive(&memory.empty[state.stage]);
    state.advance(p.stages);
  }
  if constexpr (kKind.halves) {
#pragma unroll
    for (int block = 0; block < kKind.blocks; ++block) promotion[block].finish(sums[block]);
  }
}

template <typename T, int kKernel>
__global__ void __launch_bounds__(kKernels[kKernel].threads(), 1)
    sum_weights(const __grid_constant__ Params<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kTransposingWarps = 3;
  // Registers of a thread; those of all warpgroups, one thread each, are as many as at the start.
  constexpr int kTaken = kKind.warpgroups == 3 ? 152 : kKind.halves ? 224 : 208;
  constexpr int kGiven =
      65536 / kKind.threads() / 8 * 8 * (kKind.warpgroups + 1) - kTaken * kKind.warpgroups;
  extern __shared__ __align__(1024) char stages[];
  const Memory memory(p, stages);
  auto rest = static_cast<int32_t>(blockIdx.x);
  const int rank = p.by_cluster.split(rest);
  Share share(p, kKind, rest);
  if (p.clustered) share.split = rank;
  // The same for all threads of a warp, and the compiler is told so.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  ptx::launch_dependent_grids();
  if (threadIdx.x == 0) {
    ptx::init_barrier(memory.arrived, 1);
    ptx::init_barriers(memory.full, kMostStages, p.fills() ? 1 + 32 : 1);
    ptx::init_barriers(memory.ready, kMostStages, kTransposingWarps * 32);
    ptx::init_barriers(memory.empty, kMostStages, share.warpgroups(p, kKind) * 128);
    ptx::fence_barrier_init();
  }
  if (threadIdx.x == 32) {
    if (p.filled_x.data == nullptr) ptx::prefetch_tma_descriptor(&p.x);
    if (p.filled_y.data == nullptr) ptx::prefetch_tma_descriptor(&p.y);
  }
  __syncthreads();
  // All threads of a cluster meet before sums overwrite boxes.
  const auto meet = [&] {
    __syncwarp();
    if (p.by_cluster.divisor() > 1) ptx::meet_cluster();
  };
  if (warp >= kKind.warpgroups * 4) {
    ptx::warpgroup_reg_dealloc<kGiven>();
    if (warp == kKind.warpgroups * 4) {
      load_boxes<T, kKernel>(p, memory, share);
    } else if constexpr (sizeof(T) == 4) {
      transpose<kTransposingWarps, kKind.halves>(p, memory, share, warp - kKind.warpgroups * 4 - 1);
    }
    meet();
    return;
  }
  const Role role(p, kKind, share, warp / 4);
  if (!role.exists) {
    meet();
    return;
  }
  ptx::warpgroup_reg_alloc<kTaken>();
  float sums[kKind.products()][32] = {};
  multiply<T, kKernel>(p, memory, share, role, warp, sums);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kVectors = kKind.products() * 8;
  if (p.clustered) {
    const int threads = share.warpgroups(p, kKind) * 128;
    const Gathered all = exchange<kVectors>(memory.stages, memory.arrived, threads, rank,
                                            p.by_cluster.divisor(), &sums[0][0]);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < all.share; i += threads) {
      const int vector = i / 32 & ((1 << all.log) - 1), block = i / 32 >> all.log;
      const Spot at(p, kKind, share, block / kKind.products(), lane,
                    block % kKind.products() * 8 + (rank << all.log) + vector);
      if (!at.exists) continue;
      float4 four[1];
      all.add_up(block, vector, lane, four);
      float total[4] = {four[0].x, four[0].y, four[0].z, four[0].w};
      if (!p.from.exact) renew(p, p.from, share, at, total);
      store(p, share, at, total);
    }
    return;
  }
  float4* const to =
      p.partial + (int64_t{blockIdx.x} * kKind.warpgroups * 4 + warp) * kVectors * 32 + lane;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const float* sum = sums[i / 8] + i % 8 * 4;
    to[i * 32] = make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
#endif
}

}  // namespace customconv::implicit_gemm::wgrad::registers
