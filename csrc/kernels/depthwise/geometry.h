// The walk from one image to the other that all kinds of depthwise kernels do. Plain C++.
#pragma once

#include <cstdint>

#include "plan/device.h"
#include "plan/problem.h"

namespace customconv::depthwise {

// A depthwise convolution as the kernels see it: every channel of `out` is one of `in`, filtered,
// or the sum of several. The input gradient is one too: with stride 1 by the filter turned round,
// else `transposed`, where `out` is the finer image. Rows and columns change places where outputs
// one below the other would otherwise share nothing.
struct Geometry {
  int64_t N, K;        // channels of `out`
  int64_t multiplier;  // of them, those that read the same channel of `in`
  int64_t sources;     // channels of `in` that one of `out` reads
  int64_t H, W, P, Q;  // of `in` and of `out`
  int64_t R, S;
  int64_t step_h, step_w;
  int64_t pad_h, pad_w;  // may be negative
  int64_t dilation_h, dilation_w;
  bool transposed;
  bool of_weights;  // the weight gradient: `out` is read too
  bool planar;      // a channel's columns are nearer than its pixel's channels
  Shape5 in, out;   // strides of n, c, h, w
  int64_t weight_k, weight_r, weight_s, weight_offset;
};

Geometry geometry_of(const ConvProblem& problem);

// Shared memory that the filters of a block of threads may take.
inline constexpr int64_t kFilterBytes = 40 << 10;

// Bytes of workspace that so many parts of a weight gradient take; a single part takes none.
inline int64_t parts_bytes(const ConvProblem& p, int64_t parts) {
  return parts > 1 ? parts * p.w_count() * 4 : 0;
}

// Each block takes so much shared memory of its multiprocessor besides what it asks for.
inline constexpr int kReservedBytes = 1 << 10;
// What each of so many blocks of a multiprocessor may ask for.
inline int shared_bytes_of(const DeviceProperties& device, int blocks) {
  return (device.shared_bytes_block + kReservedBytes) / blocks - kReservedBytes;
}
// How many blocks that ask for so much share a multiprocessor.
inline int64_t resident_of(const DeviceProperties& device, int64_t shared_bytes) {
  return (device.shared_bytes_block + kReservedBytes) / (shared_bytes + kReservedBytes);
}

}  // namespace customconv::depthwise
