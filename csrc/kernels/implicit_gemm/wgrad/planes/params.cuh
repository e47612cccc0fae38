// What the kernel of channels-first weight gradients is told, and where things are in its memory.
#pragma once

#include "kernels/implicit_gemm/wgrad/output.cuh"
#include "kernels/implicit_gemm/wgrad/planes/geometry.h"
#include "kernels/ptx/barrier.cuh"

namespace customconv::implicit_gemm::wgrad::planes {

template <typename T>
struct Params : Output<T> {
  CUtensorMap x_map, y_map;
  const T *x, *y;
  int64_t x_n, x_c, x_h, y_n, y_k, y_p;  // strides
  // Where each step's units are in x, in bytes from a stage's first pixel, and where in dy.
  int32_t unit_at[kMostSteps][2], slab_at[kMostSteps];
  int steps, slab_bytes;
  int low_y, low_x;                                // bytes from high halves to low ones, of slabs
  int along_p;                                     // see Tile
  int blocks;                                      // thread blocks of a split
  Divider<int32_t> by_cluster;                     // its splits, neighbours
  int x_channel, x_row, x_image, x_block, step_h;  // see Tile
  int y_columns;                                   // a slab's first pixels apart
  int x_at, stage_bytes, stages, brought_x, brought_y;
  int images, rows, columns, row_units, tiles;
  int N, H, W, P, Q;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  Divider<int32_t> by_tiles_q, by_tiles_p;
  // For threads that load: how many places x and dy have in a tile.
  int x_inner, y_inner, vector;
  int first_row, first_unit;  // of x, that are inside of the image
  bool has_zeros;             // others are not
  Divider<int32_t> by_x_units, by_x_rows, by_row_units, by_rows;
  bool boxed, x_in_slabs;
  int raw_at, raw_bytes;  // where dy lies that comes in classes
  int barriers_at;
  int align;  // pixels: where rows may begin in shared memory
  // For runs, see Tile; `pixels` are those of a plane of dy.
  bool orders;
  int x_classes, y_classes, y_channel, pixels, slabs, x_runs, x_boxes, box_step;
  int table_at, table_bytes, table_units;
  Divider<int32_t> by_table_units, by_y_inner, by_Q, by_box_step;
  // Where rows of the instruction are channels and taps, three numbers count them: how many of the
  // first two there are, and bytes of x from one to the next of each.
  bool flat;
  int channels;  // of x together
  Divider<int32_t> by_flat[2];
  int flat_bytes[3];
  // How results are stored, see InOrder.
  bool rows_follow;
  Divider<int32_t> by_minor;
};

constexpr int kLoaderBarrier = 2;  // the first is of threads that multiply

template <typename T>
inline constexpr int kUnit = kUnitBytes / static_cast<int>(sizeof(T));  // pixels

struct Memory {
  template <typename T>
  __device__ Memory(const Params<T>& p, char* memory)
      : stages(memory),
        raw(memory + p.raw_at),
        full(reinterpret_cast<ptx::Barrier*>(memory + p.barriers_at)),
        halved(full + kMostStages),
        empty(halved + kMostStages),
        raw_full(empty + kMostStages),
        arrived(raw_full + kRawStages) {}

  char *stages, *raw;
  ptx::Barrier *full, *halved, *empty, *raw_full;
  ptx::Barrier* arrived;  // the sums of the cluster's other blocks
};

// Whether dy comes by copies, which threads halve then; else those that bring it halve it.
template <typename T>
__device__ inline bool halves_copies(const Params<T>& p) {
  return p.boxed || (p.table_bytes > 0 && !p.orders);
}

// The column of x where a thread block's rows begin, and how much later its first tap does.
struct Begin {
  int column, slack;  // of a tile's whose first column is 0

  template <typename T>
  __device__ Begin(const Params<T>& p, int first_tap) {
    const int first = first_tap * p.dilation_w - p.pad_w;
    column = first & -p.align;
    slack = first - column;
  }
};

template <typename T>
__device__ inline int first_channel(const Params<T>& p, const Share& share) {
  return p.flat ? share.group * p.channels : share.group * p.group_C + share.c;
}

}  // namespace customconv::implicit_gemm::wgrad::planes
