// What the main loop's warps do until a tile's sums are there: loaders and products.
#pragma once

#include <cstdint>

#include "kernels/common/divide.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "program.cuh"

namespace customconv::micro {

constexpr int kRowBytes = 128;  // of a position
template <typename T>
constexpr int kRowChannels = kRowBytes / static_cast<int>(sizeof(T));
constexpr int kSlabBytes = 64 * kRowBytes;
constexpr int kMostStages = 12;
constexpr uint16_t kBoth = 3;      // blocks of a cluster that shares operands
constexpr int kStartBarrier = 15;  // the named barrier behind which mbarriers are ready

struct Params {
  CUtensorMap x, w, y;
  int items, share_x, share_w;  // tiles of a cluster; blocks that share pixels, and weights
  int splits;                   // or blocks that share a tile's sums
  int x_stages, w_stages, x_bytes;
  int chunks, groups, S;      // stages of a tile: 64 channels, times a tap each if dense
  int copies, copy_rows;      // of a block, into a stage of pixels
  int halo, image;            // positions before a tile that its stage begins; of an image
  int stride, pad, dilation;  // dense: from positions and taps to pixels
  int taps_h, taps_w;         // of a stage
  int step_h, step_w;         // bytes of a stage from one tap to the next
  int N, P, Q, K;
  bool boxes;  // pixels are a matrix: a single tap without padding or stride
  bool early;  // a kernel that packs the input may still run
  Divider<int32_t> by_tiles_k, by_pitch, by_period;
  void* out;
  const char *pixels, *filters;  // to be prefetched
  int prefetched;                // stages of a block's first tile; dense grid
  int H, W, pixel_bytes, filter_bytes, tap_bytes;
  long long* stamps;  // clocks at which block 0 is done with parts of its first tile, or null
};

// A block's shared memory.
struct Memory {
  ptx::Barrier *x_full, *x_empty, *w_full, *w_empty;
  char *staging, *weights, *input;
  __device__ Memory(const Params& p, char* memory, int staging_bytes, int weight_bytes)
      : x_full(reinterpret_cast<ptx::Barrier*>(memory)),
        x_empty(x_full + kMostStages),
        w_full(x_empty + kMostStages),
        w_empty(w_full + kMostStages),
        staging(memory + 1024),
        weights(staging + staging_bytes),
        input(weights + p.w_stages * weight_bytes) {}
};

struct Tile {
  int position, k;  // its first
  __device__ Tile(const Params& p, int item, int rank, int kM, int kN) {
    int32_t m = item;
    const int own_k = p.by_tiles_k.split(m);
    k = (p.share_x > 1 ? own_k * 2 + rank : own_k) * kN;
    position = (p.share_w > 1 ? m * 2 + rank : m) * kM;
  }
};

// Where a position is in the grid.
struct Place {
  int n, row, column;
  __device__ Place(const Params& p, int position) {
    int32_t rest = position;
    column = p.by_pitch.split(rest);
    row = p.by_period.split(rest);
    n = rest;
  }
  // Its number among the output's pixels, or -1.
  __device__ int pixel(const Params& p) const {
    return n < p.N && row < p.P && column < p.Q ? (n * p.P + row) * p.Q + column : -1;
  }
};

// The stages of a tile that a block multiplies.
struct Range {
  int first, last;
  __device__ Range(const Params& p, int rank) {
    const int all = p.chunks * p.groups;
    first = p.splits > 1 ? all * rank / p.splits : 0;
    last = p.splits > 1 ? all * (rank + 1) / p.splits : all;
  }
};

// Waits until all stages are read, so that no block of the cluster arrives at one that has ended.
__device__ inline void await_readers(ptx::Barrier* empty, int stages, ptx::Turn turn) {
  for (int i = 0; i < stages; ++i) {
    ptx::wait(empty + turn.stage, turn.parity ^ 1);
    turn.advance(stages);
  }
}

// The weights of a tap into a stage, by one thread; blocks that share them copy a half each.
template <typename T, int kN>
__device__ inline void copy_weights(const Params& p, const Memory& memory, int stage,
                                    ptx::Barrier* full, int k, int rank, int chunk, int tap) {
  char* to = memory.weights + stage * kN * kRowBytes;
  const int c = chunk * kRowChannels<T>;
  if (p.share_w > 1) {
    const int first = rank * (kN / 2);
    ptx::multicast_box(kBoth, to + first * kRowBytes, &p.w, full, c, tap, k + first);
  } else {
    ptx::copy_box(to, &p.w, full, c, tap, k);
  }
}

// What one warp loads: pixels, and if dense weights too. Each copy of a stage is a lane's.
template <typename T, int kM, int kN, bool kDense>
class PixelLoader {
 public:
  __device__ PixelLoader(const Params& p, const Memory& memory, int rank, int lane)
      : p_(p), memory_(memory), rank_(rank), lane_(lane) {}

  __device__ void load(const Tile& tile, Range steps) {
    // One image ahead, so that nothing is negative.
    const int copy = lane_ + (p_.share_x > 1 ? rank_ * p_.copies : 0);
    const Place place(p_, tile.position - p_.halo + p_.image + copy * p_.copy_rows);
    const int w = place.column * p_.stride - p_.pad, h = place.row * p_.stride - p_.pad;
    int c = steps.first, r = 0, s = 0;
    if (kDense && p_.groups > 1) {
      c = steps.first / p_.groups;
      s = steps.first % p_.groups;
      r = s / p_.S;
      s -= r * p_.S;
    }
    for (int i = steps.first; i < steps.last; ++i) {
      ptx::Barrier* full = memory_.x_full + turn_.stage;
      ptx::wait(memory_.x_empty + turn_.stage, turn_.parity ^ 1);
      if (lane_ == 0) {
        ptx::arrive_expecting(full, p_.x_bytes + (kDense ? kN * kRowBytes : 0));
      }
      __syncwarp();
      if (lane_ < p_.copies) {
        char* to = memory_.input + turn_.stage * p_.x_bytes + copy * p_.copy_rows * kRowBytes;
        const int channel = c * kRowChannels<T>;
        const int first = tile.position + copy * p_.copy_rows;
        const bool both = p_.share_x > 1;
        if (p_.boxes && both) {
          ptx::multicast_box(kBoth, to, &p_.x, full, channel, first, 0);
        } else if (p_.boxes) {
          ptx::copy_box(to, &p_.x, full, channel, first, 0);
        } else if (both) {
          multicast_im2col(kBoth, to, &p_.x, full, channel, w, h, place.n - 1, s * p_.dilation,
                           r * p_.dilation);
        } else {
          ptx::copy_im2col(to, &p_.x, full, channel, w, h, place.n - 1, s * p_.dilation,
                           r * p_.dilation);
        }
      }
      if (kDense && lane_ == 31) {
        copy_weights<T, kN>(p_, memory_, turn_.stage, full, tile.k, rank_, c, r * p_.S + s);
      }
      turn_.advance(p_.x_stages);
      if (!kDense) {
        ++c;
      } else if (++s == p_.S) {
        s = 0;
        if (++r * p_.S == p_.groups) {
          r = 0;
          ++c;
        }
      }
    }
  }

  __device__ void finish() { await_readers(memory_.x_empty, p_.x_stages, turn_); }

 private:
  const Params& p_;
  const Memory& memory_;
  int rank_, lane_;
  ptx::Turn turn_;
};

template <typename T, int kN>
__device__ inline void load_weights(const Params& p, const Memory& memory, const Tile& tile,
                                    int rank, ptx::Turn& turn) {
  const int taps = p.taps_h * p.taps_w;
  for (int c = 0; c < p.chunks; ++c) {
    for (int tap = 0; tap < taps; ++tap) {
      ptx::wait(memory.w_empty + turn.stage, turn.parity ^ 1);
      if (ptx::elect_one()) {
        ptx::Barrier* full = memory.w_full + turn.stage;
        ptx::arrive_expecting(full, kN * kRowBytes);
        copy_weights<T, kN>(p, memory, turn.stage, full, tile.k, rank, c, tap);
      }
      turn.advance(p.w_stages);
    }
  }
}

// What a warpgroup multiplies.
template <typename T, int kBlocks, int kN, bool kDense>
class Multiplier {
 public:
  __device__ Multiplier(const Params& p, const Memory& memory, int own_row)
      : p_(p),
        memory_(memory),
        pixels_(ptx::describe_rows(
            ptx::shared_address(memory.input) + static_cast<uint32_t>(own_row) * kRowBytes,
            8 * kRowBytes)),
        filters_(ptx::describe_rows(ptx::shared_address(memory.weights), 8 * kRowBytes)) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const bool both_x = p.share_x > 1, both_w = p.share_w > 1;
    const bool told_both = kDense ? both_x || both_w : both_x;
    tells_x_ = thread < (told_both ? 2 : 1);
    tells_w_ = thread < (both_w ? 2 : 1);
    x_told_ = told(memory.x_empty, told_both, thread);
    w_told_ = told(memory.w_empty, both_w, thread);
  }

  __device__ void multiply(float (&sum)[kBlocks][kN / 2], int steps) {
    int accumulate = 0;
#pragma unroll 1
    for (int i = steps; i > 0; --i) {
      ptx::wait(memory_.x_full + x_.stage, x_.parity);
      if constexpr (kDense) {
        add(sum, x_.stage * p_.x_bytes, x_.stage, accumulate);
        accumulate = 1;
        release();
      } else {
        int row = x_.stage * p_.x_bytes;
#pragma unroll 1
        for (int r = 0; r < p_.taps_h; ++r, row += p_.step_h) {
          int at = row;
#pragma unroll 1
          for (int s = 0; s < p_.taps_w; ++s, at += p_.step_w) {
            ptx::wait(memory_.w_full + w_.stage, w_.parity);
            add(sum, at, w_.stage, accumulate);
            accumulate = 1;
            release();
            w_read_ = w_.stage;
            w_.advance(p_.w_stages);
          }
        }
      }
      x_read_ = x_.stage;
      x_.advance(p_.x_stages);
    }
    ptx::await_products<0>();
    release();
  }

 private:
  static __device__ uint32_t told(ptx::Barrier* barrier, bool both, int thread) {
    const uint32_t own = ptx::shared_address(barrier);
    return both ? ptx::cluster_address(own, thread & 1) : own;
  }

  // The products of a tap; those before the last ones are complete then.
  __device__ void add(float (&sum)[kBlocks][kN / 2], int at, int w_stage, int accumulate) {
    ptx::begin_products();
#pragma unroll
    for (int k = 0; k < kRowBytes; k += 32) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        ptx::Product<T, kN>::add(sum[b], ptx::advance(pixels_, at + b * kSlabBytes + k),
                                 ptx::advance(filters_, w_stage * kN * kRowBytes + k),
                                 k > 0 || accumulate);
      }
    }
    ptx::commit_products();
    ptx::await_products<1>();
  }

  // Gives back the stages that completed products have read.
  __device__ void release() {
    if (!kDense && tells_w_ && w_read_ >= 0) ptx::arrive_cluster(w_told_ + w_read_ * 8);
    if (tells_x_ && x_read_ >= 0) ptx::arrive_cluster(x_told_ + x_read_ * 8);
    x_read_ = w_read_ = -1;
  }

  const Params& p_;
  const Memory& memory_;
  uint64_t pixels_, filters_;
  bool tells_x_, tells_w_;
  uint32_t x_told_, w_told_;
  int x_read_ = -1, w_read_ = -1;  // stages that products under way still read
  ptx::Turn x_, w_;
};

}  // namespace customconv::micro
