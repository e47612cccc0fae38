// Boxes that threads fill: of channels-last tensors whose pixels do not begin at whole 16 bytes, so
// that TMA can't read them.
#pragma once

#include "kernels/common/divide.cuh"
#include "kernels/implicit_gemm/unit.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/shared.cuh"
#include "plan/problem.h"

namespace customconv::implicit_gemm::wgrad {

// A dimension of the tensor, `step` pixels from one of a box to the next.
struct Side {
  int64_t stride;
  int size, step;
};

template <typename T>
struct Filled {
  const T* data;  // null where TMA brings the boxes
  int channels;
  int count;                    // of a box: pixels
  Side sides[3];                // in the order of a box's pixels, neighbours the first
  Divider<int32_t> by_side[2];  // pixels of a box along the first two
};

constexpr int kPixelOrder[] = {3, 2, 0};  // columns, rows and images

// `order`: the dimensions of a box's pixels, neighbours the first; so many of each, and so many
// pixels from one to the next.
template <typename T>
Filled<T> fill_pixels(const T* data, const Shape5& sizes, const Shape5& strides,
                      const int (&order)[3], const int (&counts)[3], const int (&steps)[3]) {
  const auto side = [&](int i) {
    return Side{strides[order[i]], static_cast<int>(sizes[order[i]]), steps[i]};
  };
  return {data,
          static_cast<int>(sizes[1]),
          counts[0] * counts[1] * counts[2],
          {side(0), side(1), side(2)},
          {Divider<int32_t>(counts[0]), Divider<int32_t>(counts[1])}};
}

// Rows of elements, all channels of all pixels: so many elements, rows and images.
template <typename T>
Filled<T> fill_elements(const T* data, const Shape5& sizes, const Shape5& strides,
                        const int (&counts)[3]) {
  const auto size = [](int64_t value) { return static_cast<int>(value); };
  return {data,
          1,
          counts[0] * counts[1] * counts[2],
          {{1, size(sizes[3] * sizes[1]), 1},
           {strides[2], size(sizes[2]), 1},
           {strides[0], size(sizes[0]), 1}},
          {Divider<int32_t>(counts[0]), Divider<int32_t>(counts[1])}};
}

// Fills a box of pixels, of each so many units of channels, with so many threads. Units without any
// channel are left as they are. `kRounds`: elements of float32 are rounded to TF32.
template <int kUnits, bool kSwizzled, bool kRounds = true, typename T>
__device__ inline void fill_box(const Filled<T>& from, uint32_t to, int channel,
                                const int (&first)[3], int thread, int threads) {
  constexpr int kElements = 16 / static_cast<int>(sizeof(T)), kTogether = 4;
  const int channels = min(from.channels - channel, kUnits * kElements);
  const int units = (channels + kElements - 1) / kElements;
  const int log = 32 - __clz(units - 1);
  const int count = from.count << log;
#pragma unroll 1
  for (int done = thread; done < count; done += kTogether * threads) {
    uint4 loaded[kTogether];
    uint32_t slots[kTogether];
    bool stores[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int place = done + i * threads, unit = place & ((1 << log) - 1);
      const int pixel = place >> log;
      int32_t rest = pixel;
      const T* at = from.data + channel + unit * kElements;
      bool exists = place < count;
#pragma unroll
      for (int j = 0; j < 3; ++j) {
        const Side& side = from.sides[j];
        const int where = first[j] + (j < 2 ? from.by_side[j].split(rest) : rest) * side.step;
        exists &= where >= 0 && where < side.size;
        at += where * side.stride;
      }
      loaded[i] = load_unit<kRounds>(at, 0, exists ? channels - unit * kElements : 0);
      slots[i] = pixel * kUnits + (kSwizzled ? unit ^ (pixel & 7) : unit);
      stores[i] = place < count && unit < units;
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (stores[i]) ptx::store_shared(to + slots[i] * 16, loaded[i]);
    }
  }
}

// Starts copies of rows of float32 elements, as fill_elements has them, by so many threads.
__device__ inline void copy_rows(const Filled<float>& from, uint32_t to, const int (&first)[3],
                                 int thread, int threads) {
  const int columns = from.by_side[0].divisor(), rows = from.by_side[1].divisor();
  const int all_rows = from.count / columns;
  const Side &across = from.sides[0], &down = from.sides[1], &images = from.sides[2];
#pragma unroll 1
  for (int column = thread; column < columns; column += threads) {
    const int where = first[0] + column;
    const bool is_column = where >= 0 && where < across.size;
    const float* const data = from.data + (is_column ? where : 0);
    int h = first[1], image = first[2];
#pragma unroll 4
    for (int row = 0; row < all_rows; ++row) {
      const bool exists = is_column && h >= 0 && h < down.size && image < images.size;
      const float* const at = data + (exists ? image * images.stride + h * down.stride : 0);
      ptx::copy_async<4>(to + (row * columns + column) * 4, at, exists);
      if (++h < first[1] + rows) continue;
      h = first[1];
      ++image;
    }
  }
}

}  // namespace customconv::implicit_gemm::wgrad
