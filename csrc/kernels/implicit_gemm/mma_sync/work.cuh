// What a kernel is told, and how its agents walk through their work in step.
#pragma once

#include <cstdint>

#include "kernels/common/divide.cuh"
#include "kernels/epilogue.h"
#include "kernels/implicit_gemm/mma_sync/tile.h"
#include "kernels/ptx/barrier.cuh"

namespace customconv::implicit_gemm::mma_sync {

// A tile's first pixel and output channel, and the first input channel of its group; or a plane's
// first pixel of the input. In a run, n, p and q are of its beginning and `pair` counts the pairs
// of pixels before the tile.
struct Corner {
  int n, p, q, k, c;
  int pair;
};

template <typename T>
struct Output {
  T* data;
  int64_t n, k, p, q;  // strides
  int N, K, P, Q;
  Epilogue epilogue;
  bool planar;         // stored pixel by pixel, in planes of channels
  bool vectors;        // planar: pairs of pixels may be stored at once; else 16 bytes of channels,
                       // float32 8 bytes
  bool channel_pairs;  // of scale and bias, may be read at once
  int images, rows, columns;  // of a tile, output pixels
  bool lines;                 // boxes: lines, not squares
  Divider<int32_t> pitch;     // lines: positions of a row
  Divider<int32_t> squares_w, squares_h;
};

template <typename T>
struct RowSource {
  const T* x;
  int64_t n, c, h, w;  // strides
  int N, C, H, W;
  Rows row;
  int reach;      // rows of the plane below an output row's first
  int vectors;    // of a channel; of boxes, pixels
  int last_pair;  // of a run, or of a tile of lines: what is behind it reads the same pixels
  bool flat;      // taps are channels too: so many, of rows of flat_S, and channels of each
  int flat_taps, flat_S, flat_C;
  int flat_bytes;  // from one channel to the next
  Divider<int32_t> vectors_in_row, pairs, output_rows, period;
};

template <typename T>
struct Params {
  Output<T> out;
  RowSource<T> source;
  Axis h, w_axis;
  int R, S;  // taps, 1 where they are channels too
  int stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w;
  int rows, columns, images;  // of a tile
  int run;                    // pairs of a tile where tiles are parts of a run, else 0
  int pitch;
  int x_stages, w_stages;
  int stage_bytes;
  int staging_bytes;               // of all stores
  uint32_t block_at[kMostBlocks];  // boxes: of a block's first pixel in a plane
  uint32_t group_bytes;            // boxes: from eight of its pixels to the next eight
  int items, splits;
  int split_steps, longer_splits;  // steps of a split, of which the first few have one more
  int pieces, chunk;
  int group_C;  // input channels of a group of the convolution
  const void* weights;
  int weight_row, weight_taps;  // of a matrix: elements of a row, and rows of an output channel
  bool planes_first;            // tiles of the same channels follow each other
  Divider<int32_t> tiles_q, tiles_p, tiles_n, tiles_k, tiles_x;
  Divider<int32_t> in_group;  // of tiles_k, those of a group of the convolution
  Divider<int32_t> planes_h, planes_w;
  float* partial;
};

// What a thread block does next: a tile, and of its sum the steps [first, last).
struct Work {
  Corner at;
  int first, last;
};

template <typename T>
__device__ inline Work work_at(const Params<T>& p, int item, int channels) {
  Work work;
  int32_t rest = item;
  int32_t tile = 0;
  int column = 0;  // of tiles_k
  if (p.planes_first) {
    tile = rest;
  } else {
    column = p.tiles_k.split(rest);
    tile = p.tiles_x.split(rest);
  }
  const int q = p.tiles_q.split(tile);
  work.at.q = p.run > 0 ? 0 : q * p.columns;
  work.at.pair = q * p.run;
  work.at.p = p.tiles_p.split(tile) * p.rows;
  if (p.planes_first) {
    column = p.tiles_k.split(tile);
    rest = tile;
    tile = p.tiles_n.split(rest);
  }
  work.at.n = tile * p.images;
  work.at.k = column * channels;
  work.at.c = p.in_group.quotient(column) * p.group_C;
  work.first = rest * p.split_steps + min(rest, p.longer_splits);
  work.last = work.first + p.split_steps + (rest < p.longer_splits ? 1 : 0);
  return work;
}

// The address of a unit of 16 bytes in the row of 128 bytes of shared memory at address `row`.
__device__ inline uint32_t swizzled(uint32_t row, int unit) {
  return row + ((unit ^ (row / kRowBytes % 8)) * 16);
}

// A position in a ring of stages, and the parity of the round it is in.
struct Place {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A step: a chunk of channels of one plane.
struct Step {
  int chunk, plane_h, plane_w;
  template <typename T>
  __device__ Step(const Params<T>& p, int index) {
    chunk = index;
    plane_w = p.planes_w.split(chunk);
    plane_h = p.planes_h.split(chunk);
  }
  template <typename T>
  __device__ void advance(const Params<T>& p) {
    if (++plane_w < p.w_axis.planes) return;
    plane_w = 0;
    if (++plane_h < p.h.planes) return;
    plane_h = 0;
    ++chunk;
  }
  template <typename T>
  __device__ int pieces(const Params<T>& p) const {
    return min(p.chunk, p.pieces - chunk * p.chunk);
  }
};

struct Shared {
  // What has a fixed size comes first: its addresses are constants.
  template <typename T>
  __device__ Shared(const Params<T>& p, char* memory, bool is_flat)
      : input(memory + kBarrierBytes + kCopiesBytes + (is_flat ? kFlatBytes : 0)),
        weights(input + p.x_stages * p.stage_bytes + p.staging_bytes),
        staging(input + p.x_stages * p.stage_bytes),
        copies(memory + kBarrierBytes),
        flat(reinterpret_cast<int32_t*>(memory + kBarrierBytes + kCopiesBytes)),
        x_full(reinterpret_cast<ptx::Barrier*>(memory)),
        x_empty(x_full + kMostStages),
        w_full(x_empty + kMostStages),
        w_empty(w_full + kMostStages) {}

  char* input;
  char* weights;
  char* staging;
  void* copies;   // of the input: where they come from
  int32_t* flat;  // of every channel and tap that are one dimension, where it is in a stage
  ptx::Barrier* x_full;
  ptx::Barrier* x_empty;
  ptx::Barrier* w_full;
  ptx::Barrier* w_empty;
};

// A thread block's steps, one tile after the other: every agent that loads walks through the same.
template <typename T>
class Walk {
 public:
  __device__ Walk(const Params<T>& p, int channels)
      : step(p, 0), p_(p), channels_(channels), item_(blockIdx.x) {
    begin();
  }
  __device__ bool is_over() const { return item_ >= p_.items; }
  __device__ bool is_new_tile() const { return index_ == work.first; }
  __device__ Corner plane() const {
    Corner at = work.at;
    at.p = at.p * p_.stride_h - p_.pad_h + step.plane_h * p_.dilation_h;
    at.q = at.q * p_.stride_w - p_.pad_w + step.plane_w * p_.dilation_w;
    return at;
  }
  __device__ void advance() {
    step.advance(p_);
    if (++index_ < work.last) return;
    item_ += gridDim.x;
    begin();
  }

  Work work;
  Step step;

 private:
  __device__ void begin() {
    if (is_over()) return;
    work = work_at(p_, item_, channels_);
    index_ = work.first;
    step = Step(p_, index_);
  }

  const Params<T>& p_;
  int channels_, item_, index_ = 0;
};

}  // namespace customconv::implicit_gemm::mma_sync
