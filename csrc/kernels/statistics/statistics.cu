#include <algorithm>

#include "kernels/common/aligned.cuh"
#include "kernels/common/parts.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/statistics/statistics.h"

namespace customconv::statistics {

namespace {

constexpr int kThreads = 256;
constexpr int kVectorBytes = 16;

__device__ inline void store_part(const StatisticsParts& to, int64_t part, int64_t channels,
                                  int64_t channel, float mean, float squares) {
  reinterpret_cast<float2*>(to.moments)[part * channels + channel] = make_float2(mean, squares);
}

// --- Channels-last: a block has some pixels of 64 channels.

constexpr int kSlabChannels = 64;
constexpr int kPixelsOfThread = 16;

constexpr int pixels_of_block(int vector) {
  return kThreads / (kSlabChannels / vector) * kPixelsOfThread;
}

// Adds up what the rows of a block have for each channel of the slab; all threads get the sums of
// their channels.
template <int kVector>
__device__ inline void add_rows(float (&sums)[kVector], float* shared, int row, int column) {
  constexpr int kRows = kThreads / (kSlabChannels / kVector);
  __syncthreads();
#pragma unroll
  for (int v = 0; v < kVector; ++v) shared[row * kSlabChannels + column * kVector + v] = sums[v];
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kSlabChannels) {
    shared[thread] = sum_of(kRows, [&](int r) { return shared[r * kSlabChannels + thread]; });
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < kVector; ++v) sums[v] = shared[column * kVector + v];
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads, 2)
    sum_pixels(const T* y, int64_t pixels, int channels, int slabs, StatisticsParts to) {
  constexpr int kColumns = kSlabChannels / kVector, kRows = kThreads / kColumns;
  __shared__ float shared[kRows * kSlabChannels];
  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % kColumns, row = thread / kColumns;
  const int64_t part = blockIdx.x / slabs;
  const int channel = static_cast<int>(blockIdx.x % slabs) * kSlabChannels + column * kVector;
  const int64_t first = part * pixels_of_block(kVector);
  const auto count = static_cast<int>(min(pixels - first, int64_t{pixels_of_block(kVector)}));
  const bool exists = channel < channels;
  ptx::launch_dependent_grids();
  ptx::wait_on_dependent_grids();
  Vector<T, kVector> loaded[kPixelsOfThread];
#pragma unroll
  for (int i = 0; i < kPixelsOfThread; ++i) {
    const int pixel = i * kRows + row;
    if (exists && pixel < count) {
      loaded[i] =
          *reinterpret_cast<const Vector<T, kVector>*>(y + (first + pixel) * channels + channel);
    }
  }
  float means[kVector] = {}, squares[kVector] = {};
#pragma unroll
  for (int i = 0; i < kPixelsOfThread; ++i) {
    if (!exists || i * kRows + row >= count) continue;
#pragma unroll
    for (int v = 0; v < kVector; ++v) means[v] += widen(loaded[i].values[v]);
  }
  add_rows(means, shared, row, column);
#pragma unroll
  for (int v = 0; v < kVector; ++v) means[v] /= static_cast<float>(count);
#pragma unroll
  for (int i = 0; i < kPixelsOfThread; ++i) {
    if (!exists || i * kRows + row >= count) continue;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const float distance = widen(loaded[i].values[v]) - means[v];
      squares[v] = fmaf(distance, distance, squares[v]);
    }
  }
  add_rows(squares, shared, row, column);
  if (thread == 0 && channel == 0) to.counts[part] = static_cast<float>(count);
  if (row > 0 || !exists) return;
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    store_part(to, part, channels, channel + v, means[v], squares[v]);
  }
}

// --- Channels-first: a warp has a piece of a plane.

constexpr int kPiece = 512;  // pixels
constexpr int kWarps = kThreads / 32;

__device__ inline float add_in_warp(float v) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) v += __shfl_xor_sync(~0u, v, lanes);
  return v;
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads)
    sum_planes(const T* y, int plane, int channels, int pieces, int groups, StatisticsParts to) {
  constexpr int kLoads = kPiece / 32 / kVector;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t part = blockIdx.x / groups;  // of images, then of their pieces
  const int channel = static_cast<int>(blockIdx.x % groups) * kWarps + warp;
  if (channel >= channels) return;
  const int64_t image = part / pieces;
  const int first = static_cast<int>(part % pieces) * kPiece;
  const int count = min(plane - first, kPiece);
  const T* from = y + (image * channels + channel) * plane + first;
  ptx::launch_dependent_grids();
  ptx::wait_on_dependent_grids();
  Vector<T, kVector> loaded[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int pixel = (i * 32 + lane) * kVector;
    if (pixel < count) loaded[i] = *reinterpret_cast<const Vector<T, kVector>*>(from + pixel);
  }
  const auto sum_of_all = [&](auto value) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if ((i * 32 + lane) * kVector >= count) continue;
#pragma unroll
      for (int v = 0; v < kVector; ++v) sum += value(widen(loaded[i].values[v]));
    }
    return add_in_warp(sum);
  };
  const float mean = sum_of_all([](float v) { return v; }) / static_cast<float>(count);
  const float squares = sum_of_all([mean](float v) { return (v - mean) * (v - mean); });
  if (lane > 0) return;
  store_part(to, part, channels, channel, mean, squares);
  if (channel == 0) to.counts[part] = static_cast<float>(count);
}

// --- Merging

constexpr int kMergedChannels = 4;  // of a block: 32 bytes of a part
constexpr int kMergeThreads = 512;
constexpr int kSharers = kMergeThreads / kMergedChannels;  // threads of a channel
constexpr int kMergeWarps = kMergeThreads / 32;

__global__ void __launch_bounds__(kMergeThreads)
    merge(const StatisticsParts parts, int count, int channels, float pixels, const Merged to) {
  __shared__ float shares[kMergeWarps][kMergedChannels];
  const int thread = static_cast<int>(threadIdx.x);
  const int own = thread % kMergedChannels, sharer = thread / kMergedChannels;
  const int channel = static_cast<int>(blockIdx.x) * kMergedChannels + own;
  const bool exists = channel < channels;
  const auto* moments = reinterpret_cast<const float2*>(parts.moments) + channel;
  // Over all parts, by `value` of a part's moments and pixels.
  const auto sum_over_parts = [&](auto value) {
    float share = 0;
    if (exists) {
      share = sum_of((count - sharer + kSharers - 1) / kSharers, [&](int n) {
        const int64_t part = sharer + int64_t{n} * kSharers;
        return value(moments[part * channels], parts.counts[part]);
      });
    }
#pragma unroll
    for (int lanes = kMergedChannels; lanes < 32; lanes *= 2) {
      share += __shfl_xor_sync(~0u, share, lanes);
    }
    __syncthreads();
    if (thread % 32 < kMergedChannels) shares[thread / 32][own] = share;
    __syncthreads();
    return sum_of(kMergeWarps, [&](int warp) { return shares[warp][own]; });
  };
  ptx::wait_on_dependent_grids();
  const float mean = sum_over_parts([](float2 part, float n) { return n * part.x; }) / pixels;
  const float squares = sum_over_parts(
      [mean](float2 part, float n) { return fmaf(n * (part.x - mean), part.x - mean, part.y); });
  if (sharer > 0 || !exists) return;
  const float variance = squares / pixels;
  to.mean[channel] = mean;
  to.variance[channel] = variance;
  to.reciprocal_std[channel] = 1 / sqrtf(variance + to.eps);
  const auto update = [&](float* running, float value) {
    if (running == nullptr) return;
    running[channel] = (1 - to.momentum) * running[channel] + to.momentum * value;
  };
  update(to.running_mean, mean);
  update(to.running_variance, squares / (pixels - 1));
}

// Elements that are loaded at once: neighbours are channels, or pixels of a plane.
int vector_of(const ConvProblem& p, bool channels_last) {
  const auto most = kVectorBytes / static_cast<int>(element_size(p.dtype));
  return (channels_last ? p.K : p.P * p.Q) % most == 0 ? most : 1;
}

bool is_channels_last(const ConvProblem& p) {
  return dense_layout(p.y_sizes(), p.y_strides) == Layout::kNhwc || p.P * p.Q == 1;
}

}  // namespace

int64_t count_parts(const ConvProblem& p) {
  if (!is_channels_last(p)) return p.N * ceil_divide(p.P * p.Q, kPiece);
  return ceil_divide(p.N * p.P * p.Q, int64_t{pixels_of_block(vector_of(p, true))});
}

template <typename T>
void launch_parts(const ConvProblem& p, const void* y, const StatisticsParts& to,
                  cudaStream_t stream) {
  constexpr int kMost = kVectorBytes / static_cast<int>(sizeof(T));
  const bool channels_last = is_channels_last(p);
  const auto* from = static_cast<const T*>(y);
  const int vector = vector_of(p, channels_last);
  const auto channels = static_cast<int>(p.K);
  Start how{0, kThreads};
  how.stream = stream;
  how.early = true;
  if (channels_last) {
    const auto slabs = static_cast<int>(ceil_divide(p.K, kSlabChannels));
    how.blocks = count_parts(p) * slabs;
    start<const T*, int64_t, int, int, StatisticsParts>(
        "statistics", how, vector == 1 ? sum_pixels<T, 1> : sum_pixels<T, kMost>, from,
        p.N * p.P * p.Q, channels, slabs, to);
  } else {
    const auto groups = static_cast<int>(ceil_divide(p.K, kWarps));
    const auto plane = static_cast<int>(p.P * p.Q);
    how.blocks = count_parts(p) * groups;
    start<const T*, int, int, int, int, StatisticsParts>(
        "statistics", how, vector == 1 ? sum_planes<T, 1> : sum_planes<T, kMost>, from, plane,
        channels, static_cast<int>(ceil_divide(plane, kPiece)), groups, to);
  }
}

template void launch_parts<float>(const ConvProblem&, const void*, const StatisticsParts&,
                                  cudaStream_t);
template void launch_parts<__half>(const ConvProblem&, const void*, const StatisticsParts&,
                                   cudaStream_t);
template void launch_parts<__nv_bfloat16>(const ConvProblem&, const void*, const StatisticsParts&,
                                          cudaStream_t);

void launch_merge(const StatisticsParts& parts, int64_t count, int64_t channels, int64_t pixels,
                  const Merged& to, cudaStream_t stream) {
  Start how{ceil_divide(channels, kMergedChannels), kMergeThreads};
  how.stream = stream;
  how.early = true;
  start<StatisticsParts, int, int, float, Merged>(
      "merged statistics", how, merge, parts, static_cast<int>(count), static_cast<int>(channels),
      static_cast<float>(pixels), to);
}

}  // namespace customconv::statistics
