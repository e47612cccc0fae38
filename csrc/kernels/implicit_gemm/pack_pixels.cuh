// Packs pixels as channels-last, each pixel's channels padded to whole 16 bytes: of planes, of
// pixels that are channels-last without such padding, or of any tensor, where taps may become
// channels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/halves.cuh"
#include "kernels/implicit_gemm/unit.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm {

template <typename T>
struct PackPixels {
  const T* x;
  const T *begin, *end;  // of the memory that may be read
  int64_t n, c;          // strides of images and of planes
  int C, pixels;         // pixels of a plane, which follow each other
  bool aligned;          // every plane begins at a multiple of 16 bytes
  T* to;
  int row;             // elements of a packed pixel
  ChannelOrder order;  // of these
  int units;
  Divider<int32_t> by_units_c, by_blocks;  // units of a block of pixels; blocks of an image
};

// What a warp packs: a block of 64 pixels by up to 128 bytes of channels. In shared memory, each
// channel has its pixels as vectors of 16 bytes, swizzled by the channel; one more vector for each
// channel stands behind them, as a plane may begin within a vector.
template <typename T>
struct PackUnit {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kPixels = 64;
  static constexpr int kVector = 16 / kSize;           // elements
  static constexpr int kChannels = 128 / kSize;        // of a unit
  static constexpr int kVectors = kPixels / kVector;   // of a channel
  static constexpr int kAcross = kChannels / kVector;  // vectors of a pixel
  static constexpr int kBytes = kChannels * (kVectors + 1) * 16;

  static __device__ uint32_t slot(int c, int v) {
    return v < kVectors ? (c * kVectors + (v ^ (c / kVector))) * 16
                        : (kChannels * kVectors + c) * 16;
  }
};
constexpr int kPackPixelWarps = 4;

// Elements from the start of a vector in memory to a channel's first pixel.
template <typename T>
__device__ inline int vector_offset(const T* pixel) {
  return static_cast<int>(reinterpret_cast<uint64_t>(pixel) % 16 / sizeof(T));
}

// Copies a vector of pixels; what lies outside the tensor is not read.
template <typename T>
__device__ inline void load_pixels(const PackPixels<T>& p, const T* from, uint32_t to) {
  constexpr int kVector = PackUnit<T>::kVector;
  if (from >= p.begin && from + kVector <= p.end) {
    ptx::copy_async<16>(to, from, true);
    return;
  }
  alignas(16) T elements[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    elements[i] = from + i >= p.begin && from + i < p.end ? from[i] : narrow<T>(0.0f);
  }
  ptx::store_shared(to, *reinterpret_cast<const uint4*>(elements));
}

// Four channels of a pixel: their high halves, and a run further on their low ones.
__device__ inline void store_halves(float* to, const ChannelOrder& order, const float (&v)[4]) {
  auto* const high = reinterpret_cast<float4*>(to);
  auto* const low = reinterpret_cast<float4*>(to + (1 << order.half_bits));
  *high = make_float4(high_half(v[0]), high_half(v[1]), high_half(v[2]), high_half(v[3]));
  *low = make_float4(low_half(v[0]), low_half(v[1]), low_half(v[2]), low_half(v[3]));
}

template <typename T>
__global__ void __launch_bounds__(32 * kPackPixelWarps) pack_pixels(PackPixels<T> p) {
  using U = PackUnit<T>;
  using Bits = std::conditional_t<U::kSize == 2, uint16_t, uint32_t>;
  __shared__ alignas(128) char units[kPackPixelWarps][U::kBytes];
  ptx::launch_dependent_grids();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int32_t n = blockIdx.x * kPackPixelWarps + warp;
  if (n >= p.units) return;
  const int first_c = p.by_units_c.split(n) * U::kChannels;
  const int first_pixel = p.by_blocks.split(n) * U::kPixels;
  const int channels = min(U::kChannels, p.C - first_c);
  const int pixels = min(U::kPixels, p.pixels - first_pixel);
  const T* const from = p.x + n * p.n + first_c * p.c + first_pixel;
  const uint32_t own = ptx::shared_address(units[warp]);
  if (p.aligned) {
#pragma unroll 4
    for (int i = lane; i < channels * U::kVectors; i += 32) {
      const int c = i / U::kVectors, v = i % U::kVectors;
      if (v * U::kVector < pixels) {
        load_pixels(p, from + c * p.c + v * U::kVector, own + U::slot(c, v));
      }
    }
  } else {
#pragma unroll 2
    for (int i = lane; i < channels * (U::kVectors + 1); i += 32) {
      const int c = i / (U::kVectors + 1), v = i % (U::kVectors + 1);
      const T* const plane = from + c * p.c;
      const int first = v * U::kVector - vector_offset(plane);
      if (first < pixels) load_pixels(p, plane + first, own + U::slot(c, v));
    }
  }
  ptx::commit_copies();
  ptx::wait_on_dependent_grids();  // the kernel in front may still read what was packed before
  ptx::await_groups<0>();
  __syncwarp();

  // Lanes have neighbouring channels of a pixel, and no two of them meet in a bank.
  const int own_c = lane % U::kAcross * U::kVector;
  const int halves = p.order.half_bits > 0 ? 2 : 1;
  if ((first_c + own_c) * halves >= p.row) return;
  int offset[U::kVector];
#pragma unroll
  for (int e = 0; e < U::kVector; ++e) {
    offset[e] = p.aligned ? 0 : vector_offset(from + (own_c + e) * p.c);
  }
  T* const to =
      p.to + (int64_t{n} * p.pixels + first_pixel) * p.row + p.order.place(first_c + own_c);
#pragma unroll 2
  for (int pixel = lane / U::kAcross; pixel < pixels; pixel += 32 / U::kAcross) {
    alignas(16) Bits bits[U::kVector];
#pragma unroll
    for (int e = 0; e < U::kVector; ++e) {
      const int at = pixel + offset[e];
      const uint32_t address =
          own + U::slot(own_c + e, at / U::kVector) + at % U::kVector * U::kSize;
      bits[e] = own_c + e < channels ? ptx::load_shared<Bits>(address) : Bits{0};
    }
    T* const own_to = to + int64_t{pixel} * p.row;
    if constexpr (U::kSize == 4) {
      if (halves == 2) {
        store_halves(own_to, p.order, reinterpret_cast<const float (&)[4]>(bits));
        continue;
      }
    }
    *reinterpret_cast<uint4*>(own_to) = *reinterpret_cast<const uint4*>(bits);
  }
}

template <typename T>
struct PadPixels {
  const T* x;
  int64_t n, pixel;  // strides of images and of pixels, which follow each other
  int C;
  T* to;
  ChannelOrder order;                 // of a packed pixel
  int units;                          // of 16 bytes
  Divider<int32_t> by_row, by_image;  // units of a packed pixel; pixels of an image
};
constexpr int kPadPixelThreads = 256;

// Pads the channels of channels-last pixels; a thread has 16 bytes of one.
template <typename T>
__global__ void __launch_bounds__(kPadPixelThreads) pad_pixels(PadPixels<T> p) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  ptx::launch_dependent_grids();
  const int at = blockIdx.x * kPadPixelThreads + threadIdx.x;
  if (at >= p.units) return;
  int32_t n = at;
  const int place = p.by_row.split(n) * kVector, c = p.order.channel(place);
  const int pixel = p.by_image.split(n);
  const T* const from = p.x + n * p.n + pixel * p.pixel + c;
  uint4 unit;
  if (sizeof(T) == 4 && p.order.half_bits > 0) {
    alignas(16) T halves[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      halves[i] = packed_value(p.order, place, c + i < p.C ? from[i] : narrow<T>(0.0f));
    }
    unit = *reinterpret_cast<const uint4*>(halves);
  } else {
    unit = load_unit(from, 0, min(kVector, p.C - c));
  }
  ptx::wait_on_dependent_grids();  // the kernel in front may still read what was packed before
  reinterpret_cast<uint4*>(p.to)[at] = unit;
}

template <typename T>
struct GatherTaps {
  const T* x;
  int64_t n, c, h, w;  // strides
  int H, W;
  int C, S;      // channels of a tap, and taps of a row
  int elements;  // of a packed pixel, before its padding and before they are halved
  ChannelOrder order;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  T* to;
  int units;                                        // of 16 bytes
  Divider<int32_t> by_row, by_Q, by_P, by_C, by_S;  // units of a packed pixel; packed pixels
};
constexpr int kGatherThreads = 256;

// Packs what taps of each output pixel meet, tap by tap; a thread has 16 bytes of a packed pixel.
template <typename T>
__global__ void __launch_bounds__(kGatherThreads)
    gather_taps(const __grid_constant__ GatherTaps<T> p) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  ptx::launch_dependent_grids();
  const int at = blockIdx.x * kGatherThreads + threadIdx.x;
  if (at >= p.units) return;
  int32_t n = at;
  const int place = p.by_row.split(n) * kVector, first = p.order.channel(place);
  int w = p.by_Q.split(n) * p.stride_w - p.pad_w;
  int h = p.by_P.split(n) * p.stride_h - p.pad_h;
  int32_t r = first;
  int c = p.by_C.split(r), s = p.by_S.split(r);
  w += s * p.dilation_w;
  h += r * p.dilation_h;
  const T* const image = p.x + n * p.n;
  alignas(16) T elements[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const bool exists =
        first + i < p.elements && static_cast<unsigned>(h) < p.H && static_cast<unsigned>(w) < p.W;
    elements[i] =
        exists ? packed_value(p.order, place, image[c * p.c + h * p.h + w * p.w]) : narrow<T>(0.0f);
    if (++c < p.C) continue;
    c = 0;
    w += p.dilation_w;
    if (++s < p.S) continue;
    s = 0;
    w -= p.S * p.dilation_w;
    h += p.dilation_h;
  }
  ptx::wait_on_dependent_grids();  // the kernel in front may still read what was packed before
  reinterpret_cast<uint4*>(p.to)[at] = *reinterpret_cast<const uint4*>(elements);
}

}  // namespace customconv::implicit_gemm
