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
  int64_t n, c;  // strides
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

  Spans() = default;
  __device__ Spans(const Turn<T>& t, const Corner& at, int chunk, int piece) {
    constexpr int kSize = static_cast<int>(sizeof(T));
    const int c = chunk * (kRowBytes / kSize) + piece * (kPieceBytes / kSize);
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

// Copies of the spans of one piece after the other. Pieces of a plane lie apart by whole 16 bytes,
// so that what holds for the first piece holds for all.
template <typename T>
class SpanCopies {
 public:
  SpanCopies() = default;
  __device__ SpanCopies(const Turn<T>& t, const Corner& at, int chunk, int lane)
      : spans_(t, at, chunk, 0) {
    if (t.pieces.boxes) return;
    const int at_once = t.pieces.whole ? 32 : 32 / kChannels;
    channel_ = t.pieces.whole ? 0 : lane % kChannels;
    turns_ = (spans_.n1 - spans_.n0) / at_once + 1;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (i >= turns_) break;
      const int n = spans_.n0 + i * at_once + (t.pieces.whole ? lane : lane / kChannels);
      copies_[i] = find(t, at, n);
    }
  }

  // `c` is the piece's first channel.
  __device__ void start(const Turn<T>& t, const CUtensorMap* map, const Corner& at, int piece,
                        int c, char* to, ptx::Barrier* full, int lane) const {
    if (t.pieces.boxes) {
      if (lane > 0) return;
      const int images = spans_.n1 - spans_.n0 + 1;
      ptx::arrive_expecting(full, images * t.pieces.count * kChannels * t.pieces.channel);
      for (int i = 0; i < images; ++i) {
        ptx::copy_box(to + i * t.pieces.image, map, full,
                      spans_.skipped(t, at, spans_.n0 + i) / kSpanUnit, c, spans_.n0 + i);
      }
      return;
    }
    int bytes[kTurns], all = 0;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (i < turns_) all += bytes[i] = clipped(t, copies_[i].bytes, t.C - c);
    }
    all = __reduce_add_sync(~0u, all);
    if (lane == 0) ptx::arrive_expecting(full, all);
    __syncwarp();
    const int64_t ahead = int64_t{piece} * kChannels * t.c * kSize;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (i >= turns_) break;
      if (bytes[i] == 0) continue;
      ptx::copy_bytes(to + copies_[i].to, copies_[i].from + ahead, bytes[i], full);
    }
  }

 private:
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kChannels = kPieceBytes / kSize;
  static constexpr int kTurns = kMostImages * kChannels / 32;

  struct Copy {  // that a lane starts: of one channel, or of all
    const char* from;
    int to, bytes;
  };

  // Bytes of a copy that hold channels that exist, in whole 16 bytes.
  __device__ int clipped(const Turn<T>& t, int bytes, int channels) const {
    if (!t.pieces.whole) return channel_ < channels ? bytes : 0;
    const int all = t.pieces.count * kChannels;
    const int missing = (all - min(channels, all)) * t.pieces.channel;
    return bytes > 0 ? (bytes - missing + 15) & ~15 : 0;
  }

  __device__ Copy find(const Turn<T>& t, const Corner& at, int n) const {
    if (n > spans_.n1) return {nullptr, 0, 0};
    int h0 = 0, h1 = t.H - 1;
    int bytes = (t.pieces.count * kChannels - 1) * t.pieces.channel;
    if (!t.pieces.whole) {
      int32_t row = min(at.line + t.positions - 1 - n * t.period, t.period - 1);
      t.pitch.split(row);
      h0 = n == spans_.n0 ? spans_.h0 : max(at.p, 0);
      h1 = min(at.p + row * t.stride_h, t.H - 1);
      bytes = 0;
    }
    if (h1 < h0) return {nullptr, 0, 0};
    bytes += (h1 - h0 + 1) * t.pieces.row;
    const int64_t offset = (n - spans_.n0) * t.n + channel_ * t.c;
    const char* from = spans_.from + offset * kSize + int64_t{h0} * t.pieces.row;
    const int before = static_cast<int>(reinterpret_cast<uintptr_t>(from) & 15);
    const int to =
        spans_.image(t, at, n) + channel_ * t.pieces.channel + h0 * t.pieces.row - before;
    return {from - before, to, t.pieces.whole ? before + bytes : (before + bytes + 15) & ~15};
  }

  Spans<T> spans_;
  int channel_, turns_;
  Copy copies_[kTurns];
};

// Turns pieces into planes: of each position, channels that lie apart are stored side by side. A
// thread's positions, and where their pixels are in a piece, are the same for all channels of a
// tile.
template <typename T, int kThreads>
class Turner {
 public:
  __device__ Turner(const Turn<T>& t, int thread) : t_(t), thread_(thread) {}

  // `at` is the first pixel of the planes that are turned next.
  __device__ void set(const Corner& at) {
    const Spans<T> spans(t_, at, 0, 0);
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
