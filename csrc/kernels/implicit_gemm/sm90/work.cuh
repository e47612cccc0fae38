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
  ptx::Barrier* slot_full;      // of each warp that transposes planes
  char *staging, *weights, *pixels, *dumps, *slots;
  Term* terms;  // where dumps are of planes

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
        slots(dumps + (p.plane_boxes > 0 ? kDumpsBytes : 0)),
        terms(reinterpret_cast<Term*>(dumps)) {}
};

// A tile, and the steps of its sum that a block computes: chunks of channels, and if the loader is
// im2col the taps of each. [first, last) are not all of them where blocks of a cluster split the
// sum, or any blocks share the tile's steps (stream_k.cuh).
struct Work {
  int position;   // the tile's first
  int lead;       // of a stage, positions in front of the first that a tap meets
  int k, last_k;  // the tile's first channel, and the end of its group's
  int c;          // the group's first input channel
  int phase;
  int taps;
  int first_row;  // of taps, of volumes
  int first, last;

  __device__ Work(const Params& p, int item, const TileShape& shape, Loader loader) {
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
    first_row = 0;
    if (loader == Loader::kIm2col && p.depth.leaves_out) leave_out(p, shape);
    first = 0;
    last = taps == 0 ? 0 : p.chunks * (is_one_tap(loader) ? taps : 1);
  }
  // Leaves out slices of taps that meet no slice of the input from any of the tile's positions,
  // unless these are of several images.
  __device__ void leave_out(const Params& p, const TileShape& shape) {
    const Depth& depth = p.depth;
    int32_t n = position, last_n = min(position + shape.pixels, p.N * p.image) - 1;
    p.by_pitch.split(n);
    p.by_pitch.split(last_n);
    int32_t o = p.by_period.split(n), last_o = p.by_period.split(last_n);
    if (n != last_n) return;
    depth.by_rows.split(o);
    depth.by_rows.split(last_o);
    // Slice t of the taps meets slice o * stride - pad + t * dilation.
    const int before = depth.pad - last_o * depth.stride;
    const int behind = depth.slices - 1 + depth.pad - o * depth.stride;
    const int first_t = before <= 0 ? 0 : (before + depth.dilation - 1) / depth.dilation;
    const int end_t = behind < 0 ? 0 : min(depth.taps, behind / depth.dilation + 1);
    first_row = first_t * depth.filter_rows;
    taps = max(end_t - first_t, 0) * (taps / depth.taps);
  }
  // Computes only the part of a block of a cluster.
  __device__ void split(int rank, int splits) {
    const int steps = last;
    first = steps * rank / splits;
    last = steps * (rank + 1) / splits;
  }
};

// The first step of a block, of those of all tiles whose steps blocks share.
__device__ inline int first_shared_step(const Params& p, int block) {
  return block * p.block_steps + min(block, p.longer_blocks);
}

// Which tiles a thread block computes, one after the other. With `kStreamK` the block's part of the
// steps of shared tiles comes first, from its end on: so it begins with the head of a tile, or with
// its middle, and the tail of an earlier tile comes later, whose head the block in front has
// computed first.
template <bool kStreamK>
class TileScheduler {
 public:
  __device__ TileScheduler(const Params& p, int first) : item_(first) {
    if constexpr (kStreamK) {
      item_ = part_begin(p) - first_shared_step(p, blockIdx.x + 1);
      if (item_ == 0) start_own(p);
    }
  }
  __device__ bool is_valid(const Params& p) const { return item_ < p.items; }
  __device__ Work current(const Params& p, const TileShape& shape, Loader loader) const {
    if (kStreamK && item_ < 0) {
      int32_t tile;
      int first, last;
      find_shared(p, tile, first, last);
      Work work(p, tile, shape, loader);
      work.first = first;
      work.last = last;
      return work;
    }
    return Work(p, item_, shape, loader);
  }
  __device__ void advance(const Params& p) {
    if (kStreamK && item_ < 0) {
      int32_t tile;
      int first, last;
      find_shared(p, tile, first, last);
      item_ += last - first;
      if (item_ == 0) start_own(p);
    } else {
      item_ += static_cast<int>(gridDim.x);
    }
  }

 private:
  // Goes on to the tiles that are not shared.
  __device__ void start_own(const Params& p) {
    item_ = p.shared_tiles + static_cast<int>(blockIdx.x);
  }
  static __device__ int part_begin(const Params& p) { return first_shared_step(p, blockIdx.x); }
  // A shared tile, and its steps [first, last) that are the last ones left of the block's part.
  __device__ void find_shared(const Params& p, int32_t& tile, int& first, int& last) const {
    tile = part_begin(p) - item_ - 1;
    last = p.by_steps.split(tile) + 1;
    first = max(last + item_, 0);
  }

  int item_;  // if it is negative, how many steps of the block's part are left
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
