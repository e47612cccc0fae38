// The tiled convolution kernel and its launcher.
//
// A block computes a tile of output: some images (or groups), rows and strips of eight pixels, for
// some channels. A thread keeps one strip for one, four or eight output channels in registers. The
// input channels pass through shared memory in steps, a chunk of channels each, inputs with their
// halo and weights both as float32; the next step is fetched while this one is computed. Some rows
// of taps at a time are summed on their own and then added to the total, which bounds the rounding
// error of long sums.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/common/start.h"
#include "kernels/launch.h"
#include "kernels/tiled/copy.cuh"
#include "kernels/tiled/tile.h"

namespace customconv::tiled {

template <typename T>
struct Params {
  Geometry g;
  Tile tile;
  const T* in;
  const T* weight;
  const T* bias;
  T* out;
  int warps_k;                 // warps along the output channels
  int in_lanes_log2;           // neighbouring threads that fetch neighbouring channels
  int weight_lanes_log2;       // threads that fetch neighbouring weights of one output channel
  int weight_step_log2;        // the block's other threads fetch those of other output channels
  bool weight_channels_first;  // neighbours in memory differ in the input channel
  bool out_channels_last;
  bool vector_store;
  int row_step, column_step;  // in shared memory, from an output pixel to the next
  int tap_rows, tap_columns;  // taps whose inputs a step holds
  int tap_row_step;           // in shared memory, from a row of taps to the next
  int part_terms;             // after which a sum is added to the total
  int positions;              // of a channel in shared memory
  int table_floats, input_floats, stage_floats;
  Divider<int32_t> tiles_k, tiles_g, tiles_q, tiles_p;
  Divider<int32_t> groups, images, rows, strips;  // of a tile
  Divider<int32_t> in_rows;
  Divider<int32_t> taps, taps_s, chunk, channels;
};

__device__ inline int clamp_count(int64_t count, int most) {
  return count < 0 ? 0 : count < most ? static_cast<int>(count) : most;
}

// Shared memory, 16-byte aligned: reads kCount floats, a multiple of two.
template <int kCount>
__device__ inline void read_floats(const float* from, float (&to)[kCount]) {
#pragma unroll
  for (int i = 0; i + 4 <= kCount; i += 4) {
    const float4 v = *reinterpret_cast<const float4*>(from + i);
    to[i] = v.x;
    to[i + 1] = v.y;
    to[i + 2] = v.z;
    to[i + 3] = v.w;
  }
  if constexpr (kCount % 4 == 2) {
    const float2 v = *reinterpret_cast<const float2*>(from + kCount - 2);
    to[kCount - 2] = v.x;
    to[kCount - 1] = v.y;
  }
}

template <int kChannels>
__device__ inline void read_weights(const float* from, float (&to)[kChannels]) {
  if constexpr (kChannels == 1) {
    to[0] = *from;
  } else {
    read_floats(from, to);
  }
}

// sum[k][j] += weight[k] * in[first + j]
template <int kChannels, int kCount>
__device__ inline void multiply_add(float (&sum)[kChannels][kStrip],
                                    const float (&weight)[kChannels], const float (&in)[kCount],
                                    int first) {
#pragma unroll
  for (int k = 0; k < kChannels; ++k) {
#pragma unroll
    for (int j = 0; j < kStrip; ++j) sum[k][j] = fmaf(weight[k], in[first + j], sum[k][j]);
  }
}

// Adds a sum to the total and begins another.
template <int kChannels>
__device__ inline void move_sum(float (&sum)[kChannels][kStrip],
                                float (&total)[kChannels][kStrip]) {
#pragma unroll
  for (int k = 0; k < kChannels; ++k) {
#pragma unroll
    for (int j = 0; j < kStrip; ++j) {
      total[k][j] += sum[k][j];
      sum[k][j] = 0;
    }
  }
}

// Adds a kernel row's products; `weight` moves on by the row's taps. A window may reach past the
// row's end in shared memory: what lies there meets no tap.
template <int kChannels, Taps kTaps, typename T>
__device__ inline void add_row(const Params<T>& p, float (&sum)[kChannels][kStrip], const float* in,
                               const float*& weight) {
  const int pitch = p.tile.weight_pitch;
  float w[kChannels];
  if constexpr (kTaps == Taps::kAny) {
    for (int s0 = 0; s0 < p.tap_columns; s0 += 4, in += 4) {
      float window[kStrip + 4];
      read_floats(in, window);
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        if (s0 + s >= p.tap_columns) break;
        read_weights(weight, w);
        multiply_add(sum, w, window, s);
        weight += pitch;
      }
    }
  } else if constexpr (reads_windows(kTaps)) {
    constexpr int kCount = kTaps == Taps::kOne     ? 1
                           : kTaps == Taps::kThree ? 3
                           : kTaps == Taps::kFive  ? 5
                                                   : 7;
    float window[kStrip + kCount - 1];
    read_floats(in, window);
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      read_weights(weight, w);
      multiply_add(sum, w, window, s);
      weight += pitch;
    }
  } else {
    const int step = kTaps == Taps::kStride1   ? 1
                     : kTaps == Taps::kStride2 ? 2
                                               : static_cast<int>(p.g.stride_w);
    const int dilation = static_cast<int>(p.g.dilation_w);
#pragma unroll 1
    for (int s = 0; s < p.tap_columns; ++s, in += dilation) {
      float strip[kStrip];
#pragma unroll
      for (int j = 0; j < kStrip; ++j) strip[j] = in[j * step];
      read_weights(weight, w);
      multiply_add(sum, w, strip, 0);
      weight += pitch;
    }
  }
}

// Where a thread's strip goes, and how much of it exists. `channels` is the same in a warp.
struct StripOut {
  int64_t offset;  // of its first pixel and channel
  int pixels;
  int channels;
};

// 16-bit, aligned rows: a strip is one store.
template <int kChannels, typename T>
__device__ inline void store_vectors(const Params<T>& p, const float (&sum)[kChannels][kStrip],
                                     const StripOut& to) {
#pragma unroll
  for (int k = 0; k < kChannels; ++k) {
    if (k >= to.channels) break;
    T* out = p.out + to.offset + k * p.g.out.k;
    alignas(16) T value[kStrip];
#pragma unroll
    for (int j = 0; j < kStrip; ++j) value[j] = narrow<T>(sum[k][j]);
    if (to.pixels == kStrip) {
      uint4 vector;
      memcpy(&vector, value, sizeof vector);
      *reinterpret_cast<uint4*>(out) = vector;
    } else {
#pragma unroll
      for (int j = 0; j < kStrip; ++j) {
        if (j < to.pixels) out[j] = value[j];
      }
    }
  }
}

// Neighbouring threads hold neighbouring groups of one channel.
template <typename T>
__device__ inline void store_channels(const Params<T>& p, const float (&sum)[1][kStrip],
                                      const StripOut& to) {
  if (to.channels < 1) return;
#pragma unroll
  for (int j = 0; j < kStrip; ++j) {
    if (j < to.pixels) p.out[to.offset + j * p.g.out.q] = narrow<T>(sum[0][j]);
  }
}

// Puts one row of every strip of a warp, its pixels of a channel or its channels of a pixel, into
// the slab, and lets kLength neighbouring threads write it.
template <int kChannels, bool kAlongChannels, typename T>
__device__ inline void store_rows(const Params<T>& p, const float (&sum)[kChannels][kStrip],
                                  const StripOut& to, float* slab) {
  constexpr int kLength = kAlongChannels ? kChannels : kStrip;
  constexpr int kRows = kAlongChannels ? kStrip : kChannels;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int element = lane % kLength;
  const int64_t stride = kAlongChannels ? p.g.out.k : p.g.out.q;
  const int64_t row_stride = kAlongChannels ? p.g.out.q : p.g.out.k;

  int64_t offset[kLength];
  int rows[kLength];  // that exist of strip i, for this thread's element of them
#pragma unroll
  for (int i = 0; i < kLength; ++i) {
    const int source = (i * 32 + lane) / kLength;
    offset[i] = __shfl_sync(0xffffffffu, to.offset, source) + element * stride;
    const int pixels = __shfl_sync(0xffffffffu, to.pixels, source);
    if constexpr (kAlongChannels) {
      rows[i] = element < to.channels ? pixels : 0;
    } else {
      rows[i] = element < pixels ? to.channels : 0;
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kLength; i += 4) {
      float4 v;
      v.x = kAlongChannels ? sum[i][row] : sum[row][i];
      v.y = kAlongChannels ? sum[i + 1][row] : sum[row][i + 1];
      v.z = kAlongChannels ? sum[i + 2][row] : sum[row][i + 2];
      v.w = kAlongChannels ? sum[i + 3][row] : sum[row][i + 3];
      *reinterpret_cast<float4*>(slab + lane * kLength + i) = v;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kLength; ++i) {
      const float v = slab[i * 32 + lane];
      if (row < rows[i]) p.out[offset[i] + row * row_stride] = narrow<T>(v);
    }
  }
}

// The pixels of an axis that a tile covers: which of `size` places i = 0, 1, ... exist of an input
// axis of length `length` when place i is at `first` + i * `step`.
struct Range {
  int begin;
  unsigned count;
};
__device__ inline Range existing(int64_t first, int64_t step, int64_t length, int size) {
  const auto places_before = [step](int64_t distance) {  // at a place not past `distance`
    if (distance <= 0) return int64_t{0};
    return step == 1 ? distance : (distance + step - 1) / step;
  };
  const int begin = clamp_count(places_before(-first), size);
  const int end = clamp_count(places_before(length - first), size);
  return {begin, end > begin ? static_cast<unsigned>(end - begin) : 0u};
}

template <typename T, int kChannels, Taps kTaps>
__global__ void __launch_bounds__(max_threads(kChannels), kMinBlocks)
    convolve(const __grid_constant__ Params<T> p) {
  extern __shared__ float4 shared[];
  const Geometry& g = p.g;
  const Tile& tile = p.tile;
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int lane = thread % 32;
  const int warp = thread / 32;

  // The block's place; its channels vary fastest, so that blocks that run together share inputs.
  int32_t block = static_cast<int32_t>(blockIdx.x);
  const int k0 = p.tiles_k.split(block) * tile.channels;
  const int g0 = p.tiles_g.split(block) * (tile.groups * tile.rounds);
  const int64_t q0 = int64_t{p.tiles_q.split(block)} * (tile.strips * kStrip);
  const int64_t p0 = int64_t{p.tiles_p.split(block)} * tile.rows;
  const int64_t n0 = int64_t{block} * tile.images;
  const int image_count = clamp_count(g.N - n0, tile.images);
  const int channel_count = clamp_count(g.K - k0, tile.channels);

  // Shared memory: the offset in `in` of every position of a channel's tile, the offset of every
  // weight of an output channel and its row in the tile, then the stages.
  const int positions = p.positions;
  const int taps = p.tap_rows * p.tap_columns;
  const int weights = tile.chunk * taps;
  auto* const table = reinterpret_cast<int64_t*>(shared);
  int64_t* const weight_table = table + positions;
  int* const weight_rows = reinterpret_cast<int*>(weight_table + weights);
  auto* const stages = reinterpret_cast<float*>(shared) + p.table_floats;
  const int input_floats = p.input_floats;
  const int stage_floats = p.stage_floats;

  // The thread's strip.
  const int warp_k = warp % p.warps_k;
  int32_t place = warp / p.warps_k * 32 + lane;
  int strip, row, image, group;
  if (tile.groups_first) {
    group = p.groups.split(place);
    strip = p.strips.split(place);
    row = p.rows.split(place);
    image = place;
  } else {
    strip = p.strips.split(place);
    row = p.rows.split(place);
    image = p.images.split(place);
    group = place;
  }
  const bool idle = image >= tile.images || group >= tile.groups;
  if (idle) strip = row = image = group = 0;
  const int in_start = group * tile.chunk * tile.plane +
                       (image * tile.in_rows + row * p.row_step) * tile.pitch +
                       strip * kStrip * p.column_step;
  const int weight_start = group * tile.channels + warp_k * kChannels;

  const auto build_table = [&](int tap) {
    const int r = p.taps_s.quotient(tap);
    const int s = tap - r * static_cast<int>(g.S);
    const int64_t h_step = tile.gathered ? g.stride_h : 1;
    const int64_t w_step = tile.gathered ? g.stride_w : 1;
    const int64_t h0 = p0 * g.stride_h - g.pad_h + r * g.dilation_h;
    const int64_t w0 = q0 * g.stride_w - g.pad_w + s * g.dilation_w;
    const Range rows = existing(h0, h_step, g.H, tile.in_rows);
    const Range columns = existing(w0, w_step, g.W, tile.in_columns);
    const int64_t first = n0 * g.in.n + h0 * g.in.h + w0 * g.in.w;
    // A warp a row.
    for (int i = warp; i < tile.images * tile.in_rows; i += threads / 32) {
      int32_t n = i;
      const int y = p.in_rows.split(n);
      const bool row_exists = static_cast<unsigned>(y - rows.begin) < rows.count && n < image_count;
      const int64_t row_first = first + n * g.in.n + y * (h_step * g.in.h);
      for (int x = lane; x < tile.pitch; x += 32) {
        const bool exists = row_exists && static_cast<unsigned>(x - columns.begin) < columns.count;
        table[i * tile.pitch + x] = exists ? row_first + x * (w_step * g.in.w) : -1;
      }
    }
  };

  const auto build_weight_table = [&] {
    for (int i = thread; i < weights; i += threads) {
      int32_t outer = i;
      const int inner = p.weight_channels_first ? p.chunk.split(outer) : p.taps.split(outer);
      const int c = p.weight_channels_first ? inner : outer;
      const int t = p.weight_channels_first ? outer : inner;
      const int r = p.taps_s.quotient(t);
      const int s = t - r * static_cast<int>(g.S);
      weight_table[i] = c * g.weight.c + r * g.weight.r + s * g.weight.s;
      weight_rows[i] = c * taps + t;
    }
  };

  const auto groups_at = [&](int group0) { return clamp_count(g.groups - group0, tile.groups); };

  // Starts the copies of a step: all taps, or one of them, for a chunk of input channels.
  const auto fetch = [&](int group0, int tap, int c0, int chunk, float* to) {
    const int group_count = groups_at(group0);
    const int planes = group_count * chunk;
    const T* in = p.in + (int64_t{group0} * g.C + c0) * g.in.c;
    if (p.in_lanes_log2 == 0 && tile.groups * tile.chunk > 1) {
      for (int i = thread; i < positions; i += threads) {
        const int64_t offset = table[i];
        copy_line(to + i, tile.plane, in + offset, g.in.c, planes, offset >= 0);
      }
    } else {
      const int lanes = 1 << p.in_lanes_log2;
      const int first = thread >> p.in_lanes_log2;
      for (int c = thread & (lanes - 1); c < planes; c += lanes) {
        copy_listed(to + c * tile.plane + first, in + c * g.in.c, table + first,
                    threads >> p.in_lanes_log2, positions - first);
      }
    }

    const int r = p.taps_s.quotient(tap);
    const int s = tap - r * static_cast<int>(g.S);
    const T* weight = p.weight + group0 * g.weight.g + k0 * g.weight.k + c0 * g.weight.c +
                      r * g.weight.r + s * g.weight.s;
    const int first = thread >> p.weight_lanes_log2;
    const int step = threads >> p.weight_lanes_log2;
    for (int i = thread & ((1 << p.weight_lanes_log2) - 1); i < weights;
         i += 1 << p.weight_lanes_log2) {
      const int row = weight_rows[i];
      if (row >= chunk * taps) continue;
      const T* from = weight + weight_table[i];
      float* row_to = to + input_floats + row * tile.weight_pitch;
      if (tile.groups == 1) {
        copy_line(row_to + first, step, from + first * g.weight.k, step * g.weight.k,
                  (channel_count - first + step - 1) >> p.weight_step_log2, true);
      } else {
        for (int k = first; k < group_count * tile.channels; k += step) {
          int32_t group_of = k;
          const int channel = p.channels.split(group_of);
          if (channel >= channel_count) continue;
          copy(row_to + k, from + group_of * g.weight.g + channel * g.weight.k);
        }
      }
    }
  };

  float* const slab = stages + tile.stages * stage_floats + warp * (32 * kStrip);
  const auto finish = [&](int group0, float (&sum)[kChannels][kStrip]) {
    const bool exists = !idle && group < groups_at(group0) && image < image_count;
    const int64_t channel = int64_t{group0 + group} * g.K + k0 + warp_k * kChannels;
    StripOut to;
    to.offset = (n0 + image) * g.out.n + channel * g.out.k + (p0 + row) * g.out.p +
                (q0 + strip * kStrip) * g.out.q;
    to.pixels = exists && p0 + row < g.P ? clamp_count(g.Q - q0 - strip * kStrip, kStrip) : 0;
    to.channels = clamp_count(channel_count - warp_k * kChannels, kChannels);
    if (p.bias != nullptr) {
#pragma unroll
      for (int k = 0; k < kChannels; ++k) {
        const float bias = exists && k < to.channels ? widen(p.bias[channel + k]) : 0.0f;
#pragma unroll
        for (int j = 0; j < kStrip; ++j) sum[k][j] += bias;
      }
    }
    if (sizeof(T) == 2 && p.vector_store) {
      store_vectors(p, sum, to);
    } else if (!p.out_channels_last) {
      store_rows<kChannels, false>(p, sum, to, slab);
    } else if constexpr (kChannels == 1) {
      store_channels(p, sum, to);
    } else {
      store_rows<kChannels, true>(p, sum, to, slab);
    }
  };

  float total[kChannels][kStrip] = {};
  const bool in_rounds = has_rounds(kChannels) && tile.rounds > 1;
  int steps = static_cast<int>(tile.steps);
  if (in_rounds) {
    const int groups = clamp_count(g.groups - g0, tile.groups * tile.rounds);
    steps = p.groups.quotient(groups + tile.groups - 1);
  }
  build_table(0);
  build_weight_table();
  int tap = 0;
  int c0 = 0;
  int fetched = 0;  // channels
  // One step is fetched while the step before it is computed.
  for (int step = 0; step <= steps; ++step) {
    // Copies have arrived; nobody reads the tables or the stage of two steps ago any more.
    await_copies();
    __syncthreads();
    const int chunk = fetched;
    if (step < steps) {
      if (step > 0 && !in_rounds) {
        c0 += tile.chunk;
        if (c0 >= g.C) {
          c0 = 0;
          build_table(++tap);
          __syncthreads();
        }
      }
      fetched = clamp_count(g.C - c0, tile.chunk);
      fetch(in_rounds ? g0 + step * tile.groups : g0, tap, c0, fetched,
            stages + step % 2 * stage_floats);
    }
    if (step == 0) continue;
    const float* in = stages + (step - 1) % 2 * stage_floats + in_start;
    const float* weight = stages + (step - 1) % 2 * stage_floats + input_floats + weight_start;
    float sum[kChannels][kStrip] = {};
    int terms = 0;
    for (int c = 0; c < chunk; ++c, in += tile.plane) {
      const float* in_row = in;
      for (int r = 0; r < p.tap_rows; ++r, in_row += p.tap_row_step) {
        if (terms >= p.part_terms) {
          move_sum(sum, total);
          terms = 0;
        }
        add_row<kChannels, kTaps>(p, sum, in_row, weight);
        terms += p.tap_columns;
      }
    }
    move_sum(sum, total);
    if (in_rounds) {
      finish(g0 + (step - 1) * tile.groups, total);
#pragma unroll
      for (int k = 0; k < kChannels; ++k) {
#pragma unroll
        for (int j = 0; j < kStrip; ++j) total[k][j] = 0;
      }
    }
  }
  if (!in_rounds) finish(g0, total);
}

template <typename T>
using KernelOf = void (*)(Params<T>);

template <typename T, size_t... kIndex>
KernelOf<T> kernel_at(int index, std::index_sequence<kIndex...>) {
  static constexpr KernelOf<T> kTable[] = {
      convolve<T, kKernels[kIndex].channels, kKernels[kIndex].taps>...};
  return kTable[index];
}

// The power of two at or above n, but not above 2^most.
inline int log2_above(int64_t n, int most) {
  int log2 = 0;
  while (log2 < most && (int64_t{1} << log2) < n) ++log2;
  return log2;
}

// With n terms the errors of the parts and of their total balance at parts of sqrt(n). Fewer than
// 16 would cost more than they gain.
inline int part_terms(const Geometry& g) {
  const double terms = static_cast<double>(g.C) * static_cast<double>(g.R * g.S);
  return static_cast<int>(std::clamp(std::sqrt(terms), 16.0, 256.0));
}

// Strips start at multiples of eight pixels: whether all of them are 16-byte aligned.
template <typename T>
bool stores_vectors(const Geometry& g, const T* out) {
  const auto aligned = [](int64_t size, int64_t stride) { return size == 1 || stride % 8 == 0; };
  return sizeof(T) == 2 && g.Q > 1 && g.out.q == 1 && aligned(g.N, g.out.n) &&
         aligned(g.K * g.groups, g.out.k) && aligned(g.P, g.out.p) &&
         reinterpret_cast<uintptr_t>(out) % 16 == 0;
}

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  const auto way = plan.payload.as<TiledPlan>();
  const bool forward = problem.pass == Pass::kFprop;
  Params<T> p{};
  p.g = forward_geometry(problem);
  p.tile = make_tile(p.g, way);
  const LaunchShape shape = shape_of(p.tile, way);
  const Geometry& g = p.g;
  const Tile& tile = p.tile;
  p.in = static_cast<const T*>(forward ? operands.x : operands.y);
  p.weight = static_cast<const T*>(operands.w) + g.weight_offset;
  p.bias = static_cast<const T*>(operands.epilogue.bias);
  p.out = static_cast<T*>(forward ? operands.y : operands.x);

  constexpr int kWarpLog2 = 5;
  p.warps_k = way.warps[0];
  p.in_lanes_log2 = g.in_channels_last() ? log2_above(tile.step_planes(), kWarpLog2) : 0;
  p.weight_lanes_log2 = log2_above(int64_t{tile.chunk} * tile.step_taps(g), kWarpLog2);
  p.weight_step_log2 = log2_above(shape.threads, 10) - p.weight_lanes_log2;
  p.weight_channels_first = std::abs(g.weight.c) < std::abs(g.S > 1 ? g.weight.s : g.weight.r);
  p.out_channels_last = g.out_channels_last();
  p.vector_store = stores_vectors(g, p.out);
  p.row_step = tile.gathered ? 1 : static_cast<int>(g.stride_h);
  p.column_step = tile.gathered ? 1 : static_cast<int>(g.stride_w);
  p.tap_rows = tile.gathered ? 1 : static_cast<int>(g.R);
  p.tap_columns = tile.gathered ? 1 : static_cast<int>(g.S);
  p.tap_row_step = tile.gathered ? 0 : static_cast<int>(g.dilation_h) * tile.pitch;
  p.part_terms = part_terms(g);
  p.positions = tile.positions();
  p.table_floats = static_cast<int>(tile.table_bytes(g) / 4);
  p.input_floats = tile.input_floats();
  p.stage_floats = tile.input_floats() + tile.weight_floats(g);

  using D = Divider<int32_t>;
  p.tiles_k = D(tile.tiles_k);
  p.tiles_g = D(tile.tiles_g);
  p.tiles_q = D(tile.tiles_q);
  p.tiles_p = D(tile.tiles_p);
  p.groups = D(tile.groups);
  p.images = D(tile.images);
  p.rows = D(tile.rows);
  p.strips = D(tile.strips);
  p.in_rows = D(tile.in_rows);
  p.taps = D(tile.step_taps(g));
  p.taps_s = D(g.S);
  p.chunk = D(tile.chunk);
  p.channels = D(tile.channels);

  const KernelOf<T> kernel = kernel_at<T>(way.kernel, std::make_index_sequence<kKernelCount>());
  start("tiled", {shape.blocks, shape.threads, shape.shared_bytes, context.stream}, kernel, p);
}

}  // namespace customconv::tiled
