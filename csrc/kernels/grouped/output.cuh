// What sums become, and which pixels of a tile there are.
#pragma once

#include <cstdint>

#include "kernels/common/activate.cuh"
#include "kernels/common/channel_value.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/epilogue.h"
#include "kernels/grouped/input.cuh"

namespace customconv::grouped {

// Scale and bias of neighbouring channels.
template <int kWidth, typename T>
struct Affine {
  __device__ Affine(const Epilogue& e, int channel, int count = kWidth) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const bool exists = i < count;
      scale[i] = 1;
      bias[i] = 0;
      if (exists && e.scale != nullptr) scale[i] = channel_value<T>(e, e.scale, channel + i);
      if (exists && e.bias != nullptr) bias[i] = channel_value<T>(e, e.bias, channel + i);
    }
  }
  float scale[kWidth], bias[kWidth];
};

// What the sums of neighbouring channels of a pixel become.
template <int kWidth, typename T>
__device__ inline void finish(const Epilogue& e, const Affine<kWidth, T>& affine, int64_t offset,
                              float (&value)[kWidth]) {
  const T* residual = static_cast<const T*>(e.residual);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    value[i] = fmaf(value[i], affine.scale[i], affine.bias[i]);
    if (residual != nullptr && !e.residual_last) value[i] += widen(residual[offset + i]);
  }
  activate<kWidth>(value, e.activation, e.negative_slope);
  if (residual == nullptr || !e.residual_last) return;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) value[i] += widen(residual[offset + i]);
}
template <int kWidth, typename T>
__device__ inline void finish(const Epilogue& e, int channel, int64_t offset,
                              float (&value)[kWidth]) {
  finish(e, Affine<kWidth, T>(e, channel), offset, value);
}

// What is left of the image behind a tile's beginning, of a phase's pixels, and where those are.
struct Rest {
  int n, h, w;
  int64_t offset;

  __device__ bool has(const Spot& spot) const { return spot.n() < n && spot.h < h && spot.w() < w; }
};
template <typename Params>
__device__ inline Rest rest_of(const Params& p, const Place& at, int phase_h, int phase_w) {
  const auto left = [](const AxisParams& axis, int phase, int position) {
    return axis.positions - position - (position_exists(axis, phase) ? 0 : 1);
  };
  const int h = at.h * p.tile.h.phases + phase_h, w = at.w * p.tile.w.phases + phase_w;
  return {p.tile.N - at.n, left(p.tile.h, phase_h, at.h), left(p.tile.w, phase_w, at.w),
          at.n * p.out_n + h * p.out_h + w * p.out_w};
}

}  // namespace customconv::grouped
