// Boxes out of planes of pixels: the copy engine brings strips, as the pixels lie in memory, a row
// of 128 bytes of each channel, with the 128-byte swizzle; warps turn them into what it would have
// brought of pixels whose channels are neighbours.
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
  int tasks;  // parts of runs by groups of pieces
  Divider<int32_t> by_groups, by_parts, by_runs;
  Divider<int32_t> by_planes, by_width, by_step, by_class_step;
};

// Of a warp's turn: pixels, and pieces of their channels.
template <typename T>
constexpr int kPartPixels = sizeof(T) == 2 ? 16 : 32;
template <typename T>
constexpr int kPartPieces = sizeof(T) == 2 ? 8 : 2;
template <typename T>
constexpr int kStripPixels = kBoxRowBytes / static_cast<int>(sizeof(T));

// Where a tile's runs begin. Far outside the image it is nearer: all of a run is outside.
struct RunPlace {
  int h, w;

  __device__ RunPlace(const StripBox& box, int tile_h, int tile_w)
      : h(min(max(tile_h, -kMostBox), box.H)),
        w(box.strips.whole ? 0 : min(max(tile_w, -kMostBox), box.W)) {}

  __device__ int row(const StripBox& box, int run) const { return h + run * box.row_step; }
};

// Brings the strips of a tile that begins at an image's pixel, from a channel on. One thread.
template <typename T>
__device__ inline void bring_strips(const StripBox& box, const CUtensorMap& map, ptx::Barrier* full,
                                    int channel, int n, const RunPlace& place, char* to) {
  const Strips& s = box.strips;
  const int plane = box.H * box.W, first_channel = box.by_planes.quotient(channel);
#pragma unroll 1
  for (int image = 0; image < box.images; ++image) {
#pragma unroll 1
    for (int run = 0; run < s.runs; ++run) {
      const int row = s.whole ? place.h : min(max(place.row(box, run), -1), box.H);
      const int begin = row * box.W + place.w;
#pragma unroll 1
      for (int strip = 0; strip < s.count; ++strip) {
#pragma unroll 1
        for (int i = 0; i < s.planes; ++i) {
          ptx::copy_box(to, &map, full, i * plane + begin + strip * kStripPixels<T>, first_channel,
                        n + image);
          to += s.plane_rows * kBoxRowBytes;
        }
      }
    }
  }
}

// Lists the rows of the box, in bytes, where the pixels of an image's first run go; -1 where they
// are not of the box.
template <typename T>
__device__ inline void list_strip_rows(const Crew& crew, const StripBox& box, int* list) {
  const Strips& s = box.strips;
#pragma unroll 1
  for (int i = crew.thread; i < s.count * kStripPixels<T>; i += crew.threads) {
    int32_t line = i, place = i;
    if (s.whole)
      place = box.by_width.split(line) - box.first_column;
    else
      line = 0;
    const bool exists = i < s.pixels && place >= 0;
    place = max(place, 0);
    int32_t klass = box.by_step.split(place);
    const bool between = box.by_class_step.split(klass) != 0;
    const int row = klass * box.class_rows + line * box.pitch + place;
    list[i] = exists && !between && place < box.pitch ? row * kBoxRowBytes : -1;
  }
}

// A part of a run as a warp turns it.
struct Part {
  const int* list;  // of its pixels
  int pixel, end;   // the first one of these that are in the image, and behind the last one
  int first_piece;
  uint32_t strip, box;  // where its pixels are, and their image or row
  uint32_t nowhere;     // for what is of no box
};

// Sixteen pixels of 64 channels: matrices of eight pixels of eight channels, and of these of those.
template <typename T>
__device__ inline void turn_part(const StripBox& box, const Part& part) {
  constexpr int kOctets = 2, kTurns = 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t values[kTurns][kOctets][4];
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int piece = part.first_piece + i * 4 + lane / 8;
    int32_t channel = piece < box.pieces ? part.first_piece * 8 + i * 32 + lane : 0;
    const int plane = box.by_planes.split(channel);
    const uint32_t from = part.strip + (plane * box.strips.plane_rows + channel) * kBoxRowBytes;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      ptx::load_transposed_matrices(swizzle(from + o * kPieceBytes), values[i][o]);
    }
  }
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
    const int own = o * 8 + lane / 4;
    if (own >= part.pixel && own < part.end) continue;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) values[i][o][e] = 0;
    }
  }
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
    const int row = part.list[o * 8 + lane % 8];
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (part.first_piece + i * 4 >= box.pieces) break;
      const int piece = part.first_piece + i * 4 + lane / 8;
      const uint32_t to = swizzle(part.box + row + piece_place(piece, box.box_bytes));
      const uint32_t (&v)[4] = values[i][o];
      ptx::store_matrices(row >= 0 && piece < box.pieces ? to : part.nowhere, v[0], v[1], v[2],
                          v[3]);
    }
  }
}

// A lane a pixel, of eight channels.
template <>
__device__ inline void turn_part<float>(const StripBox& box, const Part& part) {
  constexpr int kElements = kPieceBytes / 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = part.list[lane];
  const bool exists = lane >= part.pixel && lane < part.end;
  uint32_t values[kPartPieces<float>][kElements];
#pragma unroll
  for (int i = 0; i < kPartPieces<float>; ++i) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      int32_t channel = min(part.first_piece + i, box.pieces - 1) * kElements + e;
      const int plane = box.by_planes.split(channel);
      const uint32_t from = part.strip + (plane * box.strips.plane_rows + channel) * kBoxRowBytes;
      const auto value = ptx::load_shared<uint32_t>(swizzle(from + lane * 4));
      values[i][e] = exists ? value : 0;
    }
  }
#pragma unroll
  for (int i = 0; i < kPartPieces<float>; ++i) {
    const int piece = part.first_piece + i;
    if (row < 0 || piece >= box.pieces) break;
    const uint32_t (&v)[kElements] = values[i];
    ptx::store_shared(swizzle(part.box + row + piece_place(piece, box.box_bytes)),
                      uint4{v[0], v[1], v[2], v[3]});
  }
}

// Turns the strips of a tile that begins at an image's pixel into its boxes.
template <typename T>
__device__ inline void turn_strips(const Crew& crew, const StripBox& box, const int* list,
                                   const RunPlace& place, uint32_t strips, uint32_t boxes,
                                   uint32_t nowhere) {
  const Strips& s = box.strips;
  const int warp = crew.thread / 32;
#pragma unroll 1
  for (int task = warp; task < box.tasks; task += crew.threads / 32) {
    int32_t image = task;
    const int group = box.by_groups.split(image);
    const int pixel = box.by_parts.split(image) * kPartPixels<T>, line = image;
    const int run = box.by_runs.split(image);
    const int row = place.row(box, run);
    const bool exists = s.whole || static_cast<unsigned>(row) < static_cast<unsigned>(box.H);
    Part part;
    part.list = list + pixel;
    part.pixel = (s.whole ? -place.h * box.W : -place.w) - pixel;
    part.end = !exists ? part.pixel : part.pixel + (s.whole ? box.H * box.W : box.W);
    part.first_piece = group * kPartPieces<T>;
    part.strip = strips + (line * s.count + pixel / kStripPixels<T>)*s.strip_bytes +
                 pixel % kStripPixels<T> * static_cast<int>(sizeof(T));
    part.box = boxes + (image * box.image_rows + (s.whole ? 0 : run * box.pitch)) * kBoxRowBytes;
    part.nowhere = nowhere + crew.thread * kPieceBytes;
    turn_part<T>(box, part);
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
