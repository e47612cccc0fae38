// From sums to results while they are in registers: scale, bias, residual and activation.
//
// The instruction's rows are output channels, its columns positions. As it leaves them,
// sum[j * 4 + half * 2 + i] of a block of 64 channels is of channel warp * 16 + half * 8 + lane / 4
// and of position j * 8 + lane % 4 * 2 + i. A warpgroup has some blocks, `kSpans` of the same
// channels and neighbouring positions after the other.
#pragma once

#include <cstdint>

#include "kernels/common/activate.cuh"
#include "kernels/common/channel_value.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/sm90/work.cuh"

namespace customconv::implicit_gemm::sm90 {

constexpr int kBlockChannels = 64;

template <typename T>
__device__ inline float2 widen_pair(uint32_t bits) {
  const T* pair = reinterpret_cast<const T*>(&bits);
  return make_float2(widen(pair[0]), widen(pair[1]));
}

// A thread's first channel of a block; its other one is eight further on.
__device__ inline int own_channel() {
  return static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
}

// Whether the activation waits for a residual.
__device__ inline bool activates_last(const Epilogue& epilogue) {
  return epilogue.residual != nullptr && !epilogue.residual_last;
}

// Scale, bias and, unless it waits for a residual, the activation. `k`: the first channel of the
// warpgroup's blocks.
template <typename T, int kSpans, int kBlocks, int kSums>
__device__ inline void finish(const Params& p, const Work& work, int k,
                              float (&sum)[kBlocks][kSums]) {
  const Epilogue& epilogue = p.epilogue;
  const auto each = [&](const void* values, auto function) {
    if (values == nullptr) return;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int channel = k + b / kSpans * kBlockChannels + own_channel() + half * 8;
        if (channel >= work.last_k) continue;
        const float value = channel_value<T>(epilogue, values, channel);
#pragma unroll
        for (int j = 0; j < kSums / 4; ++j) {
          function(sum[b][j * 4 + half * 2], value);
          function(sum[b][j * 4 + half * 2 + 1], value);
        }
      }
    }
  };
  each(epilogue.scale, [](float& s, float scale) { s *= scale; });
  each(epilogue.bias, [](float& s, float bias) { s += bias; });
  if (!activates_last(epilogue)) {
    activate<kBlocks * kSums>(sum[0], epilogue.activation, epilogue.negative_slope);
  }
}

// The same of two neighbouring positions of a channel, with their residual; `offset`: of their
// channel 0, or -1.
template <typename T>
__device__ inline void finish_pair(const Params& p, int k, const int64_t (&offset)[2],
                                   float (&pair)[2]) {
  const Epilogue& epilogue = p.epilogue;
  if (epilogue.scale != nullptr) {
    const float scale = channel_value<T>(epilogue, epilogue.scale, k);
    pair[0] *= scale;
    pair[1] *= scale;
  }
  if (epilogue.bias != nullptr) {
    const float bias = channel_value<T>(epilogue, epilogue.bias, k);
    pair[0] += bias;
    pair[1] += bias;
  }
  const auto add = [&] {
    const T* from = static_cast<const T*>(epilogue.residual) + k * p.out_k;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (offset[i] >= 0) pair[i] += widen(from[offset[i]]);
    }
  };
  if (activates_last(epilogue)) add();
  activate<2>(pair, epilogue.activation, epilogue.negative_slope);
  if (epilogue.residual != nullptr && epilogue.residual_last) add();
}

}  // namespace customconv::implicit_gemm::sm90
