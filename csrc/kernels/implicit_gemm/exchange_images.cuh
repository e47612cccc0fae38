// Packs a tensor of images so that its images lie side by side, as the halves of float32: for each
// element of an image, what all images have there. Images may be cut into pieces, which are then
// images, too; what is outside an image is zero.
#pragma once

#include <cstdint>

#include "kernels/common/divide.cuh"
#include "kernels/implicit_gemm/halves.cuh"
#include "kernels/ptx/grid.cuh"

namespace customconv::implicit_gemm {

struct ExchangeImages {
  const float* from;
  int64_t n, c, h, w;  // strides
  int H, W;
  int pieces, images;           // of all images; of those the pieces of a group: groups lie apart
  int step_h, step_w;           // from one piece to the next
  int first_h, first_w;         // of the first one
  int elements;                 // of a piece
  bool channels_last;           // elements are read in order of channels
  Divider<int32_t> by_C;        // of a piece: channels,
  Divider<int32_t> by_h, by_w;  // rows and columns
  Divider<int32_t> by_pieces_h, by_pieces_w;  // of an image
  Divider<int32_t> by_blocks, by_group_runs;  // blocks of a run of pieces, and runs of a group
  float* to;
  int64_t group;  // elements from one group's halves to the next
  int64_t row;    // from what is packed for one element (channel, row, column) to the next
  ChannelOrder order;
};
constexpr int kExchangedElements = 64;  // of a piece, of a thread block
constexpr int kExchangeThreads = 256;

// Where an element of a piece is.
struct ExchangedElement {
  int c, h, w;

  __device__ ExchangedElement(const ExchangeImages& p, int32_t element) {
    if (p.channels_last) {
      c = p.by_C.split(element);
      w = p.by_w.split(element);
      h = element;
    } else {
      w = p.by_w.split(element);
      h = p.by_h.split(element);
      c = element;
    }
  }
};

// A block has some elements of a run of pieces.
static __global__ void __launch_bounds__(kExchangeThreads)
    exchange_images(const __grid_constant__ ExchangeImages p) {
  constexpr int kMostRun = 16;
  __shared__ float values[kMostRun][kExchangedElements + 1];
  ptx::launch_dependent_grids();
  const int run = 1 << p.order.half_bits;
  auto group = static_cast<int32_t>(blockIdx.x);
  const int first = p.by_blocks.split(group) * kExchangedElements;
  const int own_run = p.by_group_runs.split(group);
  // All of a thread's elements are the same of other pieces.
  const int own = static_cast<int>(threadIdx.x) % kExchangedElements;
  if (first + own < p.elements) {
    const ExchangedElement at(p, first + own);
    for (int i = static_cast<int>(threadIdx.x) / kExchangedElements; i < run;
         i += kExchangeThreads / kExchangedElements) {
      const int of_group = own_run * run + i;
      int32_t n = group * p.images + of_group;
      const bool exists = of_group < p.images && n < p.pieces;
      const int w = p.by_pieces_w.split(n) * p.step_w + p.first_w + at.w;
      const int h = p.by_pieces_h.split(n) * p.step_h + p.first_h + at.h;
      const bool inside = exists && static_cast<unsigned>(h) < static_cast<unsigned>(p.H) &&
                          static_cast<unsigned>(w) < static_cast<unsigned>(p.W);
      values[i][own] = inside ? p.from[n * p.n + at.c * p.c + h * p.h + w * p.w] : 0.0f;
    }
  }
  __syncthreads();
  ptx::wait_on_dependent_grids();  // the kernel in front may still read what was packed before
  const int units = 2 * run / 4;   // of 16 bytes, of an element
  for (int i = threadIdx.x; i < units * kExchangedElements; i += kExchangeThreads) {
    const int unit = i % units, element = i / units;
    if (first + element >= p.elements) break;
    const ExchangedElement at(p, first + element);
    const int64_t row = (int64_t{at.c} * p.by_h.divisor() + at.h) * p.by_w.divisor() + at.w;
    const bool low = unit * 4 >= run;
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float value = values[unit * 4 % run + j][element];
      v[j] = low ? low_half(value) : high_half(value);
    }
    float* const to = p.to + group * p.group + row * p.row + own_run * 2 * run + unit * 4;
    *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
  }
}

}  // namespace customconv::implicit_gemm
