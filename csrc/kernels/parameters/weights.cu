#include <algorithm>

#include "kernels/common/aligned.cuh"
#include "kernels/common/parts.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/parameters/parameters.h"

namespace customconv::parameters {

namespace {

constexpr int kThreads = 256;
constexpr int kMost = 128;   // copies of one launch
constexpr int kTile = 4096;  // elements of a block
constexpr int kVector = 8;   // elements that a thread copies at once
static_assert(kTile >= kMostTaps && kTile % (kThreads * kVector) == 0);

struct Batch {
  Copy each[kMost];
  int32_t first_block[kMost + 1];  // of each copy, and the end
  int32_t count;
};

__host__ __device__ inline bool changes_order(const Copy& copy) {
  return copy.taps > 1 && copy.channels > 1;
}

// A tile of a copy that changes the order: some filters, or some channels of one.
__host__ __device__ inline int32_t filters_of_tile(const Copy& copy) {
  const int64_t filter = int64_t{copy.channels} * copy.taps;
  return filter >= kTile ? 1 : static_cast<int32_t>(kTile / filter);
}
__host__ __device__ inline int32_t channels_of_tile(const Copy& copy) {
  const int32_t most = kTile / copy.taps;
  return copy.channels < most ? copy.channels : most;
}

int64_t blocks_of(const Copy& copy) {
  if (!changes_order(copy)) {
    return ceil_divide(copy.filters * copy.channels * copy.taps, int64_t{kTile});
  }
  return ceil_divide(copy.filters, int64_t{filters_of_tile(copy)}) *
         ceil_divide(int64_t{copy.channels}, int64_t{channels_of_tile(copy)});
}

// Elements of a tile, in the order in which they lie.
template <typename From, typename To>
__device__ void copy_run(const Copy& copy, int32_t tile) {
  struct alignas(sizeof(From) * kVector) Loaded {
    From values[kVector];
  };
  struct alignas(sizeof(To) * kVector) Stored {
    To values[kVector];
  };
  const int64_t count = copy.filters * copy.channels * copy.taps;
  const int64_t first = int64_t{tile} * kTile;
  const auto* from = static_cast<const From*>(copy.from);
  auto* to = static_cast<To*>(copy.to);
  const bool vectors = is_aligned(from, sizeof(Loaded)) && is_aligned(to, sizeof(Stored));
#pragma unroll
  for (int u = 0; u < kTile / (kThreads * kVector); ++u) {
    const int64_t at = first + (u * kThreads + static_cast<int>(threadIdx.x)) * kVector;
    if (vectors && at + kVector <= count) {
      const Loaded loaded = *reinterpret_cast<const Loaded*>(from + at);
      Stored stored;
#pragma unroll
      for (int i = 0; i < kVector; ++i) stored.values[i] = narrow<To>(widen(loaded.values[i]));
      *reinterpret_cast<Stored*>(to + at) = stored;
    } else {
      for (int64_t i = at; i < min(at + kVector, count); ++i) to[i] = narrow<To>(widen(from[i]));
    }
  }
}

// The same where channels come last in the copy; through shared memory, so that threads read and
// write neighbours.
template <typename From, typename To>
__device__ void copy_channels_last(const Copy& copy, int32_t tile, float* shared) {
  const int32_t taps = copy.taps, most = channels_of_tile(copy);
  const int32_t across = static_cast<int32_t>(ceil_divide(copy.channels, most));
  const int64_t first_filter = int64_t{tile / across} * filters_of_tile(copy);
  const int32_t first_channel = tile % across * most;
  const int32_t channels = min(most, copy.channels - first_channel);
  const int64_t filters = min(int64_t{filters_of_tile(copy)}, copy.filters - first_filter);
  const int32_t count = static_cast<int32_t>(filters) * channels * taps;
  const int64_t first = (first_filter * copy.channels + first_channel) * taps;
  const From* from = static_cast<const From*>(copy.from) + first;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = thread; i < count; i += kThreads) shared[i] = widen(from[i]);
  __syncthreads();
  To* to = static_cast<To*>(copy.to) + first_filter * copy.channels * taps + first_channel;
  for (int32_t i = thread; i < count; i += kThreads) {
    const int32_t channel = i % channels, tap = i / channels % taps, filter = i / channels / taps;
    to[(int64_t{filter} * taps + tap) * copy.channels + channel] =
        narrow<To>(shared[(filter * channels + channel) * taps + tap]);
  }
}

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) copy_all(const __grid_constant__ Batch batch) {
  __shared__ float shared[kTile];
  const int32_t block = static_cast<int32_t>(blockIdx.x);
  int32_t low = 0, high = batch.count;  // the last copy that begins at this block or before
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (batch.first_block[middle] <= block ? low : high) = middle;
  }
  const Copy& copy = batch.each[low];
  const int32_t tile = block - batch.first_block[low];
  if (changes_order(copy)) {
    copy_channels_last<From, To>(copy, tile, shared);
  } else {
    copy_run<From, To>(copy, tile);
  }
}

template <typename From, typename To>
void launch_with(const Copy* copies, size_t count, Stream stream) {
  for (size_t first = 0; first < count; first += kMost) {
    Batch batch;
    batch.count = static_cast<int32_t>(std::min<size_t>(kMost, count - first));
    int64_t blocks = 0;
    for (int32_t i = 0; i < batch.count; ++i) {
      batch.each[i] = copies[first + static_cast<size_t>(i)];
      batch.first_block[i] = static_cast<int32_t>(blocks);
      blocks += blocks_of(batch.each[i]);
    }
    batch.first_block[batch.count] = static_cast<int32_t>(blocks);
    Start how{blocks, kThreads};
    how.stream = stream;
    start<Batch>("copies of weights", how, copy_all<From, To>, batch);
  }
}

template <typename From>
void launch_from(const Copy* copies, size_t count, DType to, Stream stream) {
  switch (to) {
    case DType::kFloat32:
      return launch_with<From, float>(copies, count, stream);
    case DType::kFloat16:
      return launch_with<From, __half>(copies, count, stream);
    case DType::kBFloat16:
      return launch_with<From, __nv_bfloat16>(copies, count, stream);
    case DType::kFloat64:
      break;
  }
}

}  // namespace

void launch_copies(const Copy* copies, size_t count, DType from, DType to, Stream stream) {
  switch (from) {
    case DType::kFloat32:
      return launch_from<float>(copies, count, to, stream);
    case DType::kFloat16:
      return launch_from<__half>(copies, count, to, stream);
    case DType::kBFloat16:
      return launch_from<__nv_bfloat16>(copies, count, to, stream);
    case DType::kFloat64:
      break;
  }
}

}  // namespace customconv::parameters
