#include <algorithm>
#include <type_traits>

#include "kernels/bias/bias.h"
#include "kernels/common/divide.cuh"
#include "kernels/common/parts.cuh"

namespace customconv {

BiasGradient::BiasGradient(Layout lies, const Shape4& sizes, int element_bytes)
    : layout(sizes[2] * sizes[3] == 1 ? Layout::kNhwc : lies),
      channels(sizes[1]),
      pixels(sizes[2] * sizes[3]) {
  constexpr int kVectorBytes = 16;
  constexpr int kMostAcross = 32;
  constexpr int64_t kBlocks = 512;  // of which an H100 has room for 528 at once
  const bool channels_last = layout == Layout::kNhwc;
  const int64_t run = channels_last ? channels : pixels;
  for (vector = kVectorBytes / element_bytes; run % vector != 0;) vector /= 2;
  count = sizes[0] * (channels_last ? pixels : pixels / vector);
  columns = channels_last ? channels / vector : channels;
  across = 1;
  while (channels_last && across < std::min<int64_t>(columns, kMostAcross)) across *= 2;
  down = kThreads / across;
  const int64_t most = ceil_divide(count, int64_t{down} * kUnroll);
  share = ceil_divide(count, std::min(most, ceil_divide(kBlocks, ceil_divide(columns, across))));
  splits = ceil_divide(count, share);
}

namespace {

constexpr int kThreads = BiasGradient::kThreads;
constexpr int kUnroll = BiasGradient::kUnroll;

template <typename T, int kVector>
struct alignas(sizeof(T) * kVector) Vector {
  T values[kVector];
};

template <typename T>
struct Arguments {
  const T* grad;
  T* to;         // where there is one share
  float* parts;  // where there are several
  int64_t channels;
  int32_t columns, tiles, across, down, count, share;
  Divider<int32_t> run;  // NCHW: vectors of a channel of an image
};

// Where vector `i` of a column begins, in vectors.
template <bool kChannelsLast, typename T>
__device__ int64_t place(const Arguments<T>& a, int32_t i, int32_t column) {
  if constexpr (kChannelsLast) return int64_t{i} * a.columns + column;
  int32_t image = i;
  const int32_t pixel = a.run.split(image);
  return (image * a.channels + column) * a.run.divisor() + pixel;
}

// A block adds up a share of the vectors of its columns.
template <typename T, int kVector, bool kChannelsLast>
__global__ void __launch_bounds__(kThreads, 4) add_pixels(const Arguments<T> a) {
  constexpr int kSums = kChannelsLast ? kVector : 1;
  __shared__ float shared[kThreads / 2 * kSums];
  const int thread = static_cast<int>(threadIdx.x);
  const int own = thread % a.across, row = thread / a.across;
  const int32_t column = static_cast<int32_t>(blockIdx.x) % a.tiles * a.across + own;
  const int32_t split = static_cast<int32_t>(blockIdx.x) / a.tiles;
  const int32_t first = split * a.share;
  const int32_t last = column < a.columns ? min(first + a.share, a.count) : first;
  const auto* from = reinterpret_cast<const Vector<T, kVector>*>(a.grad);

  float sums[kSums] = {};
  for (int32_t i = first + row; i < last; i += kUnroll * a.down) {
    Vector<T, kVector> loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {  // the last again where there are no more: without a branch
      loaded[u] = from[place<kChannelsLast>(a, min(i + u * a.down, last - 1), column)];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const bool counts = i + u * a.down < last;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        sums[v % kSums] += counts ? widen(loaded[u].values[v]) : 0.0f;
      }
    }
  }

  // The upper half of the rows hands its sums to the lower half, until there is one row.
  for (int half = a.down / 2; half > 0; half /= 2) {
    if (row >= half && row < 2 * half) {
#pragma unroll
      for (int v = 0; v < kSums; ++v) shared[v * kThreads / 2 + thread - half * a.across] = sums[v];
    }
    __syncthreads();
    if (row < half) {
#pragma unroll
      for (int v = 0; v < kSums; ++v) sums[v] += shared[v * kThreads / 2 + thread];
    }
    __syncthreads();
  }
  if (row > 0 || column >= a.columns) return;
  const int64_t channel = int64_t{column} * kSums;
#pragma unroll
  for (int v = 0; v < kSums; ++v) {
    if (a.parts == nullptr) {
      a.to[channel + v] = narrow<T>(sums[v]);
    } else {
      a.parts[split * a.channels + channel + v] = sums[v];
    }
  }
}

struct InPlace {
  __device__ int64_t operator()(int64_t i) const { return i; }
};

template <typename T, int kVector, bool kChannelsLast>
void launch_with(const BiasGradient& sums, const void* grad, void* to, void* workspace,
                 cudaStream_t stream) {
  Arguments<T> a;
  a.grad = static_cast<const T*>(grad);
  a.to = static_cast<T*>(to);
  a.parts = sums.splits > 1 ? static_cast<float*>(workspace) : nullptr;
  a.channels = sums.channels;
  a.columns = static_cast<int32_t>(sums.columns);
  a.tiles = static_cast<int32_t>(ceil_divide(sums.columns, sums.across));
  a.across = sums.across;
  a.down = sums.down;
  a.count = static_cast<int32_t>(sums.count);
  a.share = static_cast<int32_t>(sums.share);
  a.run = Divider<int32_t>(kChannelsLast ? 1 : sums.pixels / kVector);
  Start how{a.tiles * sums.splits, kThreads};
  how.stream = stream;
  start<Arguments<T>>("bias gradient", how, add_pixels<T, kVector, kChannelsLast>, a);
  if (a.parts == nullptr) return;
  add_up("sums of the bias gradient", a.parts, sums.channels, sums.splits, a.to, InPlace{},
         /*early=*/false, stream);
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
