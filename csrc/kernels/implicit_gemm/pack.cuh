// Filters laid out as matrices.
#pragma once

#include <cstdint>

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/forward.h"
#include "kernels/implicit_gemm/halves.cuh"
#include "kernels/ptx/grid.cuh"

namespace customconv::implicit_gemm {

constexpr int kPackBlock = 256;

template <typename T>
struct WeightSource {
  const T* w;
  int64_t k, c, r, s, group;  // strides
  Divider<int32_t> group_K;
  int K, C, taps;
  int R, S, period_h, period_w;   // taps, and from one of a phase to the next
  Divider<int32_t> tap_channels;  // where taps are channels, those of one; else all
  Divider<int32_t> row_taps;      // and those of a row
  ChannelOrder order;

  // Taps that a thread packs: all of them where they follow each other in memory, and share what is
  // read at a time.
  __host__ __device__ int taps_at_once() const {
    const auto distance = [](int64_t stride) { return stride < 0 ? -stride : stride; };
    return distance(s) < distance(c) && distance(s) < distance(k) ? taps : 1;
  }
  // From an output channel's first element to those of an input channel.
  __device__ int64_t offset(int channel) const {
    int32_t tap = channel;
    const int own_c = tap_channels.split(tap);
    const int own_s = row_taps.split(tap);
    return own_c * c + tap * r + own_s * s;
  }
  // The first element of an output channel.
  __device__ const T* channel(int number) const {
    int32_t g = number;
    const int own_k = group_K.split(g);
    return w + g * group + own_k * k;
  }
};

template <typename T>
WeightSource<T> weight_source(const Forward& p, const T* w) {
  const auto& strides = p.w_strides;
  return {w + p.w_first,
          strides[0],
          strides[1],
          strides[2],
          strides[3],
          p.w_group,
          Divider<int32_t>(p.group_K()),
          static_cast<int>(p.K),
          static_cast<int>(p.group_C()),
          static_cast<int>(p.taps_h * p.taps_w),
          static_cast<int>(p.taps_h),
          static_cast<int>(p.taps_w),
          static_cast<int>(p.period_h),
          static_cast<int>(p.period_w),
          Divider<int32_t>(p.tap_channels > 0 ? p.tap_channels : p.group_C()),
          Divider<int32_t>(p.row_taps),
          {}};
}

// Where a tap is packed: those of a phase follow each other.
template <typename T>
__device__ inline int packed_tap(const WeightSource<T>& from, int r, int s) {
  if (from.period_h * from.period_w == 1) return r * from.S + s;
  const int h = r % from.period_h, w = s % from.period_w;
  const int rows = (from.R - h - 1) / from.period_h + 1;
  const int columns = (from.S - w - 1) / from.period_w + 1;
  const int rows_before = h * (from.R / from.period_h) + min(h, from.R % from.period_h);
  const int columns_before = w * (from.S / from.period_w) + min(w, from.S % from.period_w);
  const int first = rows_before * from.S + rows * columns_before;  // of its phase
  return first + r / from.period_h * columns + s / from.period_w;
}

// The weight of an input gradient whose phases are channels.
template <typename T>
struct JoinedSource {
  const T* w;
  int64_t k, c, r, s;  // strides
  int K, R, S;
  int step_h, step_w;
  int taps_h, taps_w;  // of all phases
  Divider<int32_t> by_C, by_step_w;
  ChannelOrder order;
};

// A matrix (step_h, step_w, C, taps_h, taps_w, row), with taps in turned order: zeros where a phase
// has fewer taps, and behind the last channel. A thread has an element of each row of a channel and
// of `phases` phases: it reads one filter, lanes store what follows each other.
template <typename T>
__global__ void __launch_bounds__(kPackBlock)
    pack_joined(int count, int phases, Divider<int32_t> row, JoinedSource<T> from,
                T* __restrict__ packed) {
  ptx::launch_dependent_grids();
  const int at = blockIdx.x * kPackBlock + threadIdx.x;
  if (at >= count) return;
  int32_t rest = at;
  const int place = row.split(rest), k = from.order.channel(place);
  const int c = from.by_C.split(rest);
  const T* const filter = from.w + k * from.k + c * from.c;
  const int taps = from.taps_h * from.taps_w;
  for (int phase = rest * phases; phase < (rest + 1) * phases; ++phase) {
    int32_t first_r = phase;
    const int first_s = from.by_step_w.split(first_r);
    T* to = packed + (int64_t{phase} * from.by_C.divisor() + c) * taps * row.divisor() + place;
    for (int i = from.taps_h - 1; i >= 0; --i) {
      const int r = first_r + i * from.step_h;
      for (int j = from.taps_w - 1; j >= 0; --j, to += row.divisor()) {
        const int s = first_s + j * from.step_w;
        const bool exists = k < from.K && r < from.R && s < from.S;
        *to = exists ? packed_value(from.order, place, filter[r * from.r + s * from.s])
                     : narrow<T>(0.0f);
      }
    }
  }
}

// A matrix (K, R, S, row): zeros behind the last channel.
template <typename T>
__global__ void __launch_bounds__(kPackBlock)
    pack_matrix(int count, Divider<int32_t> row, Divider<int32_t> parts, Divider<int32_t> by_S,
                WeightSource<T> from, T* __restrict__ packed) {
  ptx::launch_dependent_grids();
  const int taps = from.taps_at_once();
  for (int at = blockIdx.x * kPackBlock + threadIdx.x; at < count; at += gridDim.x * kPackBlock) {
    int32_t k = at;
    const int place = row.split(k), c = from.order.channel(place);
    const int first_tap = parts.split(k) * taps;
    const T* w = from.channel(k) + from.offset(c);
    T* to = packed + (int64_t{k} * from.taps + first_tap) * row.divisor() + place;
#pragma unroll 4
    for (int i = 0; i < taps; ++i, to += row.divisor()) {
      int32_t r = first_tap + i;
      const int s = by_S.split(r);
      *to = c < from.C ? packed_value(from.order, place, w[r * from.r + s * from.s])
                       : narrow<T>(0.0f);
    }
  }
}

// The same where output channels are what follows each other in memory, as in input gradients:
// squares of both kinds of channels pass through shared memory.
constexpr int kSquare = 32;
constexpr int kSquareTaps = 4;  // that pass through at a time

// `taps`: of a block.
template <typename T>
__global__ void __launch_bounds__(kPackBlock)
    pack_transposed(int row, int taps, Divider<int32_t> squares_k, Divider<int32_t> squares_c,
                    Divider<int32_t> by_S, WeightSource<T> from, T* __restrict__ packed) {
  constexpr int kWarps = kPackBlock / kSquare;
  __shared__ T square[kSquareTaps][kSquare][kSquare + 1];
  ptx::launch_dependent_grids();
  int32_t part = blockIdx.x;
  const int first_k = squares_k.split(part) * kSquare, first_c = squares_c.split(part) * kSquare;
  const int lane = threadIdx.x % kSquare, warp = threadIdx.x / kSquare;
  const T* const own = from.channel(min(first_k + lane, from.K - 1));
  const int last = min((part + 1) * taps, from.taps);
  for (int first = part * taps; first < last; first += kSquareTaps) {
    T value[kSquareTaps][kSquare / kWarps];
#pragma unroll
    for (int t = 0; t < kSquareTaps; ++t) {
      if (first + t >= last) break;
      int32_t r = first + t;
      const int s = by_S.split(r);
      const T* w = own + r * from.r + s * from.s;
#pragma unroll
      for (int i = 0; i < kSquare / kWarps; ++i) {
        const int c = from.order.channel(first_c + warp + i * kWarps);
        value[t][i] = c < from.C ? w[from.offset(c)] : narrow<T>(0.0f);
      }
    }
#pragma unroll
    for (int t = 0; t < kSquareTaps; ++t) {
      if (first + t >= last) break;
#pragma unroll
      for (int i = 0; i < kSquare / kWarps; ++i) {
        square[t][warp + i * kWarps][lane] = value[t][i];
      }
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < kSquareTaps; ++t) {
      if (first + t >= last) break;
      int32_t r = first + t;
      const int s = by_S.split(r);
      const int number = packed_tap(from, r, s);
#pragma unroll
      for (int i = warp; i < kSquare; i += kWarps) {
        const int k = first_k + i, c = first_c + lane;
        if (k < from.K && c < row) {
          packed[(int64_t{k} * from.taps + number) * row + c] =
              packed_value(from.order, c, square[t][lane][i]);
        }
      }
    }
    __syncthreads();  // it is read before the next taps overwrite it
  }
}

}  // namespace customconv::implicit_gemm
