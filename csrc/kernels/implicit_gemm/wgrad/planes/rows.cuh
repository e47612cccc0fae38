// Brings rows of x and of dy: by TMA, or by threads where it can't cut them into boxes.
#pragma once

#include "kernels/implicit_gemm/wgrad/planes/units.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm::wgrad::planes {

// A whole warp; one of the threads starts the copies.
template <typename T, int kKernel>
__device__ inline void load_boxes(const Params<T>& p, const Memory& memory, const Share& share) {
  constexpr Kernel kKind = kKernels[kKernel];
  const bool elected = ptx::elect_one();
  const int k = share.group * p.group_K + share.k, c = first_channel(p, share);
  const int boxes_c = p.flat ? 1 : share.boxes_c;
  const int bytes = p.brought_y + boxes_c * p.brought_x;
  const int first_h = share.r * p.dilation_h - p.pad_h;
  const int first_w = Begin(p, first_tap(p, share.chunk, kKind.taps)).column;
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    const Origin at(p, tile);
    ptx::Barrier* full = &memory.full[state.stage];
    char* y = memory.stages + state.stage * p.stage_bytes;
    char* x = y + p.x_at;
    ptx::wait(&memory.empty[state.stage], state.parity ^ 1);
    if (elected) {
      ptx::arrive_and_expect_tx(full, bytes);
#pragma unroll 1
      for (int q = 0; q < p.columns; q += p.y_columns) {
        ptx::tma_load(y, &p.y_map, full, at.q + q, k, at.p, at.n);
        y += p.images * p.rows * p.slab_bytes;
      }
#pragma unroll 1
      for (int i = 0; i < boxes_c; ++i, x += p.x_block) {
        if (p.x_in_slabs) {
          char* slab = x;
#pragma unroll 1
          for (int q = 0; q < p.columns; q += p.y_columns) {
            ptx::tma_load(slab, &p.x_map, full, at.q + q, c + i * kBlock, at.p, at.n);
            slab += p.images * p.rows * kSlabBytes;
          }
          continue;
        }
        ptx::tma_load(x, &p.x_map, full, at.q * p.stride_w + first_w, c + i * kBlock,
                      at.p * p.stride_h + first_h, at.n);
      }
    }
    state.advance(p.stages);
  }
}

// Halves what copies have brought of a tile: slabs of dy, and of x if it lies in slabs.
template <typename T>
__device__ inline void halve_copies(const Params<T>& p, const Memory& memory, const Share& share,
                                    const ptx::PipelineState& state, int thread, int threads) {
  ptx::wait(&memory.full[state.stage], state.parity);
  const uint32_t stage = ptx::shared_address(memory.stages) + state.stage * p.stage_bytes;
  halve_bytes(stage, p.low_y, p.low_y, thread, threads);
  if (p.x_in_slabs) {
    halve_bytes(stage + p.x_at, share.boxes_c * p.x_block, p.low_x, thread, threads);
  }
  ptx::fence_shared_writes();
  ptx::arrive(&memory.halved[state.stage]);
}

// The same of all tiles, by threads beside the one that starts copies.
template <typename T>
__device__ inline void halve_boxes(const Params<T>& p, const Memory& memory, const Share& share,
                                   int thread, int threads) {
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    halve_copies(p, memory, share, state, thread, threads);
    state.advance(p.stages);
  }
}

// The same unit of channels, so many `apart`; `to` says where a channel's belongs. kVector: bytes
// that are inside the row or outside it together, and are copied; else pixels go through registers.
// Where none is inside, `from` is any of the tensor. kRounds: pixels of float32 are rounded, if
// they go through registers.
template <int kVector, bool kRounds, typename T, typename To>
__device__ inline void load_channels(const T* from, int first, int last, int64_t stride,
                                     int channel, int count, int apart, To to) {
  from += channel * stride;
  const int64_t step = apart * stride;
  if constexpr (kVector == 0) {
    constexpr int kBatch = 4;
#pragma unroll 1
    for (; channel < count; channel += kBatch * apart, from += kBatch * step) {
      uint4 unit[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const bool exists = channel + i * apart < count;
        unit[i] = load_unit<kRounds>(from + i * step, first, exists ? last : 0);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int own = channel + i * apart;
        if (own < count) *reinterpret_cast<uint4*>(to(own)) = unit[i];
      }
    }
  } else {
    constexpr int kCount = kUnitBytes / kVector;
    constexpr int kPixels = kVector / static_cast<int>(sizeof(T));
    int offset[kCount];
    bool exists[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      exists[i] = i * kPixels >= first && i * kPixels < last;
      offset[i] = exists[i] ? i * kPixels : first < last ? first : 0;
    }
#pragma unroll 4
    for (; channel < count; channel += apart, from += step) {
      const uint32_t unit = ptx::shared_address(to(channel));
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        ptx::copy_async<kVector>(unit + i * kVector, from + offset[i], exists[i]);
      }
    }
  }
}

// Threads of their own load tensors that TMA can't cut into boxes. Each has a place in
// the image, or some, and goes through the channels.
template <typename T, int kKernel, int kVector>
__device__ inline void load_rows(const Params<T>& p, const Memory& memory, const Share& share,
                                 int thread) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kLoaders = kKind.loaders;
  constexpr bool kHalves = kKind.halves;
  const int channels_k = min(p.group_K - share.k, kKind.k_blocks * kBlock);
  const int channels_c = p.flat ? p.channels : min(p.group_C - share.c, share.boxes_c * kBlock);
  const T* const all_y = p.y + (share.group * p.group_K + share.k) * p.y_k;
  const T* const all_x = p.x + first_channel(p, share) * p.x_c;
  const int first_h = share.r * p.dilation_h - p.pad_h;
  const int first_w = Begin(p, first_tap(p, share.chunk, kKind.taps)).column;
  const auto deliver = [&](int number) {
    if constexpr (sizeof(T) == 4 && (kVector > 0 || kHalves)) {
      // Tensor cores would cut dy.
      char* const stage = memory.stages + number * p.stage_bytes;
      each_place(p.y_inner, thread, kLoaders, [&](int place, int channel, int apart) {
#pragma unroll 4
        for (; channel < channels_k; channel += apart) {
          auto* unit = reinterpret_cast<uint4*>(in_slab(p, stage, place, channel));
          if constexpr (kHalves) {
            halve_unit(ptx::shared_address(unit), p.low_y, *unit);
          } else {
            *unit = round_all(*unit);
          }
        }
      });
    }
    ptx::fence_shared_writes();
    ptx::arrive(&memory.full[number]);
  };
  // With stages enough, the next tile's copies are started before a tile's are awaited.
  const bool runs_ahead = kVector > 0 && p.stages > 2;
  ptx::PipelineState state, delivered;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    const Origin at(p, tile);
    char* const stage = memory.stages + state.stage * p.stage_bytes;
    const T *const y = all_y + at.n * p.y_n, *const x = all_x + at.n * p.x_n;
    ptx::wait(&memory.empty[state.stage], state.parity ^ 1);
    each_place(p.y_inner, thread, kLoaders, [&](int place, int channel, int apart) {
      int32_t rest = place;
      const int q = at.q + p.by_row_units.split(rest) * kUnit<T>;
      const int row = at.p + p.by_rows.split(rest);
      const bool exists = rest < p.images && at.n + rest < p.N && row < p.P && q < p.Q;
      load_channels<kVector, !kHalves>(
          exists ? y + rest * p.y_n + row * p.y_p + q : y, 0, exists ? min(kUnit<T>, p.Q - q) : 0,
          p.y_k, channel, channels_k, apart, [&](int k) { return in_slab(p, stage, place, k); });
    });
    each_place(p.x_inner, thread, kLoaders, [&](int place, int channel, int apart) {
      int32_t rest = place;
      const int unit = p.first_unit + p.by_x_units.split(rest);
      const int row = p.first_row + p.by_x_rows.split(rest);
      char* const to = stage + p.x_at + rest * p.x_image + row * p.x_row + unit * kUnitBytes;
      const int w = at.q * p.stride_w + first_w + unit * kUnit<T>;
      const int h = at.p * p.stride_h + first_h + row * p.step_h;
      const bool exists = at.n + rest < p.N && h >= 0 && h < p.H && w > -kUnit<T> && w < p.W;
      load_channels<kVector, !kHalves>(exists ? x + rest * p.x_n + h * p.x_h + w : x, max(0, -w),
                                       exists ? min(kUnit<T>, p.W - w) : 0, p.x_c, channel,
                                       channels_c, apart,
                                       [&](int c) { return to + c * p.x_channel; });
    });
    if constexpr (kVector > 0) {
      ptx::commit_copies();
      if (!runs_ahead) {
        ptx::await_groups<0>();
        deliver(state.stage);
      } else if (tile != share.split) {
        ptx::await_groups<1>();
        deliver(delivered.stage);
        delivered.advance(p.stages);
      }
    } else {
      deliver(state.stage);
    }
    state.advance(p.stages);
  }
  if (runs_ahead && share.split < p.tiles) {
    ptx::await_groups<0>();
    deliver(delivered.stage);
  }
}

}  // namespace customconv::implicit_gemm::wgrad::planes
