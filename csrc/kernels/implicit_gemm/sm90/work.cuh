// A thread block's shared memory, and what it computes one after the other.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/params.h"
#include "kernels/ptx/barrier.cuh"

namespace customconv::implicit_gemm::sm90 {

struct Memory {
  // Stages of pixels, with the weights of the same tap if the loader is im2col; stages of weights.
  ptx::Barrier *x_full, *x_empty, *w_full, *w_empty;
  ptx::Barrier* float_full;     // stages of pixels that warps halve
  ptx::Barrier* residual_full;  // of each warpgroup
  ptx::Barrier* slot_full;      // of each warp that turns planes
  char *staging, *weights, *pixels, *dumps, *slots;

  __device__ Memory(const Params& p, char* memory, int staging_bytes)
      : x_full(reinterpret_cast<ptx::Barrier*>(memory)),
        x_empty(x_full + kMostStages),
        w_full(x_empty + kMostStages),
        w_empty(w_full + kMostStages),
        float_full(w_empty + kMostStages),
        residual_full(float_full + kMostStages),
        slot_full(residual_full + kMostMultipliers),
        staging(memory + kBarrierBytes),
        weights(staging + staging_bytes),
        pixels(weights + p.w_stages * p.w_bytes),
        dumps(pixels + p.x_stages * p.x_bytes),
        slots(dumps + (p.plane_boxes > 0 ? kDumpsBytes : 0)) {}
};

// A tile, and the steps of its sum that a block computes. A step is a tap of a chunk of channels.
struct Work {
  int position;   // the tile's first
  int lead;       // of a stage, positions in front of the first that a tap meets
  int k, last_k;  // the tile's first channel, and the end of its group's
  int c;          // the group's first input channel
  int phase;
  int taps;
  int steps;          // that the block computes,
  int chunk, chunks;  // the chunk of the first one, and how many they are of
  int tap;            // the first one's, of its chunk
  // How many steps other blocks compute in front of these; -1 if others follow.
  int missing;

  __device__ Work(const Params& p, int item, const TileShape& shape) {
    int32_t m = item;
    const int tile_k = p.by_tiles_k.split(m);
    phase = 0;
    if (p.phases > 1) {
      phase = m;
      m = p.by_tiles_m.split(phase);
    }
    position = m * shape.pixels;
    lead = 0;
    if (p.copies_strips) {
      int32_t row = position;
      lead = p.by_pitch.split(row);
    }
    int32_t group = tile_k;
    const int own = p.by_group_tiles.split(group);
    k = group * p.group_K + own * shape.channels;
    last_k = (group + 1) * p.group_K;
    c = group * p.group_C;
    taps = p.phase[phase].R * p.phase[phase].S;
    steps = p.chunks * taps;
    chunk = tap = missing = 0;
    chunks = taps == 0 ? 0 : p.chunks;
  }
  // Computes only some steps.
  __device__ void take(const Params& p, int first, int last) {
    missing = last == steps ? first : -1;
    steps = last - first;
    int32_t first_chunk = first, last_chunk = last - 1;
    tap = p.by_taps[phase].split(first_chunk);
    p.by_taps[phase].split(last_chunk);
    chunk = first_chunk;
    chunks = first < last ? last_chunk - first_chunk + 1 : 0;
  }
  // The first tap's row and column in the filter.
  __device__ void first_tap(int columns, int& r, int& s) const {
    r = 0;
    for (s = tap; s >= columns; s -= columns) ++r;
  }
  // Stages of pixels.
  template <Loader kLoader>
  __device__ int stages() const {
    return kLoader == Loader::kIm2col ? steps : chunks;
  }
};

// The first step of a block, of those of all tiles whose steps blocks share.
__device__ inline int first_shared_step(const Params& p, int block) {
  return block * p.block_steps + min(block, p.longer_blocks);
}

// Which tiles a thread block computes, one after the other: the last of its parts of shared tiles
// first, and then its own ones. So it begins with the head of a tile, or with its middle, and the
// tail of an earlier tile comes later, whose head the block in front has computed first.
class TileScheduler {
 public:
  __device__ explicit TileScheduler(const Params& p) : next_(static_cast<int>(blockIdx.x)) {
    if (p.shared_tiles == 0) return;
    next_ = first_shared_step(p, blockIdx.x) - first_shared_step(p, blockIdx.x + 1);
  }
  __device__ bool has_next(const Params& p) const { return next_ < p.items; }
  __device__ Work next(const Params& p, const TileShape& shape) {
    int32_t tile = next_;
    int first = -1, last = 0;
    if (__builtin_expect(next_ < 0, false)) {
      tile = first_shared_step(p, blockIdx.x) - next_ - 1;
      last = p.by_steps.split(tile) + 1;
      first = max(last + next_, 0);
      next_ += last - first;
      if (next_ == 0) next_ = p.shared_tiles + static_cast<int>(blockIdx.x);
    } else {
      next_ += static_cast<int>(gridDim.x);
    }
    Work work(p, tile, shape);
    if (__builtin_expect(first >= 0, false)) work.take(p, first, last);
    return work;
  }

 private:
  int next_;  // the block's own tile, or if it is negative how many steps of its part are left
};

// The first channel of a chunk's pixels, as memory has them.
__device__ inline int pixel_channel(const Params& p, const Work& work, int chunk) {
  return (work.c + chunk * p.row_channels) >> (p.halves_pixels ? 1 : 0);
}

// Where a position is in the grid: in an image, or in one of its strips.
struct Place {
  int n, row, column;
  int first_column;  // of the strip

  __device__ Place(const Params& p, int position) {
    int32_t rest = position;
    column = p.by_pitch.split(rest);
    row = p.by_period.split(rest);
    first_column = p.by_strips.split(rest) * p.strip_columns;
    n = rest;
  }
  // From the output's first element to the pixel's channel 0; -1 if there is no such pixel.
  __device__ int64_t offset(const Params& p, const Phase& phase) const {
    const int q = first_column + column;
    if (n >= p.N || row >= phase.P || q >= phase.Q || column >= p.strip_columns) return -1;
    return phase.offset + n * p.out_n + row * p.out_p + q * p.out_q;
  }
};

}  // namespace customconv::implicit_gemm::sm90
