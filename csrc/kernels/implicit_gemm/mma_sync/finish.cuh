// From sums to results while they are in registers: scale, bias, residual and activation.
//
// In a warpgroup's block, a thread has sums of two pixels by pairs of channels, as mma.sync
// leaves them: s[j * 4 + half * 2 + i] is of pixel `half` and of channel j * 8 + i from the
// thread's first.
#pragma once

#include "kernels/common/activate.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/mma_sync/pixels.cuh"

namespace customconv::implicit_gemm::mma_sync {

// What most convolutions don't ask for is laid out away from what they do.
__device__ inline bool rarely(bool condition) { return __builtin_expect(condition, false); }

// Keeps the compiler from loading more ahead than there are registers for.
__device__ inline void finish_loads() { asm volatile("" ::: "memory"); }

// Two values of T, side by side.
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

// The first channel of a thread, of those from first_k on.
__device__ inline int own_channel(int first_k) { return first_k + threadIdx.x % 4 * 2; }

// Calls `function` with every sum and its channel's value, of type V; `kPairs`: two may be loaded
// at once.
template <bool kPairs, typename V, int kBlocks, int kSums, typename Function>
__device__ inline void with_channels(const V* values, int K, int first_k,
                                     float (&sum)[kBlocks][kSums], Function function) {
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
    const int k = own_channel(first_k) + j * 8;
    float2 value = make_float2(0, 0);
    if constexpr (kPairs) {
      if (k < K) value = load_pair(values + k);
    } else {
      if (k < K) value.x = widen(values[k]);
      if (k + 1 < K) value.y = widen(values[k + 1]);
    }
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
}

// Scales the sums of all of a warpgroup's blocks, and adds the bias.
template <typename T, int kBlocks, int kSums>
__device__ inline void scale_and_bias(const Output<T>& out, int first_k,
                                      float (&sum)[kBlocks][kSums]) {
  const auto each = [&](const void* from, auto function) {
    if (!rarely(from != nullptr)) return;
    if (sizeof(T) == 2 && out.epilogue.float32_vectors) {
      with_channels<false>(static_cast<const float*>(from), out.K, first_k, sum, function);
    } else if (out.channel_pairs) {
      with_channels<true>(static_cast<const T*>(from), out.K, first_k, sum, function);
    } else {
      with_channels<false>(static_cast<const T*>(from), out.K, first_k, sum, function);
    }
  };
  each(out.epilogue.scale, [](float& s, float scale) { s *= scale; });
  each(out.epilogue.bias, [](float& s, float bias) { s += bias; });
}

// The residual of a block, from where it is in memory.
template <typename T, bool kBoxes, int kSums>
__device__ inline void add_residual(const Params<T>& p, const Corner& at, int first_k, int block,
                                    float (&sum)[kSums]) {
  const Output<T>& out = p.out;
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  int64_t offset[2] = {-1, -1};  // of the thread's pixels, where they exist
  if constexpr (kBoxes) {
    const int pixel = warp * kWarpPixels + lane / 4;
    offset[0] = boxed_offset(out, at, block, pixel);
    offset[1] = boxed_offset(out, at, block, pixel + 8);
  } else {
    const int number = (block * kBlockPixels + warp * kWarpPixels) / 2 + lane / 4;
    const Pair pair = pair_at(out, at, locate(p.source, at.pair + number));
    if (pair.count > 0) offset[0] = pair.offset;
    if (pair.count > 1) offset[1] = pair.offset + out.q;
  }
  const T* residual = static_cast<const T*>(out.epilogue.residual);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (offset[half] < 0) continue;
    const int first = own_channel(first_k);
    const T* from = residual + offset[half] + first * out.k;
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j, from += 8 * out.k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (first + j * 8 + i < out.K) sum[j * 4 + half * 2 + i] += widen(from[i * out.k]);
      }
      if (j % 4 == 3) finish_loads();
    }
  }
}

// All that is done to the sums of blocks from the first one on.
template <typename T, bool kBoxes, int kBlocks, int kSums>
__device__ inline void finish(const Params<T>& p, const Corner& at, int first_k, int first_block,
                              float (&sum)[kBlocks][kSums]) {
  const Epilogue& epilogue = p.out.epilogue;
  scale_and_bias(p.out, first_k, sum);
  if (!rarely(epilogue.residual != nullptr || epilogue.activation != Activation::kNone)) return;
  const bool has_residual = epilogue.residual != nullptr;
  const auto add = [&] {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      add_residual<T, kBoxes>(p, at, first_k, first_block + b, sum[b]);
    }
  };
  if (has_residual && !epilogue.residual_last) add();
  activate<kBlocks * kSums>(sum[0], epilogue.activation, epilogue.negative_slope);
  if (has_residual && epilogue.residual_last) add();
}

}  // namespace customconv::implicit_gemm::mma_sync
