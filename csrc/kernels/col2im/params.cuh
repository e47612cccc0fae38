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
  // From one tap of a phase of columns to the next one's; its first is its phase, without what
  // strides and dilations have in common, times the inverse, modulo that step.
  int shift_step, inverse;
  Divider<int32_t> by_width, by_plane_vectors;
  Divider<int32_t> by_channel_chunks, by_phase_chunks, by_tiles_w, by_tiles_h;
  // By a row's outputs, the threads that share a pixel's channels, a thread's own channels.
  Divider<int32_t> by_outputs, by_sharers, by_turns_c, by_stride_w, by_common, by_tap_step;
  bool stores_batches;  // of neighbouring channels
};

}  // namespace customconv::col2im
