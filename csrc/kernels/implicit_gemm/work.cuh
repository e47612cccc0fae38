// What a kernel is told, and how its agents walk through their work in step.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "kernels/common/divide.cuh"
#include "kernels/epilogue.h"
#include "kernels/implicit_gemm/tile.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm {

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
  const T *x, *end;    // behind the last element
  int64_t n, c, h, w;  // strides
  int N, C, H, W;
  Rows row;
  int pitch;
  int reach;    // rows of the plane below an output row's first
  int vectors;  // of a channel; of planes that threads copy, pixels
  int plane_rows;
  int image_pixels;  // of output
  int last_pair;     // of a run, or of a tile of lines: what is behind it reads the same pixels
  bool flat;         // taps are channels too: so many, of rows of flat_S, and channels of each
  int flat_taps, flat_S, flat_C;
  int flat_bytes;  // from one channel to the next
  Divider<int32_t> vectors_in_row, pairs, output_rows, period, columns;
};

template <typename T>
struct Params {
  CUtensorMap x, w, y, residual;
  Output<T> out;
  RowSource<T> source;
  Axis h, w_axis;
  int R, S;  // taps, 1 where they are channels too
  int stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w;
  int rows, columns, images;  // of a tile
  int run;                    // pairs of a tile where tiles are parts of a run, else 0
  int pitch;
  int x_stages, w_stages;
  bool boxed_out;
  int stage_bytes, boxed_bytes, weight_bytes;
  int cluster;                     // thread blocks of a cluster
  int staging_bytes;               // of all stores
  uint32_t block_at[kMostBlocks];  // boxes: of a block's first pixel in a plane
  uint32_t group_bytes;            // boxes: from eight of its pixels to the next eight
  int items, splits;
  int split_steps, longer_splits;  // steps of a split, of which the first few have one more
  bool clustered;                  // a tile's splits are a cluster
  int pieces, chunk;
  int group_C;                  // input channels of a group of the convolution
  const void* units;            // weights that are no matrix, or that threads copy
  int weight_row, weight_taps;  // of a matrix: elements of a row, and rows of an output channel
  bool planes_first;            // tiles of the same channels follow each other
  Divider<int32_t> tiles_q, tiles_p, tiles_n, tiles_k, tiles_x, in_cluster;
  Divider<int32_t> in_group;  // of tiles_k, those of a group of the convolution
  Divider<int32_t> group_K;   // output channels of a group of the convolution
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
  const int rank = p.in_cluster.split(rest);
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
  if (p.clustered) rest = rank;
  work.first = rest * p.split_steps + min(rest, p.longer_splits);
  work.last = work.first + p.split_steps + (rest < p.longer_splits ? 1 : 0);
  return work;
}

// Weights that are a matrix, in shared memory: 128 bytes of each output channel's input channels,
// or transposed, of each input channel's output channels.
template <typename T>
__device__ inline uint64_t describe_matrix(bool transposed, uint32_t address) {
  constexpr int kBlockBytes = kRowBytes / static_cast<int>(sizeof(T)) * kRowBytes;
  return transposed ? ptx::describe_transposed(address, kBlockBytes)
                    : ptx::describe_rows(address, 8 * kRowBytes);
}
// From a piece to the next.
template <typename T>
constexpr int matrix_step(bool transposed) {
  return transposed ? kPieceBytes / static_cast<int>(sizeof(T)) * kRowBytes : kPieceBytes;
}

// Where a matrix has a tap: those of an input gradient's weight as it is are turned.
template <bool kTransposed, typename T>
__device__ inline int tap_at(const Params<T>& p, int r, int s) {
  const int tap = r * p.S + s;
  return kTransposed ? p.weight_taps - 1 - tap : tap;
}

// Calls `copy` for each slab of a transposed weight: some input channels by 128 bytes of output
// channels. It is given where they are in a stage and in the weight.
template <int kChannels, typename T, typename Copy>
__device__ inline void each_transposed(const Params<T>& p, const Corner& at, int c, Copy copy) {
  constexpr int kColumns = kRowBytes / static_cast<int>(sizeof(T));
  constexpr int kBlockBytes = kColumns * kRowBytes;
  const int k = at.k - p.group_K.quotient(at.k) * p.group_K.divisor();
#pragma unroll
  for (int i = 0; i < kChannels / kColumns; ++i) {
    copy(i * kBlockBytes, k + i * kColumns, at.c + c);
  }
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

// Calls `function` with the number of a step's pieces, which then is a constant.
template <typename Function>
__device__ inline void with_pieces(int pieces, Function function) {
  constexpr int kWhole = kRowBytes / kPieceBytes;
  if (pieces >= kWhole) {
    function(std::integral_constant<int, kWhole>());
  } else if (pieces == 3) {
    function(std::integral_constant<int, 3>());
  } else if (pieces == 2) {
    function(std::integral_constant<int, 2>());
  } else {
    function(std::integral_constant<int, 1>());
  }
}

struct Shared {
  // What has a fixed size comes first: its addresses are constants.
  template <typename T>
  __device__ Shared(const Params<T>& p, char* memory, bool copied, bool is_flat)
      : input(memory + kBarrierBytes + (copied ? kCopiesBytes : 0) + (is_flat ? kFlatBytes : 0)),
        weights(input + p.x_stages * p.stage_bytes + p.staging_bytes),
        staging(input + p.x_stages * p.stage_bytes),
        copies(memory + kBarrierBytes),
        flat(reinterpret_cast<int32_t*>(memory + kBarrierBytes + kCopiesBytes)),
        x_full(reinterpret_cast<ptx::Barrier*>(memory)),
        x_empty(x_full + kMostStages),
        w_full(x_empty + kMostStages),
        w_empty(w_full + kMostStages),
        residual_full(w_empty + kMostStages),
        exchange(reinterpret_cast<float*>(weights + p.w_stages * p.weight_bytes)) {}

  char* input;
  char* weights;
  char* staging;
  void* copies;   // of rows: where they come from
  int32_t* flat;  // of every channel and tap that are one dimension, where it is in a stage
  ptx::Barrier* x_full;
  ptx::Barrier* x_empty;
  ptx::Barrier* w_full;
  ptx::Barrier* w_empty;
  ptx::Barrier* residual_full;  // of each warpgroup
  float* exchange;              // of a cluster
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

}  // namespace customconv::implicit_gemm
