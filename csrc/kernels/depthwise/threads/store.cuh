// What becomes of a thread's sums: the epilogue, and the way to memory.
#pragma once

#include "kernels/common/activate.cuh"
#include "kernels/common/channel_value.cuh"
#include "kernels/depthwise/threads/filter.cuh"

namespace customconv::depthwise::threads {

// Stores a unit of neighbours, rounded.
template <int kWidth, typename T>
__device__ inline void store_unit(T* to, const float* values) {
  if constexpr (kWidth == 1) {
    *to = narrow<T>(*values);
  } else {
    alignas(16) T rounded[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) rounded[i] = narrow<T>(values[i]);
    *reinterpret_cast<Bits<T, kWidth>*>(to) = *reinterpret_cast<const Bits<T, kWidth>*>(rounded);
  }
}

// Stores neighbouring columns, of which so many exist, by units of at most `unit`.
template <int kUnit, int kWidth, typename T>
__device__ inline void store_columns(T* to, const float (&values)[kWidth], int count, int unit) {
  if constexpr (kUnit > 1) {
    if (unit < kUnit) return store_columns<kUnit / 2>(to, values, count, unit);
  }
#pragma unroll
  for (int i = 0; i < kWidth; i += kUnit) {
    if (i < count) store_unit<kUnit>(to + i, values + i);
  }
}

// Stores what a warp's threads have, neighbours together: `first` is a thread's first column's
// place.
template <int kWidth, typename T>
__device__ inline void store_across(const Params<T>& p, const Item& item, int64_t first,
                                    const float (&values)[kWidth]) {
  __shared__ float staged[kThreads][kWidth + 1];  // by another bank for each thread
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float (*warp)[kWidth + 1] = staged + threadIdx.x / 32 * 32;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) warp[lane][i] = values[i];
  __syncwarp();
  const int i = lane % kWidth;
  float value[kWidth];
  T* to[kWidth];  // null where there is no such column
#pragma unroll
  for (int n = 0; n < kWidth; ++n) {
    const int from = (n * 32 + lane) / kWidth;
    const int64_t place = __shfl_sync(~0u, first, from);
    const int q = __shfl_sync(~0u, item.q, from);
    value[n] = warp[from][i];
    to[n] = is_within(q + i, p.Q) ? p.out + place + i : nullptr;
  }
#pragma unroll
  for (int n = 0; n < kWidth; ++n) {
    if (to[n] != nullptr) *to[n] = narrow<T>(value[n]);
  }
}

// What the sums become, and where they go: of a thread's neighbours, which are channels or columns.
template <Order kOrder, int kKept, int kWidth, typename T>
__device__ inline void store_item(const Params<T>& p, const Item& item,
                                  float (&sum)[kKept][kWidth]) {
  constexpr bool kColumns = is_planar(kOrder);
  const Epilogue& e = p.epilogue;
  const int64_t first = item.n * p.out_stride.n + item.k * p.out_stride.c +
                        item.p * p.out_stride.h + item.q * p.out_stride.w;
  if (e.scale != nullptr || e.bias != nullptr) {
    constexpr int kChannels = kColumns ? 1 : kWidth;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      float scale = 1, bias = 0;
      if (e.scale != nullptr) scale = channel_value<T>(e, e.scale, item.k + c);
      if (e.bias != nullptr) bias = channel_value<T>(e, e.bias, item.k + c);
#pragma unroll
      for (int t = 0; t < kKept; ++t) {
#pragma unroll
        for (int i = c; i < kWidth; i += kChannels) sum[t][i] = fmaf(sum[t][i], scale, bias);
      }
    }
  }
  const auto exists = [&](int i) { return !kColumns || is_within(item.q + i, p.Q); };
  const auto has = [&](int t) { return item.p + t >= 0 && item.p + t < p.P; };
  const T* residual = static_cast<const T*>(e.residual);
  const auto add_residual = [&] {
#pragma unroll
    for (int t = 0; t < kKept; ++t) {
      if (!has(t)) continue;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (exists(i)) sum[t][i] += widen(residual[first + t * p.out_stride.h + i]);
      }
    }
  };
  if (residual != nullptr && !e.residual_last) add_residual();
  activate<kKept * kWidth>(sum[0], e.activation, e.negative_slope);
  if (residual != nullptr && e.residual_last) add_residual();
  const auto store = [&](T* to, const float (&values)[kWidth]) {
    if constexpr (!kColumns) {
      store_unit<kWidth>(to, values);
    } else {
      constexpr int kVector = 16 / sizeof(T), kUnit = kWidth < kVector ? kWidth : kVector;
      store_columns<kUnit>(to, values, p.Q - item.q, p.store_unit);
    }
  };
  if constexpr (kOrder == Order::kLines) {
    store_across(p, item, first, sum[0]);
  } else {
#pragma unroll
    for (int t = 0; t < kKept; ++t) {
      if (has(t)) store(p.out + first + t * p.out_stride.h, sum[t]);
    }
  }
}

}  // namespace customconv::depthwise::threads
