// Starts the kernels that pack the main loop's input.
#pragma once

#include <cstdint>

#include "kernels/common/start.h"
#include "kernels/implicit_gemm/exchange_images.cuh"
#include "kernels/implicit_gemm/pack_pixels.cuh"
#include "kernels/implicit_gemm/sm90/packed.h"

namespace customconv::implicit_gemm::sm90 {

// Packs planes of pixels; memory between `begin` and `end` may be read.
template <typename T>
void pack_planes(const Packed& p, const T* x, const T* begin, const T* end, T* to, bool early,
                 cudaStream_t stream) {
  using U = PackUnit<T>;
  const ConvProblem& source = p.source;
  PackPixels<T> pack{};
  pack.x = x;
  pack.begin = begin;
  pack.end = end;
  pack.n = source.x_strides[0];
  pack.c = source.x_strides[1];
  pack.C = static_cast<int>(source.C);
  const int64_t pixels = p.D * p.H * p.W;
  pack.pixels = static_cast<int>(pixels);
  pack.aligned =
      source.x_aligned && pack.c % U::kVector == 0 && (p.N == 1 || pack.n % U::kVector == 0);
  pack.to = to;
  pack.row = static_cast<int>(p.x_strides[3]);
  pack.order.half_bits = p.half_bits;
  const int64_t halves = p.half_bits > 0 ? 2 : 1;
  const int64_t units_c = ceil_divide(p.x_strides[3] / halves, U::kChannels);
  const int64_t blocks = ceil_divide(pixels, U::kPixels);
  pack.units = static_cast<int>(p.N * blocks * units_c);
  pack.by_units_c = Divider<int32_t>(units_c);
  pack.by_blocks = Divider<int32_t>(blocks);
  start("implicit_gemm: the input",
        {ceil_divide(pack.units, kPackPixelWarps), 32 * kPackPixelWarps, 0, stream, early},
        pack_pixels<T>, pack);
}

// The same of pixels that are channels-last, `pixel` elements apart.
template <typename T>
void pad_channels(const Packed& p, const T* x, int64_t pixel, T* to, bool early,
                  cudaStream_t stream) {
  PadPixels<T> pad{};
  pad.x = x;
  pad.n = p.source.x_strides[0];
  pad.pixel = pixel;
  pad.C = static_cast<int>(p.source.C);
  pad.order.half_bits = p.half_bits;
  pad.to = to;
  const int64_t row = p.x_strides[3] * static_cast<int64_t>(sizeof(T)) / 16;
  const int64_t pixels = p.D * p.H * p.W;
  pad.units = static_cast<int>(p.N * pixels * row);
  pad.by_row = Divider<int32_t>(row);
  pad.by_image = Divider<int32_t>(pixels);
  start("implicit_gemm: the input",
        {ceil_divide(pad.units, kPadPixelThreads), kPadPixelThreads, 0, stream, early},
        pad_pixels<T>, pad);
}

// The same of any pixels, or of what all taps meet.
template <typename T>
void gather_channels(const Packed& p, const T* x, T* to, bool early, cudaStream_t stream) {
  using D = Divider<int32_t>;
  const ConvProblem& source = p.source;
  GatherTaps<T> gather{};
  gather.x = x;
  gather.n = source.x_strides[0];
  gather.c = source.x_strides[1];
  gather.h = source.x_strides[2];
  gather.w = source.x_strides[3];
  gather.H = static_cast<int>(source.H);
  gather.W = static_cast<int>(source.W);
  gather.C = static_cast<int>(source.C);
  gather.S = static_cast<int>(p.row_taps);
  gather.elements = static_cast<int>(p.groups * p.channels);
  gather.order.half_bits = p.half_bits;
  const bool taps = p.packing == Packing::kPatches;
  gather.stride_h = static_cast<int>(taps ? source.stride_h : 1);
  gather.stride_w = static_cast<int>(taps ? source.stride_w : 1);
  gather.pad_h = static_cast<int>(taps ? source.pad_h : 0);
  gather.pad_w = static_cast<int>(taps ? source.pad_w : 0);
  gather.dilation_h = static_cast<int>(source.dilation_h);
  gather.dilation_w = static_cast<int>(source.dilation_w);
  gather.to = to;
  const int64_t row = p.x_strides[3] * static_cast<int64_t>(sizeof(T)) / 16;
  gather.units = static_cast<int>(p.N * p.H * p.W * row);
  gather.by_row = D(row);
  gather.by_Q = D(p.W);
  gather.by_P = D(p.H);
  gather.by_C = D(source.C);
  gather.by_S = D(p.row_taps);
  start("implicit_gemm: the input",
        {ceil_divide(gather.units, kGatherThreads), kGatherThreads, 0, stream, early},
        gather_taps<T>, gather);
}

// Packs the input of a part, which begins at `x`.
template <typename T>
void pack_input(const Packed& p, const T* x, const T* begin, const T* end, T* to, bool early,
                cudaStream_t stream) {
  const int64_t pixel = input_pixel_stride(p.source);
  if (p.tap_channels > 0 || !input_follows(p.source)) {
    gather_channels(p, x, to, early, stream);
  } else if (p.D * p.H * p.W == 1 || pixel == 1) {
    pack_planes(p, x, begin, end, to, early, stream);
  } else {
    pad_channels(p, x, pixel, to, early, stream);
  }
}

// Packs pieces of images side by side: `extent` are a piece's channels, rows and columns, of which
// the first piece begins at `first`, and the next one `step` further on.
inline void pack_images(const Packed& p, const Pieces& pieces, const float* from,
                        const Shape5& sizes, const Shape5& strides, const int64_t (&extent)[3],
                        const int64_t (&first)[2], const int64_t (&step)[2], float* to, int64_t row,
                        int64_t group, cudaStream_t stream) {
  using D = Divider<int32_t>;
  ExchangeImages exchange{};
  exchange.from = from;
  exchange.n = strides[0];
  exchange.c = strides[1];
  exchange.h = strides[2];
  exchange.w = strides[3];
  exchange.H = static_cast<int>(sizes[2]);
  exchange.W = static_cast<int>(sizes[3]);
  exchange.pieces = static_cast<int>(sizes[0] * pieces.bands * pieces.columns);
  exchange.images = static_cast<int>(p.channels);
  exchange.step_h = static_cast<int>(step[0]);
  exchange.step_w = static_cast<int>(step[1]);
  exchange.first_h = static_cast<int>(first[0]);
  exchange.first_w = static_cast<int>(first[1]);
  exchange.elements = static_cast<int>(extent[0] * extent[1] * extent[2]);
  exchange.channels_last = dense_layout(sizes, strides) == Layout::kNhwc;
  exchange.by_C = D(extent[0]);
  exchange.by_h = D(extent[1]);
  exchange.by_w = D(extent[2]);
  exchange.by_pieces_h = D(pieces.bands);
  exchange.by_pieces_w = D(pieces.columns);
  const int64_t blocks = ceil_divide(exchange.elements, kExchangedElements);
  const int64_t group_runs = p.group_C() >> (p.half_bits + 1);
  exchange.by_blocks = D(blocks);
  exchange.by_group_runs = D(group_runs);
  exchange.to = to;
  exchange.group = group;
  exchange.row = row;
  exchange.order.half_bits = p.half_bits;
  start("implicit_gemm: images side by side",
        {p.groups * group_runs * blocks, kExchangeThreads, 0, stream}, exchange_images, exchange);
}

}  // namespace customconv::implicit_gemm::sm90
