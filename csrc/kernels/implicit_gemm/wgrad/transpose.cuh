// Boxes of tensors of which each channel is a plane: threads load words of planes and put the
// channels of a pixel side by side.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/common/divide.cuh"
#include "kernels/implicit_gemm/wgrad/fill.cuh"
#include "kernels/implicit_gemm/wgrad/geometry.h"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm::wgrad {

// What is counted of a box are words of a channel: places.
template <typename T>
struct Transposed : Filled<T> {
  uint32_t channel_bytes;  // from one to the next
  bool pairs;              // a word is two neighbours of a row, the first of which is an even one
  int width;               // of a box: pixels

  // Pixels from a word to the next.
  __device__ int step() const { return pairs ? 2 : this->sides[0].step; }
};

// `counts`: a box's columns, rows and images, so many pixels from one to the next.
template <typename T>
Transposed<T> transpose_pixels(Fill fill, const T* data, const Shape5& sizes, const Shape5& strides,
                               const int (&counts)[3], const int (&steps)[3]) {
  const int places[] = {row_places(fill, counts[0]), counts[1], counts[2]};
  return {fill_pixels(data, sizes, strides, kPixelOrder, places, steps),
          static_cast<uint32_t>(strides[1] * static_cast<int64_t>(sizeof(T))), fill == Fill::kPairs,
          counts[0]};
}

struct TurnedBox {
  uint32_t table, to;
  int channel, channels;  // the first, and how many exist
  int first[3];           // pixel of the tensor: column, row, image
  int odd;                // whether that is the second of a pair
};

// Fills in a table of a box's places: how many elements each is from the box's first pixel, and
// its word of the row, row and image.
constexpr int kPlaceBits = 10;
template <typename T>
__device__ inline void tabulate_places(const Transposed<T>& from, uint32_t table, int odd,
                                       int thread, int threads) {
#pragma unroll 1
  for (int place = thread; place < from.count; place += threads) {
    int32_t rest = place;
    const int word = from.by_side[0].split(rest), row = from.by_side[1].split(rest), image = rest;
    const int64_t far = (word * from.step() - odd) * from.sides[0].stride +
                        row * from.sides[1].step * from.sides[1].stride +
                        image * from.sides[2].stride;
    ptx::store_shared(table + place * 8,
                      make_uint2(static_cast<uint32_t>(far),
                                 word | row << kPlaceBits | image << (2 * kPlaceBits)));
  }
}

// Transposes a box of up to kChannels channels. For each place a thread loads a word of each
// channel, zeros for pixels outside of the image. When `may_store` returns, it stores them in rows
// with the 128-byte swizzle, the channels of a pixel side by side. Nobody reads the sums of
// channels that do not exist. A thread has kBlock words under way at a time, of several places if
// the box has fewer channels.
template <bool kPairs, int kChannels, typename T, typename MayStore>
__device__ inline void turn_box(const Transposed<T>& from, const TurnedBox& box, int thread,
                                int threads, const MayStore& may_store) {
  static_assert(sizeof(T) == 2);
  using Word = std::conditional_t<kPairs, uint32_t, uint16_t>;
  constexpr int kMost = (1 << kPlaceBits) - 1, kUnits = kRowBytes / 16;
  constexpr int kPlaces = kBlock / kChannels;
  const auto is_inside = [](int pixel, int size) {
    return static_cast<uint32_t>(pixel) < static_cast<uint32_t>(size);
  };
  const T* const first = from.data + box.first[0] * from.sides[0].stride +
                         box.first[1] * from.sides[1].stride + box.first[2] * from.sides[2].stride;
  const uint64_t first_bytes =
      reinterpret_cast<uint64_t>(first) +
      static_cast<uint64_t>(from.channel_bytes) * static_cast<uint32_t>(box.channel);
  const int step = from.step();
#pragma unroll 1
  for (int place = thread; place < from.count; place += kPlaces * threads) {
    uint32_t words[kPlaces][kChannels];
    int columns[kPlaces], pixels[kPlaces], parity[kPlaces];
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      const bool listed = place + i * threads < from.count;
      const auto entry =
          ptx::load_shared<uint2>(box.table + (listed ? place + i * threads : place) * 8);
      const int word = entry.y & kMost, row = entry.y >> kPlaceBits & kMost;
      const int image = entry.y >> (2 * kPlaceBits);
      const bool exists = is_inside(box.first[0] + word * step - box.odd, from.sides[0].size) &&
                          is_inside(box.first[1] + row * from.sides[1].step, from.sides[1].size) &&
                          is_inside(box.first[2] + image, from.sides[2].size);
      uint64_t bytes =
          first_bytes + static_cast<int64_t>(static_cast<int32_t>(entry.x)) * int64_t{sizeof(T)};
      uint32_t channel_bytes = from.channel_bytes;
      // Products are not kept for the next place.
      asm volatile("" : "+l"(bytes), "+r"(channel_bytes));
      const int present = exists ? box.channels : 0;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const auto far = static_cast<uint64_t>(channel_bytes) * static_cast<uint32_t>(c);
        words[i][c] = c < present ? __ldg(reinterpret_cast<const Word*>(bytes + far)) : 0;
      }
      columns[i] = word * (kPairs ? 2 : 1) - box.odd;  // of the box
      pixels[i] = (image * from.by_side[1].divisor() + row) * from.width + columns[i];
      // Some threads store the second pixel first, so that they meet other banks.
      parity[i] = kPairs ? word >> 2 & 1 : 0;
      if (!listed) columns[i] = from.width;
    }
    may_store();
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
#pragma unroll
      for (int j = 0; j < (kPairs ? 2 : 1); ++j) {
        const int half = j ^ parity[i], pixel = pixels[i] + half;
        if ((kPairs || i > 0) && !is_inside(columns[i] + half, from.width)) continue;
        const uint32_t select = half == 0 ? 0x5410 : 0x7632, to = box.to + pixel * kRowBytes;
#pragma unroll
        for (int unit = 0; unit < kChannels / 8; ++unit) {
          const uint32_t* own = &words[i][unit * 8];
          ptx::store_shared(
              to + ((unit ^ pixel) & (kUnits - 1)) * 16,
              make_uint4(__byte_perm(own[0], own[1], select), __byte_perm(own[2], own[3], select),
                         __byte_perm(own[4], own[5], select), __byte_perm(own[6], own[7], select)));
        }
      }
    }
  }
}

}  // namespace customconv::implicit_gemm::wgrad
