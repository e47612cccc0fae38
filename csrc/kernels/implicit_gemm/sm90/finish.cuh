// From sums to results while they are in registers: scale, bias, residual and activation.
//
// As wgmma leaves them, sum[j * 4 + half * 2 + i] of a warpgroup's 64 positions is of position
// warp * 16 + half * 8 + lane / 4 and of channel j * 8 + lane % 4 * 2 + i.
#pragma once

#include <cstdint>

#include "kernels/common/activate.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/sm90/work.cuh"

namespace customconv::implicit_gemm::sm90 {

// Keeps the compiler from loading more ahead than there are registers for.
__device__ inline void finish_loads() { asm volatile("" ::: "memory"); }

template <typename T>
__device__ inline float2 widen_pair(uint32_t bits) {
  const T* pair = reinterpret_cast<const T*>(&bits);
  return make_float2(widen(pair[0]), widen(pair[1]));
}
template <typename T>
__device__ inline float2 load_pair(const T* from) {
  if constexpr (sizeof(T) == 2) {
    return widen_pair<T>(*reinterpret_cast<const uint32_t*>(from));
  } else {
    return *reinterpret_cast<const float2*>(from);
  }
}

// Two channels' values, of which the first is before `last`. `pairs`: they may be loaded at once.
template <typename T>
__device__ inline float2 channel_values(const void* from, int k, int last, bool pairs) {
  const T* values = static_cast<const T*>(from) + k;
  if (pairs) return load_pair(values);
  return make_float2(widen(values[0]), k + 1 < last ? widen(values[1]) : 0.0f);
}

// Scales sums and adds the bias.
template <typename T, int kBlocks, int kSums>
__device__ inline void scale_and_bias(const Params& p, const Work& work,
                                      float (&sum)[kBlocks][kSums]) {
  const int own_k = work.k + static_cast<int>(threadIdx.x) % 4 * 2;
  const auto each = [&](const void* values, auto function) {
    if (values == nullptr) return;
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      const int k = own_k + j * 8;
      float2 value = make_float2(0, 0);
      if (k < work.last_k) value = channel_values<T>(values, k, work.last_k, p.channel_pairs);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          function(sum[b][j * 4 + half * 2], value.x);
          function(sum[b][j * 4 + half * 2 + 1], value.y);
        }
      }
      if (j % 4 == 3) finish_loads();
    }
  };
  each(p.epilogue.scale, [](float& s, float scale) { s *= scale; });
  each(p.epilogue.bias, [](float& s, float bias) { s += bias; });
}

// Adds the residual of a thread's two positions, of which `offset` is where their channel 0 is, or
// -1.
template <typename T, int kSums>
__device__ inline void add_residual(const Params& p, const Work& work, const int64_t (&offset)[2],
                                    float (&sum)[kSums]) {
  const int own_k = work.k + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (offset[half] < 0) continue;
    const T* from = static_cast<const T*>(p.epilogue.residual) + offset[half] + own_k * p.out_k;
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j, from += 8 * p.out_k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (own_k + j * 8 + i < work.last_k) {
          sum[j * 4 + half * 2 + i] += widen(from[i * p.out_k]);
        }
      }
      if (j % 4 == 3) finish_loads();
    }
  }
}

// The epilogue, with a residual from memory; `own_row`: of the tile, the warpgroup's first
// position.
template <typename T, int kBlocks, int kSums>
__device__ inline void finish(const Params& p, const Work& work, int own_row,
                              float (&sum)[kBlocks][kSums]) {
  scale_and_bias<T>(p, work, sum);
  const Epilogue& epilogue = p.epilogue;
  const auto add = [&] {
    const int thread = static_cast<int>(threadIdx.x) % 128;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      int64_t offset[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = own_row + b * 64 + thread / 32 * 16 + half * 8 + thread % 32 / 4;
        offset[half] = Place(p, work.position + row).offset(p, p.phase[work.phase]);
      }
      add_residual<T>(p, work, offset, sum[b]);
    }
  };
  if (epilogue.residual != nullptr && !epilogue.residual_last) add();
  activate<kBlocks * kSums>(sum[0], epilogue.activation, epilogue.negative_slope);
  if (epilogue.residual != nullptr && epilogue.residual_last) add();
}

// The same of one position's two channels.
template <typename T>
__device__ inline void finish_pair(const Params& p, int k, int last_k, int64_t offset,
                                   float (&pair)[2]) {
  const Epilogue& epilogue = p.epilogue;
  if (epilogue.scale != nullptr) {
    const float2 scale = channel_values<T>(epilogue.scale, k, last_k, p.channel_pairs);
    pair[0] *= scale.x;
    pair[1] *= scale.y;
  }
  if (epilogue.bias != nullptr) {
    const float2 bias = channel_values<T>(epilogue.bias, k, last_k, p.channel_pairs);
    pair[0] += bias.x;
    pair[1] += bias.y;
  }
  const auto add = [&] {
    const T* from = static_cast<const T*>(epilogue.residual) + offset + k * p.out_k;
    pair[0] += widen(from[0]);
    if (k + 1 < last_k) pair[1] += widen(from[p.out_k]);
  };
  if (epilogue.residual != nullptr && !epilogue.residual_last) add();
  activate<2>(pair, epilogue.activation, epilogue.negative_slope);
  if (epilogue.residual != nullptr && epilogue.residual_last) add();
}

}  // namespace customconv::implicit_gemm::sm90
