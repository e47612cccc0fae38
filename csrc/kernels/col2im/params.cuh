// What the kernel is started with.
#pragma once

#include "kernels/col2im/geometry.h"
#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"

namespace customconv::col2im {

template <typename T>
struct Params {
  const T* dy;
  int64_t y_n, y_k, y_h, y_w;  // strides
  T* dx;
  int64_t x_n, x_c, x_h, x_w;
  const char* packed;
  int C, K;
  Axis h, w;
  int vector;
  int rows, width, lead, columns;
  int phases, channels, phase_columns;
  int k_chunks, shift_count;
  int shifts[kMostShifts];
  int stage_rows, plane, dy_bytes, stage_bytes;
  int sum_pitch;
  // Of a row's outputs: those that follow each other in memory are stored by neighbouring threads.
  int inner_channels;
  int row_step, shift_step;  // from one tap of a phase of columns to the next one's
  int store_threads;         // that share a row
  Divider<int32_t> by_width, by_plane_vectors, by_row_blocks;
  Divider<int32_t> by_channel_chunks, by_phase_chunks, by_tiles_w, by_tiles_h;
  Divider<int32_t> by_inner_channels, by_stride_w, by_store_threads, by_outer_channels, by_phases;
};

}  // namespace customconv::col2im
