// Boxes out of planes of pixels: TMA brings strips, as the pixels lie in memory, a row
// of 128 bytes of each channel, with the 128-byte swizzle; warps transpose them into what it would
// have brought of pixels whose channels are neighbours.
#pragma once

#include <cstdint>

#include "kernels/grouped/box.cuh"
#include "kernels/grouped/input.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::grouped {

struct StripBox {
  Strips strips;
  int images, H, W;
  int first_column;  // of the image, that the box begins with; where runs are whole rows
  int row_step;      // pixels, between rows of the image that are neighbours in the box
  int pitch, class_rows, image_rows;  // rows of the box: to the next row, class and image of it
  int pieces, box_bytes;
  Divider<int32_t> by_parts, by_runs;
  Divider<int32_t> by_width, by_step, by_class_step;
};

// What a warp transposes at a time, of an image's run: where its strip and its box are, in bytes.
struct alignas(16) StripPart {
  int strip, box;
  int pixel;  // its first one
  int run;
};

// How boxes are made of strips, in shared memory.
struct StripList {
  int* rows;  // where pixels of an image's first run go, in bytes; -1: they are of no box
  StripPart* parts;

  __device__ StripList(char* memory, const StripBox& box)
      : rows(reinterpret_cast<int*>(memory) + kStripSlack),
        parts(reinterpret_cast<StripPart*>(memory + box.strips.row_list_bytes)) {}
};

template <typename T>
constexpr int kStripPixels = kBoxRowBytes / static_cast<int>(sizeof(T));

// Where a tile's runs begin. Far outside the image it is nearer: all of a run is outside.
struct RunPlace {
  int h, w;

  __device__ RunPlace(const StripBox& box, int tile_h, int tile_w)
      : h(min(max(tile_h, -kMostBox), box.H)),
        w(box.strips.whole ? 0 : min(max(tile_w, -kMostBox), box.W)) {}

  __device__ int row(const StripBox& box, int run) const { return h + run * box.row_step; }
  // The pixel of the plane that a run begins with.
  __device__ int pixel(const StripBox& box, int run) const {
    const int at = row(box, run);
    return (box.strips.whole ? at : min(max(at, -1), box.H)) * box.W + w;
  }
};
// TMA's copies begin at whole sixteen bytes: so many pixels before a run does.
template <typename T>
__device__ inline int strip_shift(int pixel) {
  return pixel & (kPieceBytes / static_cast<int>(sizeof(T)) - 1);
}

// Brings the strips of a tile that begins at an image's pixel, from a channel on. One thread.
template <typename T>
__device__ inline void bring_strips(const StripBox& box, const CUtensorMap& map, ptx::Barrier* full,
                                    int channel, int n, const RunPlace& place, char* to) {
  const Strips& s = box.strips;
#pragma unroll 1
  for (int image = 0; image < box.images; ++image) {
#pragma unroll 1
    for (int run = 0; run < s.runs; ++run) {
      const int pixel = place.pixel(box, run), begin = pixel - strip_shift<T>(pixel);
#pragma unroll 1
      for (int strip = 0; strip < s.count; ++strip) {
        ptx::tma_load(to, &map, full, begin + strip * kStripPixels<T>, channel, n + image);
        to += s.strip_bytes;
      }
    }
  }
}

template <typename T>
__device__ inline void list_strips(const Crew& crew, const StripBox& box, const StripList& list) {
  const Strips& s = box.strips;
#pragma unroll 1
  for (int i = crew.thread - kStripSlack; i < s.count * kStripPixels<T>; i += crew.threads) {
    int32_t line = max(i, 0), place = line;
    if (s.whole) {
      place = box.by_width.split(line) - box.first_column;
    } else {
      line = 0;
    }
    const bool exists = i >= 0 && i < s.pixels && place >= 0;
    place = max(place, 0);
    int32_t klass = box.by_step.split(place);
    const bool between = box.by_class_step.split(klass) != 0;
    const int row = klass * box.class_rows + line * box.pitch + place;
    list.rows[i] = exists && !between && place < box.pitch ? row * kBoxRowBytes : -1;
  }
#pragma unroll 1
  for (int i = crew.thread; i < s.parts; i += crew.threads) {
    int32_t line = i;
    const int pixel = box.by_parts.split(line) * kPartPixels;
    int32_t image = line;
    const int run = box.by_runs.split(image);
    list.parts[i] = {(line * s.count + pixel / kStripPixels<T>)*s.strip_bytes +
                         pixel % kStripPixels<T> * static_cast<int>(sizeof(T)),
                     (image * box.image_rows + (s.whole ? 0 : run * box.pitch)) * kBoxRowBytes,
                     pixel, run};
  }
}

// Sixteen pixels' pieces of 16 bits, as matrices: eight pixels of eight channels each. `exists`: of
// a pixel, that it is in the image, as all do where they are `whole`; `nowhere`: for those that are
// of no box.
template <typename Exists>
__device__ inline void turn_part(const StripBox& box, const int* rows, bool whole, uint32_t strip,
                                 uint32_t to, uint32_t nowhere, const Exists& exists) {
  constexpr int kOctets = kPartPixels / 8, kAtOnce = 4;  // pieces
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t row[kOctets];
  bool has_row[kOctets];
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
    const int own = rows[o * 8 + lane % 8];
    has_row[o] = own >= 0;
    row[o] = to + own;
  }
#pragma unroll 1
  for (int first = 0; first < box.pieces; first += kAtOnce) {
    const int piece = first + lane / 8;
    const bool has_piece = piece < box.pieces;
    const int channel = has_piece ? first * 8 + lane : 0;
    const uint32_t place = piece_place(piece, box.box_bytes);
    uint32_t values[kOctets][4];
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      ptx::load_transposed_matrices(swizzle(strip + channel * kBoxRowBytes + o * kPieceBytes),
                                    values[o]);
    }
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      uint32_t (&v)[4] = values[o];
      if (!whole && !exists(o * 8 + lane / 4)) {
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = 0;
      }
      ptx::store_matrices(has_row[o] && has_piece ? swizzle(row[o] + place) : nowhere, v[0], v[1],
                          v[2], v[3]);
    }
  }
}

// The same of 32 bits: two lanes have a pixel, each every second piece.
template <typename Exists>
__device__ inline void turn_part_by_lanes(const StripBox& box, const int* rows, uint32_t strip,
                                          uint32_t to, const Exists& exists) {
  constexpr int kElements = kPieceBytes / 4, kAtOnce = 2;
  const int pixel = static_cast<int>(threadIdx.x) % kPartPixels;
  const int first = static_cast<int>(threadIdx.x) % 32 / kPartPixels;
  const int row = rows[pixel];
  if (row < 0) return;
  const bool is_there = exists(pixel);
#pragma unroll 1
  for (int piece = first; piece < box.pieces; piece += 2 * kAtOnce) {
    uint32_t values[kAtOnce][kElements];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int channel = min(piece + i * 2, box.pieces - 1) * kElements;
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const auto value =
            ptx::load_shared<uint32_t>(swizzle(strip + (channel + e) * kBoxRowBytes + pixel * 4));
        values[i][e] = is_there ? value : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (piece + i * 2 >= box.pieces) break;
      const uint32_t (&v)[kElements] = values[i];
      ptx::store_shared(swizzle(to + row + piece_place(piece + i * 2, box.box_bytes)),
                        uint4{v[0], v[1], v[2], v[3]});
    }
  }
}

// Transposes the strips of a tile that begins at an image's pixel into its boxes.
template <typename T>
__device__ inline void turn_strips(const Crew& crew, const StripBox& box, const StripList& list,
                                   const RunPlace& place, uint32_t strips, uint32_t boxes,
                                   uint32_t nowhere) {
  const Strips& s = box.strips;
#pragma unroll 1
  for (int i = crew.thread / 32; i < s.parts; i += crew.threads / 32) {
    const StripPart part = list.parts[i];
    const int row = place.row(box, part.run);
    const int pixel = part.pixel - strip_shift<T>(place.pixel(box, part.run));  // of the run
    const bool is_row = s.whole || static_cast<unsigned>(row) < static_cast<unsigned>(box.H);
    const int first = s.whole ? -place.h * box.W : -place.w;  // of it in the image
    const int end = !is_row ? first : first + (s.whole ? box.H * box.W : box.W);
    const auto exists = [&](int own) { return pixel + own >= first && pixel + own < end; };
    const int* const rows = list.rows + pixel;
    if constexpr (sizeof(T) == 2) {
      turn_part(box, rows, exists(0) && exists(kPartPixels - 1), strips + part.strip,
                boxes + part.box, nowhere + crew.thread * kPieceBytes, exists);
    } else {
      turn_part_by_lanes(box, rows, strips + part.strip, boxes + part.box, exists);
    }
  }
}

// Zeros for what strips do not reach: pixels beside whole rows.
__device__ inline void clear_boxes(const Crew& crew, char* boxes, int bytes) {
#pragma unroll 1
  for (int i = crew.thread * kPieceBytes; i < bytes; i += crew.threads * kPieceBytes) {
    *reinterpret_cast<uint4*>(boxes + i) = uint4{};
  }
}

}  // namespace customconv::grouped
