// The weight gradient: a block goes through its share of the tiles of some channels with sums in
// its warps' registers, and leaves its part; a second kernel adds the parts up.
#pragma once

#include "kernels/common/parts.cuh"
#include "kernels/depthwise/bands/convolve.cuh"

namespace customconv::depthwise::bands {

template <typename T>
struct GradientParams {
  Image<const T> x, dy;
  Box x_box, dy_box;
  Tiling tiling;
  int pad_h, pad_w, shift;
  int R, S, sections;
  Divider<int32_t> by_R, by_S;
  Divider<int32_t> tap_rows, by_sections;  // warps' parts of the filter
  int units, slices, items;
  int tiles, splits;  // of a channel
  int C;
  int before, zeros, buffer;  // bytes of what is before tiles, of a row of zeros, of a tile
  float* partial;
};

// Adds an item: sums of rows of taps, the first of which meets row `x` first. Rows of x that they
// meet are in registers; a row of the pieces further on, the next takes the place of one.
template <typename T, int kPairs, int kTaps>
__device__ inline void add_item(RowWalk x, uint32_t dy, int dy_pitch, const uint32_t (&exist)[2],
                                int height, float (&sum)[kTaps][kPairs][4]) {
  uint32_t rows[kTaps][kPairs][4];
  const auto load_next = [&](uint32_t (&row)[kPairs][4]) {
    const uint32_t from = x.next();
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      ptx::load_transposed_matrices(from + pair * 2 * kBlockBytes, row[pair]);
    }
  };
#pragma unroll
  for (int i = 0; i + 1 < kTaps; ++i) load_next(rows[i]);
  for (int t = 0;;) {
#pragma unroll
    for (int first = 0; first < kTaps; ++first) {
      load_next(rows[(first + kTaps - 1) % kTaps]);
      uint32_t gradient[2];
      ptx::load_transposed_matrices(dy, gradient);
      dy += dy_pitch;
#pragma unroll
      for (int i = 0; i < 2; ++i) gradient[i] &= exist[i];
#pragma unroll
      for (int i = 0; i < kTaps; ++i) {
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          ptx::multiply_add<T>(sum[i][pair], rows[(first + i) % kTaps][pair], gradient[0],
                               gradient[1]);
        }
      }
      if (++t == height) return;
    }
  }
}

template <int kTaps, int kPairs>
__device__ inline void clear(float (&sum)[kTaps][kPairs][4]) {
#pragma unroll
  for (auto& row : sum) {
#pragma unroll
    for (auto& pair : row) {
#pragma unroll
      for (float& value : pair) value = 0;
    }
  }
}

// What a warp sums: some rows of taps by a section of columns, of a channel.
struct Unit {
  int channel, r, section;
};

// Adds what a warp has summed to its totals, row of taps by row, by way of its scratch.
template <typename T, int kPairs, int kTaps>
__device__ inline void add_to_totals(const GradientParams<T>& p, const Unit& unit,
                                     const float (&sum)[kTaps][kPairs][4], float* scratch,
                                     float* totals) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = unit.section * section_taps(kPairs);
  const int end = unit.section + 1 < p.sections ? first + section_taps(kPairs) : p.S + p.shift;
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    if (unit.r + i >= p.R) break;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      float* to = scratch + (pair * 2 * kPieceColumns + lane / 4) * kScratchPitch + lane % 4 * 2;
      float* far = to + kPieceColumns * kScratchPitch;
      to[0] = sum[i][pair][0];
      to[1] = sum[i][pair][1];
      far[0] = sum[i][pair][2];
      far[1] = sum[i][pair][3];
    }
    __syncwarp();
    for (int s = max(first, p.shift) + lane; s < end; s += 32) {
      float total = 0;
#pragma unroll
      for (int j = 0; j < kPieceColumns; ++j) {
        total += scratch[(s - first + j) * kScratchPitch + j];
      }
      totals[(unit.r + i) * p.S + s - p.shift] += total;
    }
    __syncwarp();
  }
}

constexpr int kMostSteps = 512;

template <typename T, int kPairs, int kTaps, Source kSource, int kChannels>
__global__ void __launch_bounds__(kMostWarps * 32, gradients_shared_by(kPairs, kChannels))
    sum_weights(const __grid_constant__ GradientParams<T> p) {
  extern __shared__ __align__(16) char shared[];
  const Tiling& tiling = p.tiling;
  const int images = tiling.images.divisor(), taps = p.R * p.S;
  constexpr bool kAhead = kSource == Source::kPlanes;  // threads need not wait for what they copy
  constexpr int kScratch = 2 * kPieceColumns * kPairs * kScratchPitch;
  auto* scratch = reinterpret_cast<float*>(shared);
  float* totals = scratch + kMostWarps * kScratch;
  char* buffers = shared + p.before;
  const uint32_t zeros = ptx::shared_address(buffers - p.zeros);
  for (int i = threadIdx.x; i < p.zeros / 4; i += blockDim.x) {
    reinterpret_cast<uint32_t*>(buffers - p.zeros)[i] = 0;
  }
  for (int i = threadIdx.x; i < p.slices * kChannels * taps; i += blockDim.x) totals[i] = 0;

  int32_t split = static_cast<int>(blockIdx.x);
  const int first_channel = tiling.channels.split(split) * kChannels;
  const int each = (p.tiles + p.splits - 1) / p.splits;
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  scratch += warp * kScratch;
  const int slice = warp / p.units;
  const auto unit_of = [&](int32_t number) {
    Unit unit;
    unit.section = p.by_sections.split(number);
    unit.r = p.tap_rows.split(number) * kTaps;
    unit.channel = number;
    return unit;
  };
  const auto totals_of = [&](const Unit& unit) {
    return totals + (slice * kChannels + unit.channel) * taps;
  };
  // A warp that has one unit keeps its sums; tensor cores cut off what they add, so not for long.
  const bool keeps = p.units <= warps;
  const int first_unit = keeps ? warp % p.units : warp;
  const bool works = !keeps || slice < p.slices;
  const int tile_steps = (p.items + p.slices - 1) / p.slices * tiling.height;
  int steps = 0;
  float sum[kTaps][kPairs][4] = {};
  const int begin = split * each, end = min(begin + each, p.tiles);
  const int gradients = kChannels * images * p.x_box.plane;  // behind x
  const auto bring_tile = [&](int tile, char* to) {
    Place place = place_of(tiling, tile);
    place.c = first_channel;
    bring<kSource, kChannels>(p.dy, p.dy_box, tiling.images, place, to + gradients);
    place.h = max(place.h - p.pad_h, 0);
    place.w -= p.pad_w + p.shift;
    bring<kSource, kChannels>(p.x, p.x_box, tiling.images, place, to);
  };
  if constexpr (kAhead) {
    bring_tile(begin, buffers);
    ptx::commit_copies();
  }
  for (int tile = begin; tile < end; ++tile) {
    char* buffer = buffers + (kAhead ? (tile - begin) % 2 * p.buffer : 0);
    __syncthreads();
    if constexpr (kAhead) {
      if (tile + 1 < end) bring_tile(tile + 1, buffers + (tile + 1 - begin) % 2 * p.buffer);
      ptx::commit_copies();
      ptx::await_groups<1>();
    } else {
      bring_tile(tile, buffer);
    }
    __syncthreads();
    if (!works) continue;
    const int above = max(p.pad_h - place_of(tiling, tile).h, 0);  // rows that do not exist
    for (int number = first_unit; number < p.units; number += warps) {
      const Unit unit = unit_of(number);
      const uint32_t x = ptx::shared_address(buffer + unit.channel * images * p.x_box.plane);
      const uint32_t dy =
          ptx::shared_address(buffer + gradients + unit.channel * images * p.dy_box.plane);
      for (int item = slice; item < p.items; item += p.slices) {
        const int first = item * kItemPieces;
        Piece of_x = piece_of(tiling, first + lane % 8 + lane / 16 * 8);
        of_x.h += unit.r - above;
        const int columns = unit.section * section_taps(kPairs) * 2 + lane / 8 % 2 * kBlockBytes;
        const RowWalk walk{x + of_x.in(p.x_box) + columns, zeros + of_x.w * 2 + columns,
                           p.x_box.pitch, of_x.h, p.x_box.rows.divisor()};
        const Piece of_dy = piece_of(tiling, first + lane % 16);
        uint32_t exist[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int left = tiling.pieces - first - i * 8 - lane % 4 * 2;
          exist[i] = left > 1 ? ~0u : left == 1 ? 0xffffu : 0u;
        }
        add_item<T>(walk, dy + of_dy.in(p.dy_box), p.dy_box.pitch, exist, tiling.height, sum);
      }
      steps += tile_steps;
      if (!keeps || steps >= kMostSteps) {
        add_to_totals(p, unit, sum, scratch, totals_of(unit));
        clear(sum);
        steps = 0;
      }
    }
  }
  __syncthreads();
  if (keeps && works) {
    const Unit unit = unit_of(first_unit);
    add_to_totals(p, unit, sum, scratch, totals_of(unit));
  }
  __syncthreads();
  ptx::launch_dependent_grids();
  const int count = min(kChannels, p.C - first_channel) * taps;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    p.partial[(int64_t{split} * p.C + first_channel) * taps + i] =
        sum_of(p.slices, [&](int n) { return totals[n * kChannels * taps + i]; });
  }
}

// A warp's sum of a tap's products where both pixels exist, for all its lanes.
template <typename T>
__device__ inline float sum_pixels(const GradientParams<T>& p, int c, int r, int s) {
  const int h = r - p.pad_h, w = s - p.pad_w;
  float sum = 0;
  for (int n = 0; n < p.dy.N; ++n) {
    for (int row = max(-h, 0); row < min(p.dy.H, p.x.H - h); ++row) {
      float of_row = 0;
      const int lane = static_cast<int>(threadIdx.x) % 32;
      for (int column = max(-w, 0) + lane; column < min(p.dy.W, p.x.W - w); column += 32) {
        of_row = fmaf(widen(*p.dy.at(n, c, row, column)), widen(*p.x.at(n, c, row + h, column + w)),
                      of_row);
      }
      sum += of_row;
    }
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
  return sum;
}

// Adds up the parts. Where the sum is not finite it may be of pixels that do not exist, times those
// that are not finite: then sums again.
template <typename T>
__global__ void __launch_bounds__(kPartThreads)
    add_gradients(const __grid_constant__ GradientParams<T> p, Filters<T> weight) {
  ptx::wait_on_dependent_grids();
  const int64_t count = int64_t{p.C} * p.R * p.S;
  const int64_t i = int64_t{blockIdx.x} * kPartThreads + threadIdx.x;
  float total = 0;
  if (i < count) total = sum_of(p.splits, [&](int n) { return p.partial[n * count + i]; });
  auto rest = static_cast<int32_t>(min(i, count - 1));
  const int s = p.by_S.split(rest), r = p.by_R.split(rest), c = rest;
  for (unsigned wrong = __ballot_sync(~0u, !is_finite(total)); wrong != 0; wrong &= wrong - 1) {
    const int lane = __ffs(static_cast<int>(wrong)) - 1;
    const float again = sum_pixels(p, __shfl_sync(~0u, c, lane), __shfl_sync(~0u, r, lane),
                                   __shfl_sync(~0u, s, lane));
    if (static_cast<int>(threadIdx.x) % 32 == lane) total = again;
  }
  if (i < count) *weight.at(c, r, s) = narrow<T>(total);
}

}  // namespace customconv::depthwise::bands
