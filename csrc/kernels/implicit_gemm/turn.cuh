// Planes of channels-first images: the copy engine fetches pieces of channels, threads turn them.
#pragma once

#include <cstdint>

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/plane.cuh"
#include "kernels/implicit_gemm/tile.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm {

template <typename T>
struct Turn {
  const T* x;
  const char* end;  // of the tensor
  int64_t n, c;     // strides
  int N, C, H, W;
  bool boxed;
  Pieces pieces;
  int positions;  // of a plane
  int period;     // positions of an image in a run
  int stride_h, stride_w;
  int boxed_bytes;
  Divider<int32_t> pitch, plane_rows;
};

// The copy engine takes boxes whose rows start at whole 16 bytes.
template <typename T>
__device__ inline int first_column(int column) {
  return column & ~(16 / static_cast<int>(sizeof(T)) - 1);
}

// Where spans of rows go in a piece. Offsets are affine in the image, the channel and the row, and
// congruent to addresses in the tensor, so that copies of whole 16 bytes fall into place.
template <typename T>
struct Spans {
  int n0, n1;        // images that the plane touches
  int h0;            // the first row of image n0 that it reads
  const char* from;  // image n0, first channel
  int base;          // of that in the piece

  __device__ Spans(const Turn<T>& t, const Corner& at, int chunk) {
    const int c = chunk * (kRowBytes / static_cast<int>(sizeof(T)));
    n0 = at.line;
    t.pitch.split(n0);
    const int row = t.plane_rows.split(n0);
    n1 = min((at.line + t.positions - 1) / t.period, t.N - 1);
    h0 = t.pieces.whole ? 0 : max(at.p + row * t.stride_h, 0);
    from = reinterpret_cast<const char*>(t.x + n0 * t.n + c * t.c);
    base = static_cast<int>(reinterpret_cast<uintptr_t>(from) & 15);
  }
  // Bytes of a channel's plane before the span.
  __device__ int skipped(const Turn<T>& t, const Corner& at, int n) const {
    if (n == n0) return h0 * t.pieces.row & ~15;
    return t.pieces.boxes ? max(at.p, 0) * t.pieces.row & ~15 : 0;
  }
  // From the piece to an image's row 0, which may lie before the piece.
  __device__ int image(const Turn<T>& t, const Corner& at, int n) const {
    return base + (n - n0) * t.pieces.image - skipped(t, at, n);
  }
};

// Starts the copies of a stage's spans; `c` is its first channel. Called by one thread, whose
// arrival, once it is done, completes what `full` waits for.
template <typename T>
__device__ inline void copy_spans(const Turn<T>& t, const CUtensorMap* map, const Corner& at,
                                  const Spans<T>& spans, int piece, int c, char* to,
                                  ptx::Barrier* full) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  const int channels = t.pieces.count * kPieceBytes / kSize;
  if (t.pieces.boxes) {
    const int images = spans.n1 - spans.n0 + 1;
    ptx::expect_bytes(full, images * channels * t.pieces.channel);
    for (int i = 0; i < images; ++i) {
      ptx::copy_box(to + i * t.pieces.image, map, full,
                    spans.skipped(t, at, spans.n0 + i) / kSpanUnit, c, spans.n0 + i);
    }
    return;
  }
  // Copies of whole 16 bytes, but nothing past the tensor's end: its last bytes come one element
  // after the other.
  const auto copy = [&](const char* from, int place, int bytes) {
    const int before = static_cast<int>(reinterpret_cast<uintptr_t>(from) & 15);
    const char* end = from + bytes;
    int all = (before + bytes + 15) & ~15;
    if (from - before + all > t.end) {
      all -= 16;
      char* last = to + place - before + all;
      for (const char* rest = from - before + all; rest < end; rest += kSize, last += kSize) {
        *reinterpret_cast<T*>(last) = *reinterpret_cast<const T*>(rest);
      }
    }
    if (all == 0) return;
    ptx::expect_bytes(full, all);
    ptx::copy_bytes(to + place - before, from - before, all, full);
  };
  // Pieces lie apart by whole 16 bytes, so that what is congruent in the first is in all.
  const char* first = spans.from + int64_t{piece} * (kPieceBytes / kSize) * t.c * kSize;
  const int exist = min(channels, t.C - c);
  if (t.pieces.whole) {
    const int bytes = exist * t.pieces.channel;
    const int64_t image = t.n * kSize;
    int place = spans.base;
    for (int n = spans.n0; n <= spans.n1; ++n, first += image, place += t.pieces.image) {
      copy(first, place, bytes);
    }
    return;
  }
  for (int n = spans.n0; n <= spans.n1; ++n) {
    int32_t row = min(at.line + t.positions - 1 - n * t.period, t.period - 1);
    t.pitch.split(row);
    const int h0 = n == spans.n0 ? spans.h0 : max(at.p, 0);
    const int h1 = min(at.p + row * t.stride_h, t.H - 1);
    if (h1 < h0) continue;
    const char* from = first + (n - spans.n0) * t.n * kSize + int64_t{h0} * t.pieces.row;
    int place = spans.image(t, at, n) + h0 * t.pieces.row;
    for (int i = 0; i < exist; ++i, from += t.c * kSize, place += t.pieces.channel) {
      copy(from, place, (h1 - h0 + 1) * t.pieces.row);
    }
  }
}

// Turns pieces into planes: of each position, channels that lie apart are stored side by side. A
// thread's positions, and where their pixels are in a piece, are the same for all channels of a
// tile.
template <typename T, int kThreads>
class Turner {
 public:
  __device__ Turner(const Turn<T>& t, int thread) : t_(t), thread_(thread) {}

  // `at` is the first pixel of the planes that are turned next.
  __device__ void set(const Corner& at) {
    const Spans<T> spans(t_, at, 0);
    const int skipped = at.q - first_column<T>(at.q);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      pixel_[i] = -1;
      if (i * kThreads >= t_.positions) continue;
      const int position = thread_ + i * kThreads;
      int32_t image = position + at.line;
      const int column = t_.pitch.split(image);
      const int row = t_.plane_rows.split(image);
      const int n = image + at.n;
      const int h = at.p + row * t_.stride_h, w = at.q + column * t_.stride_w;
      const bool inside =
          position < t_.positions && n < t_.N && h >= 0 && h < t_.H && w >= 0 && w < t_.W;
      const int pixel = t_.boxed ? image * t_.pieces.image + row * t_.pieces.row +
                                       (column * t_.stride_w + skipped) * kSize
                                 : spans.image(t_, at, n) + h * t_.pieces.row + w * kSize;
      if (inside) pixel_[i] = pixel;
    }
  }

  // Pieces `first` to `first + count - 1` of a plane; `channels`: what is left of the tensor's,
  // from their first on.
  __device__ void turn(int first, int count, int channels, const char* from, char* plane) const {
    if (channels >= count * kChannels) {
      turn<false>(first, count, channels, from, plane);
    } else {
      turn<true>(first, count, channels, from, plane);
    }
  }

 private:
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kChannels = kPieceBytes / kSize;
  static constexpr int kTurns = kMostPositions / kThreads;
  static_assert(kTurns % 2 == 0);

  // Two pieces of a position at a time, or the one piece of two positions: loads take their time.
  template <bool kTail>
  __device__ void turn(int first, int count, int channels, const char* from, char* plane) const {
    const uint32_t raw = ptx::shared_address(from), to = ptx::shared_address(plane);
    uint32_t words[2][8];
    if (count > 1) {
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        if (thread_ + i * kThreads >= t_.positions) break;
        for (int piece = 0; piece < count; piece += 2) {
          load<kTail>(raw, i, piece, channels, words[0]);
          load<kTail>(raw, i, min(piece + 1, count - 1), channels, words[1]);
          store(to, i, first + piece, words[0]);
          if (piece + 1 < count) store(to, i, first + piece + 1, words[1]);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kTurns; i += 2) {
        if (thread_ + i * kThreads >= t_.positions) break;
        load<kTail>(raw, i, 0, channels, words[0]);
        load<kTail>(raw, i + 1, 0, channels, words[1]);
        store(to, i, first, words[0]);
        if (thread_ + (i + 1) * kThreads < t_.positions) store(to, i + 1, first, words[1]);
      }
    }
  }

  template <bool kTail>
  __device__ void load(uint32_t raw, int i, int piece, int channels, uint32_t (&words)[8]) const {
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, float>;
    const uint32_t pixel = raw + max(pixel_[i], 0) + piece * kChannels * t_.pieces.channel;
    const uint32_t mask = pixel_[i] < 0 ? 0u : ~0u;
    Bits value[kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      value[c] = ptx::load_shared<Bits>(pixel + c * t_.pieces.channel);
      if constexpr (kSize == 4) value[c] = rounded(value[c]);
      if (kTail && piece * kChannels + c >= channels) value[c] = Bits{};
    }
    memcpy(words, value, sizeof words);
#pragma unroll
    for (uint32_t& word : words) word &= mask;
  }

  __device__ void store(uint32_t to, int i, int piece, const uint32_t (&words)[8]) const {
    const uint32_t place = to + (thread_ + i * kThreads) * kRowBytes;
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      const uint32_t* v = words + unit * 4;
      // Rows are swizzled by their number in the plane, which begins at 1024 bytes.
      ptx::store_shared(place + ((piece * kPieceBytes + unit * 16) ^ (thread_ % 8 * 16)),
                        make_uint4(v[0], v[1], v[2], v[3]));
    }
  }

  const Turn<T>& t_;
  int thread_;
  int pixel_[kTurns];  // -1: outside the image
};

}  // namespace customconv::implicit_gemm
