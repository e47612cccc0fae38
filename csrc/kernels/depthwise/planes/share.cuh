// What a block computes, and a thread of it.
#pragma once

#include "kernels/common/divide.cuh"
#include "kernels/depthwise/planes/run.cuh"
#include "kernels/epilogue.h"

namespace customconv::depthwise::planes {

template <typename T>
struct Params {
  const T* in;
  T* weight;
  T* out;
  Epilogue epilogue;
  int64_t in_count, out_count;  // elements
  int in_lead, out_lead;        // elements in front of the tensors, from an address of 16 bytes on
  int H, W, P, Q;
  int first_h, first_w;        // of the input, that the first output meets
  int planes;                  // of all images
  int tile_planes, tile_rows;  // of outputs
  int tiles;
  int stages, stage_bytes;  // of tiles, in shared memory
  int zeros_at;
  int out_at, out_bytes;  // where tiles of the output are there, and how far apart
  bool paired;            // rows of the output begin with words
  bool finishes;          // there is an epilogue
  Divider<int32_t> channels, bands, row_strips, column_strips;
  // For a weight gradient, where `out` is only read: parts of sums, null if there is one of each.
  float* partial;
  int N;
  int steps;                // tiles of a channel, in all images
  Divider<int32_t> splits;  // parts of the steps, that blocks go through
  Divider<int32_t> tile_images;
  int in_run, out_run;  // bytes of an image's in shared memory
};

// A tile: whole neighbouring planes, or some rows of one.
struct Share {
  int plane, planes;
  int p, rows;     // of the output
  int h, in_rows;  // of the input

  // Where the runs begin, and how many elements they have.
  template <typename T>
  __device__ int64_t first_in(const Params<T>& params) const {
    return (int64_t{plane} * params.H + h) * params.W;
  }
  template <typename T>
  __device__ int64_t first_out(const Params<T>& params) const {
    return (int64_t{plane} * params.P + p) * params.Q;
  }
  // How far the runs begin behind addresses of whole 16 bytes.
  template <typename T>
  __device__ int lead_in(const Params<T>& params) const {
    const uint32_t row = static_cast<uint32_t>(plane) * params.H + h;
    return (params.in_lead + row * params.W) % kVector<T>;
  }
  template <typename T>
  __device__ int lead_out(const Params<T>& params) const {
    const uint32_t row = static_cast<uint32_t>(plane) * params.P + p;
    return (params.out_lead + row * params.Q) % kVector<T>;
  }
  template <typename T>
  __device__ int in_count(const Params<T>& params) const {
    return ((planes - 1) * params.H + in_rows) * params.W;
  }
  template <typename T>
  __device__ int out_count(const Params<T>& params) const {
    return ((planes - 1) * params.P + rows) * params.Q;
  }
};
template <Walk kWalk, int kCount, int kKept, typename T>
__device__ inline Share share_of(const Params<T>& p, int plane, int planes, int band) {
  Share share{plane, planes, band * p.tile_rows, 0, 0, p.H};
  share.rows = min(p.tile_rows, p.P - share.p);
  if (p.bands.divisor() > 1) {
    const int last_strip = share.p + (share.rows - 1) / kKept * kKept;
    const int end = input_of(kWalk, last_strip, p.first_h) + reach_of(kWalk, kCount, kKept);
    share.h = min(max(input_of(kWalk, share.p, p.first_h), 0), p.H);
    share.in_rows = max(min(end, p.H) - share.h, 0);
  }
  return share;
}

// A thread's strips of rows and columns, of one of the tile's planes.
struct Item {
  int plane;  // of the tile's, or of images of these
  int p, q;   // the first row, of the tile's, and column
};
template <int kKept, int kColumns, typename T>
__device__ inline Item item_of(const Params<T>& p, int number) {
  int32_t rest = number;
  Item item;
  item.q = p.column_strips.split(rest) * kColumns;
  item.p = p.row_strips.split(rest) * kKept;
  item.plane = rest;
  return item;
}

}  // namespace customconv::depthwise::planes
