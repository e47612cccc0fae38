#include <algorithm>
#include <type_traits>

#include "kernels/bias/bias.h"
#include "kernels/common/aligned.cuh"
#include "kernels/common/divide.cuh"
#include "kernels/common/parts.cuh"

namespace customconv {

namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 8;  // vectors that a thread has under way

}  // namespace

BiasGradient::BiasGradient(Layout lies, const Shape5& sizes, int element_bytes)
    : layout(sizes[2] * sizes[3] == 1 ? Layout::kNhwc : lies), channels(sizes[1]) {
  constexpr int kVectorBytes = 16;
  constexpr int kMostAcross = 32;
  constexpr int64_t kBlocks = 512;  // of which an H100 has room for 528 at once
  // Numbers go on for a while past the last vector.
  constexpr int64_t kMost = (int64_t{1} << 31) - 2 * kThreads * kUnroll;
  const bool channels_last = layout == Layout::kNhwc;
  const int64_t pixels = sizes[2] * sizes[3];
  const int64_t neighbours = channels_last ? channels : pixels;
  for (vector = kVectorBytes / element_bytes; neighbours % vector != 0;) vector /= 2;
  run = neighbours / vector;
  const int64_t all_columns = channels_last ? run : channels;
  const int64_t all_vectors = sizes[0] * (channels_last ? pixels : run);
  across = 1;
  while (channels_last && across < std::min<int64_t>(all_columns, kMostAcross)) across *= 2;
  down = kThreads / across;
  is_possible = all_columns < kMost && all_vectors < kMost;
  if (!is_possible) return;
  columns = static_cast<int32_t>(all_columns);
  count = static_cast<int32_t>(all_vectors);
  tiles = static_cast<int32_t>(ceil_divide(columns, across));
  const int64_t most = ceil_divide(count, int64_t{down} * kUnroll);
  share = static_cast<int32_t>(ceil_divide(count, std::min(most, ceil_divide(kBlocks, tiles))));
  splits = static_cast<int32_t>(ceil_divide(count, share));
}

namespace {

// Where vector `i` of a column begins, in vectors.
template <bool kChannelsLast>
__device__ int64_t place(const BiasGradient& s, const Divider<int32_t>& run, int32_t i,
                         int32_t column) {
  if constexpr (kChannelsLast) return int64_t{i} * s.columns + column;
  int32_t image = i;
  const int32_t pixel = run.split(image);
  return (image * s.channels + column) * s.run + pixel;
}

// A block adds up a share of the vectors of its columns: into `to`, or its part of the sums.
template <typename T, int kVector, bool kChannelsLast>
__global__ void __launch_bounds__(kThreads, 4)
    add_pixels(const BiasGradient s, const Divider<int32_t> run, const Vector<T, kVector>* grad,
               T* to, float* parts) {
  constexpr int kSums = kChannelsLast ? kVector : 1;
  __shared__ float shared[kThreads / 2 * kSums];
  const int thread = static_cast<int>(threadIdx.x);
  const int own = thread % s.across, row = thread / s.across;
  const int32_t column = static_cast<int32_t>(blockIdx.x) % s.tiles * s.across + own;
  const int32_t split = static_cast<int32_t>(blockIdx.x) / s.tiles;
  const int32_t first = split * s.share;
  const int32_t last = column < s.columns ? min(first + s.share, s.count) : first;

  float sums[kSums] = {};
  for (int32_t i = first + row; i < last; i += kUnroll * s.down) {
    Vector<T, kVector> loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {  // the last again where there are no more: without a branch
      loaded[u] = grad[place<kChannelsLast>(s, run, min(i + u * s.down, last - 1), column)];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const bool counts = i + u * s.down < last;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        sums[v % kSums] += counts ? widen(loaded[u].values[v]) : 0.0f;
      }
    }
  }

  // The upper half of the rows hands its sums to the lower half, until there is one row.
  for (int half = s.down / 2; half > 0; half /= 2) {
    if (row >= half && row < 2 * half) {
#pragma unroll
      for (int v = 0; v < kSums; ++v) shared[v * kThreads / 2 + thread - half * s.across] = sums[v];
    }
    __syncthreads();
    if (row < half) {
#pragma unroll
      for (int v = 0; v < kSums; ++v) sums[v] += shared[v * kThreads / 2 + thread];
    }
    __syncthreads();
  }
  if (row > 0 || column >= s.columns) return;
  const int64_t channel = int64_t{column} * kSums;
#pragma unroll
  for (int v = 0; v < kSums; ++v) {
    if (s.splits == 1) {
      to[channel + v] = narrow<T>(sums[v]);
    } else {
      parts[split * s.channels + channel + v] = sums[v];
    }
  }
}

struct InPlace {
  __device__ int64_t operator()(int64_t i) const { return i; }
};

template <typename T, int kVector, bool kChannelsLast>
void launch_with(const BiasGradient& sums, const void* grad, void* to, void* workspace,
                 cudaStream_t stream) {
  const Divider<int32_t> run(kChannelsLast ? 1 : sums.run);
  auto* parts = static_cast<float*>(workspace);
  Start how{int64_t{sums.tiles} * sums.splits, kThreads};
  how.stream = stream;
  start<BiasGradient, Divider<int32_t>, const Vector<T, kVector>*, T*, float*>(
      "bias gradient", how, add_pixels<T, kVector, kChannelsLast>, sums, run,
      static_cast<const Vector<T, kVector>*>(grad), static_cast<T*>(to), parts);
  if (sums.splits == 1) return;
  add_up("sums of the bias gradient", parts, sums.channels, sums.splits, static_cast<T*>(to),
         InPlace{}, /*early=*/false, stream);
}

}  // namespace

template <typename T>
void launch_bias_gradient(const BiasGradient& sums, const void* grad, void* to, void* workspace,
                          cudaStream_t stream) {
  const auto launch = [&](auto vector) {
    constexpr int kVector = decltype(vector)::value;
    const auto launch_layout = sums.layout == Layout::kNhwc ? launch_with<T, kVector, true>
                                                            : launch_with<T, kVector, false>;
    launch_layout(sums, grad, to, workspace, stream);
  };
  switch (sums.vector) {
    case 8:
      if constexpr (sizeof(T) == 2) launch(std::integral_constant<int, 8>{});
      break;
    case 4:
      launch(std::integral_constant<int, 4>{});
      break;
    case 2:
      launch(std::integral_constant<int, 2>{});
      break;
    default:
      launch(std::integral_constant<int, 1>{});
  }
}

template void launch_bias_gradient<float>(const BiasGradient&, const void*, void*, void*,
                                          cudaStream_t);
template void launch_bias_gradient<__half>(const BiasGradient&, const void*, void*, void*,
                                           cudaStream_t);
template void launch_bias_gradient<__nv_bfloat16>(const BiasGradient&, const void*, void*, void*,
                                                  cudaStream_t);

}  // namespace customconv
