// Tiles: how they come to shared memory, where their pieces lie, and how results leave.
#pragma once

#include <type_traits>

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/depthwise/bands/geometry.h"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::depthwise::bands {

struct Strides {
  int64_t n, c;
  int32_t h, w;
};
template <typename T>
struct Image {
  T* data;
  Strides stride;
  int N, H, W;

  __device__ T* at(int n, int c, int h, int w) const {
    return data + n * stride.n + c * stride.c + int64_t{h} * stride.h + int64_t{w} * stride.w;
  }
};

// A tile of an image in shared memory: rows of planes.
struct Box {
  int pitch, plane;              // bytes from row to row and from image to image
  int unit;                      // columns that are copied at once
  int units;                     // of a row
  int lines;                     // rows that a block's threads have at once, with so many units
  Divider<int32_t> lanes, rows;  // rows: of an image of the tile
};

// Tiles of a problem, and a tile's pieces.
struct Tiling {
  Divider<int32_t> channels, columns, rows;            // tiles
  Divider<int32_t> piece_rows, piece_columns, images;  // of a tile
  int pieces;
  int height;  // of a piece
};

// The first of a tile's images, channels, rows and columns.
struct Place {
  int n, c, h, w;
};
__device__ inline Place place_of(const Tiling& tiling, int32_t tile) {
  Place place{};
  place.w = tiling.columns.split(tile) * tiling.piece_columns.divisor() * kPieceColumns;
  place.h = tiling.rows.split(tile) * tiling.piece_rows.divisor() * tiling.height;
  place.n = tile * tiling.images.divisor();
  return place;
}

// A piece of a tile's channel: its first image, row and column.
struct Piece {
  bool exists;
  int n, h, w;

  __device__ int in(const Box& box) const { return n * box.plane + h * box.pitch + w * 2; }
};
__device__ inline Piece piece_of(const Tiling& tiling, int number) {
  Piece piece{};
  piece.exists = number < tiling.pieces;
  int32_t rest = piece.exists ? number : 0;
  piece.h = tiling.piece_rows.split(rest) * tiling.height;
  piece.w = tiling.piece_columns.split(rest) * kPieceColumns;
  piece.n = rest;
  return piece;
}

__device__ inline bool is_within(int i, int size) {
  return static_cast<unsigned>(i) < static_cast<unsigned>(size);
}

// Calls `use` with a unit of columns as a constant.
template <typename Use>
__device__ inline void with_unit(int unit, Use use) {
  switch (unit) {
    case 8:
      return use(std::integral_constant<int, 8>{});
    case 4:
      return use(std::integral_constant<int, 4>{});
    case 2:
      return use(std::integral_constant<int, 2>{});
    default:
      return use(std::integral_constant<int, 1>{});
  }
}

template <int kBytes>
using Bits = std::conditional_t<
    kBytes == 2, uint16_t,
    std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 8, uint2, uint4>>>;

// Calls `use` with a plane, a row and a unit, for each of a thread's: neighbours have neighbouring
// units of a row.
template <int kAtOnce, typename Use>
__device__ inline void for_each_unit(const Box& box, int planes, Use use) {
  int32_t line = static_cast<int>(threadIdx.x);
  const int first = box.lanes.split(line), lanes = box.lanes.divisor();
  if (line >= box.lines) return;
  const int rows = planes * box.rows.divisor();
  for (int unit = first; unit < box.units; unit += lanes) {
#pragma unroll kAtOnce
    for (int i = line; i < rows; i += box.lines) {
      int32_t n = i;
      const int row = box.rows.split(n);
      use(n, row, unit);
    }
  }
}

// Brings the rows of a tile, of planes, which begin at `place`; zeros where the image has none.
template <int kUnit, typename T>
__device__ inline void bring_planes(const Image<const T>& image, const Box& box, int channels,
                                    const Divider<int32_t>& images, const Place& place, char* to) {
  for_each_unit<4>(box, channels * images.divisor(), [&](int plane, int row, int unit) {
    int32_t c = plane;
    const int n = place.n + images.split(c), h = place.h + row, w = place.w + unit * kUnit;
    const bool exists = n < image.N && is_within(h, image.H) && is_within(w, image.W);
    const T* from = image.at(n, place.c + c, h, w);
    char* goes = to + plane * box.plane + row * box.pitch + unit * kUnit * 2;
    if constexpr (kUnit == 1) {
      const auto* bits = reinterpret_cast<const uint16_t*>(exists ? from : image.data);
      const uint16_t value = __ldg(bits);
      *reinterpret_cast<uint16_t*>(goes) = exists ? value : uint16_t{0};
    } else if (exists) {
      ptx::copy_async<kUnit * 2>(ptx::shared_address(goes), from, true);
    } else {
      *reinterpret_cast<Bits<kUnit * 2>*>(goes) = Bits<kUnit * 2>{};
    }
  });
}

// The first or the second halves of two words.
__device__ inline uint32_t pair_of(uint32_t a, uint32_t b, int second) {
  return __byte_perm(a, b, second == 0 ? 0x5410 : 0x7632);
}

// Where a tile's channel begins. Eight channels further on lie in the other half of all banks, so
// that neighbouring threads may bring both.
template <Source kSource, int kChannels>
__device__ inline int channel_place(const Box& box, int images, int channel) {
  constexpr bool kShifts = kSource == Source::kVectors && kChannels > 8;
  return channel * images * box.plane + (kShifts ? channel / 8 * kShiftBytes : 0);
}

// Channels of eight neighbouring pixels.
template <int kVector>
struct Pixels {
  alignas(16) uint32_t words[kPieceColumns][kVector / 2];

  // A channel of all of them.
  __device__ uint4 plane(int c) const {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = pair_of(words[2 * i][c / 2], words[2 * i + 1][c / 2], c % 2);
    }
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
};

// Brings the rows of a tile where neighbouring channels are neighbours in memory; a unit is eight
// columns of at most eight channels.
template <int kChannels, typename T>
__device__ inline void bring_channels(const Image<const T>& image, const Box& box, int images,
                                      const Place& place, char* to) {
  constexpr int kVector = vector_of(kChannels), kVectors = kChannels / kVector;
  using Vector = Bits<kVector * 2>;
  for_each_unit<1>(box, images, [&](int n, int row, int unit) {
    const int first = unit % kVectors * kVector, block = unit / kVectors;
    const int h = place.h + row, w = place.w + block * kPieceColumns;
    const bool has_row = place.n + n < image.N && is_within(h, image.H);
    const T* from = image.at(place.n + n, place.c + first, h, w);
    Pixels<kVector> pixels;
#pragma unroll
    for (int e = 0; e < kPieceColumns; ++e) {
      Vector vector{};
      if (has_row && is_within(w + e, image.W)) {
        vector = *reinterpret_cast<const Vector*>(from + int64_t{e} * image.stride.w);
      }
      *reinterpret_cast<Vector*>(pixels.words[e]) = vector;
    }
    char* goes = to + channel_place<Source::kVectors, kChannels>(box, images, first) +
                 n * box.plane + row * box.pitch + block * kBlockBytes;
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      *reinterpret_cast<uint4*>(goes + c * images * box.plane) = pixels.plane(c);
    }
  });
}

template <Source kSource, int kChannels, typename T>
__device__ inline void bring(const Image<const T>& image, const Box& box,
                             const Divider<int32_t>& images, const Place& place, char* to) {
  if constexpr (kSource == Source::kVectors) {
    bring_channels<kChannels>(image, box, images.divisor(), place, to);
  } else {
    with_unit(box.unit, [&](auto unit) {
      bring_planes<unit.value>(image, box, kChannels, images, place, to);
    });
  }
}

template <int kUnit, typename T>
__device__ inline void store_planes(const Image<T>& image, const Box& box, int channels,
                                    const Divider<int32_t>& images, const Place& place,
                                    const char* from) {
  using Unit = Bits<kUnit * 2>;
  for_each_unit<4>(box, channels * images.divisor(), [&](int plane, int row, int unit) {
    int32_t c = plane;
    const int n = place.n + images.split(c), h = place.h + row, w = place.w + unit * kUnit;
    if (n >= image.N || h >= image.H || w >= image.W) return;
    const char* own = from + plane * box.plane + row * box.pitch + unit * kUnit * 2;
    *reinterpret_cast<Unit*>(image.at(n, place.c + c, h, w)) = *reinterpret_cast<const Unit*>(own);
  });
}

template <int kChannels, typename T>
__device__ inline void store_channels(const Image<T>& image, const Box& box, int images,
                                      const Place& place, const char* from) {
  constexpr int kVector = vector_of(kChannels), kVectors = kChannels / kVector;
  using Vector = Bits<kVector * 2>;
  for_each_unit<1>(box, images, [&](int n, int row, int unit) {
    const int first = unit % kVectors * kVector, block = unit / kVectors;
    const int h = place.h + row, w = place.w + block * kPieceColumns;
    if (place.n + n >= image.N || h >= image.H) return;
    const char* own = from + channel_place<Source::kVectors, kChannels>(box, images, first) +
                      n * box.plane + row * box.pitch + block * kBlockBytes;
    alignas(16) uint32_t planes[kVector][4];
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      *reinterpret_cast<uint4*>(planes[c]) =
          *reinterpret_cast<const uint4*>(own + c * images * box.plane);
    }
    T* to = image.at(place.n + n, place.c + first, h, w);
#pragma unroll
    for (int e = 0; e < kPieceColumns; ++e) {
      if (w + e >= image.W) break;
      alignas(16) uint32_t words[kVector / 2];
#pragma unroll
      for (int i = 0; i < kVector / 2; ++i) {
        words[i] = pair_of(planes[2 * i][e / 2], planes[2 * i + 1][e / 2], e % 2);
      }
      *reinterpret_cast<Vector*>(to + int64_t{e} * image.stride.w) =
          *reinterpret_cast<const Vector*>(words);
    }
  });
}

// Stores the rows of a tile that exist.
template <Source kSource, int kChannels, typename T>
__device__ inline void store(const Image<T>& image, const Box& box, const Divider<int32_t>& images,
                             const Place& place, const char* from) {
  if constexpr (kSource == Source::kVectors) {
    store_channels<kChannels>(image, box, images.divisor(), place, from);
  } else {
    with_unit(box.unit, [&](auto unit) {
      store_planes<unit.value>(image, box, kChannels, images, place, from);
    });
  }
}

}  // namespace customconv::depthwise::bands
