// Input of any layout: threads copy, of each channel, the rows of the image that a tile needs.
#pragma once

#include "kernels/implicit_gemm/mma_sync/work.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm::mma_sync {

// Where a pair of neighbouring pixels of the output is, from the corner of the tile.
struct Spot {
  int n, row, pair;
};

template <typename T>
__device__ inline Spot locate(const RowSource<T>& s, int number) {
  int32_t n = number;
  const int pair = s.pairs.split(n);
  const int row = s.output_rows.split(n);
  return {n, row, pair};
}

// The row of a plane, counted over the images, that a spot's first tap reads.
template <typename T>
__device__ inline int plane_row(const RowSource<T>& s, const Spot& spot) {
  return spot.n * s.row.period + spot.row * s.row.per_output;
}

// The copies of a channel: the same for all channels of a tile. Where they come from is listed in
// shared memory. Threads take turns at them; where they are few, warps take turns at the channels.
// Without rows the tile's pixels follow each other.
template <typename T, bool kHasRows>
class RowCopies {
 public:
  __device__ RowCopies(const Params<T>& p, void* list, int thread)
      : p_(p),
        s_(p.source),
        from_(static_cast<const T**>(list)),
        list_(static_cast<uint64_t*>(list)),
        thread_(thread) {
    const bool few = s_.vectors <= kRowThreads;
    threads_ = few ? 32 : kRowThreads;
    first_ = thread % threads_;
    first_channel_ = thread / threads_;
    channel_step_ = kRowThreads / threads_;
  }

  // For planes whose first pixel is `at`.
  __device__ void set(const Corner& at) {
    const int pixels = s_.row.vector / kSize;  // of a copy
    const int first = plane_row(s_, locate(s_, at.pair));
    // What a run does not reach is not read.
    const int rows = p_.run == 0
                         ? INT32_MAX
                         : plane_row(s_, locate(s_, at.pair + p_.run - 1)) - first + s_.reach + 1;
    ptx::named_barrier_sync<kRowThreads>(kRowBarrier);  // the list is no longer read
    for (int vector = thread_; vector < s_.vectors; vector += kRowThreads) {
      int32_t n;
      int h, w;
      bool exists = true;
      if constexpr (!kHasRows) {
        const int slot = vector * pixels;
        const Spot spot = locate(s_, at.pair + slot / 2);
        n = spot.n;
        h = spot.row * p_.stride_h;
        w = (spot.pair * 2 + slot % 2) * p_.stride_w;
      } else {
        int32_t row = vector;
        w = s_.vectors_in_row.split(row) * pixels - s_.row.slack;
        exists = row < rows;
        n = first + row;
        h = s_.period.split(n) * s_.row.row_step;
      }
      n += at.n;
      h += at.p;
      w += at.q;
      if (kHasRows && s_.row.shifted) {
        exists = exists && n < s_.N && h >= 0 && h < s_.H;
        list_[vector] = exists ? span_of(s_.x + n * s_.n + h * s_.h + w, w) : 0;
        continue;
      }
      exists = exists && n < s_.N && h >= 0 && h < s_.H && w >= 0 && w < s_.W;
      from_[vector] = exists ? s_.x + n * s_.n + h * s_.h + w * s_.w : nullptr;
    }
    ptx::named_barrier_sync<kRowThreads>(kRowBarrier);
  }

  // Copies channels [first, first + count) into a stage, zeros where the tensor ends, and arrives.
  __device__ void copy(int first, int count, char* to, ptx::Barrier* full) const {
    const uint32_t stage = ptx::shared_address(to);
    if (kHasRows && s_.row.shifted) {
      copy_shifted(first, count, stage);
      ptx::arrive(full);
      return;
    }
    switch (s_.row.vector) {
      case 16:
        copy_vectors<16>(first, count, stage);
        break;
      case 8:
        copy_vectors<8>(first, count, stage);
        break;
      case 4:
        copy_vectors<4>(first, count, stage);
        break;
      default:
        if constexpr (kSize == 2) copy_elements(first, count, stage);
        ptx::arrive(full);
        return;
    }
    ptx::arrive_after_copies(full);
  }

 private:
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kSpan = 16 / kSize;  // elements of a shifted vector

  // What is listed of a shifted vector: where its first element would be, and which of them are in
  // the image, from the first to behind the last; 0 where none is. Pointers leave the upper byte.
  __device__ uint64_t span_of(const T* from, int w) const {
    const int first = max(0, -w), last = min(kSpan, s_.W - w);
    if (first >= last) return 0;
    return reinterpret_cast<uint64_t>(from) | static_cast<uint64_t>(first) << 56 |
           static_cast<uint64_t>(last) << 60;
  }

  // Rows that begin anywhere. Words of four bytes are loaded where they are aligned and lie in the
  // row; of 16-bit elements a row may begin in the middle of one: then words are shifted by half,
  // and what shares its word with another row is copied alone.
  static constexpr bool kHalves = kSize == 2;
  struct Shifted {
    uint32_t word[kHalves ? 5 : 4];
    uint16_t edge[2];
  };
  struct Span {
    const T* at;
    int from, to;

    __device__ Span(uint64_t listed, int64_t offset)
        : at(reinterpret_cast<const T*>(listed << 8 >> 8) + offset),
          from(static_cast<int>(listed >> 56 & 15)),
          to(static_cast<int>(listed >> 60)) {}
    __device__ bool exists() const { return from < to; }
    // 1 where the first element is the second half of an aligned word.
    __device__ int shift() const {
      return kHalves ? static_cast<int>(reinterpret_cast<uint64_t>(at) >> 1 & 1) : 0;
    }
    __device__ bool has_edge(int end) const {
      return kHalves && exists() && ((end == 0 ? from : to) + shift()) % 2 != 0;
    }
    __device__ int edge(int end) const { return end == 0 ? from : to - 1; }
  };

  static __device__ Shifted load_shifted(const Span& span) {
    Shifted loaded{};
    const int shift = span.shift();
    const uint32_t elements = ((1u << span.to) - (1u << span.from)) << shift;
    const auto* aligned = reinterpret_cast<const uint32_t*>(span.at - shift);
#pragma unroll
    for (int i = 0; i < (kHalves ? 5 : 4); ++i) {
      const bool whole = kHalves ? (elements >> 2 * i & 3) == 3 : (elements >> i & 1) != 0;
      if (whole) loaded.word[i] = __ldg(aligned + i);
    }
#pragma unroll
    for (int end = 0; end < 2; ++end) {
      if (span.has_edge(end)) {
        loaded.edge[end] = __ldg(reinterpret_cast<const uint16_t*>(span.at) + span.edge(end));
      }
    }
    return loaded;
  }
  static __device__ void store_shifted(const Span& span, const Shifted& loaded, uint32_t to) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      word[i] = loaded.word[i];
      if constexpr (kHalves) {
        word[i] = __funnelshift_r(word[i], loaded.word[i + 1], span.shift() * 16);
      }
    }
    ptx::store_shared(to, make_uint4(word[0], word[1], word[2], word[3]));
#pragma unroll
    for (int end = 0; end < 2; ++end) {
      if (span.has_edge(end)) ptx::store_shared(to + span.edge(end) * kSize, loaded.edge[end]);
    }
  }

  // Some are under way at the same time: of several channels or, where those are few, vectors.
  __device__ void copy_shifted(int first, int count, uint32_t stage) const {
    constexpr int kBatch = 2;
    const int exist = min(count, s_.C - first);
    const int channels = s_.flat ? 1 : kBatch, vectors = kBatch / channels;
    for (int vector = first_; vector < s_.vectors; vector += vectors * threads_) {
      for (int c = first_channel_; c < count; c += channels * channel_step_) {
        const auto own_vector = [&](int b) { return vector + (s_.flat ? b * threads_ : 0); };
        const auto own_channel = [&](int b) { return c + (s_.flat ? 0 : b * channel_step_); };
        const auto span_at = [&](int b) {
          const bool exists = own_vector(b) < s_.vectors && own_channel(b) < exist;
          return Span(exists ? list_[own_vector(b)] : 0, (first + own_channel(b)) * s_.c);
        };
        Shifted loaded[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) loaded[b] = load_shifted(span_at(b));
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          if (own_vector(b) >= s_.vectors || own_channel(b) >= count) continue;
          store_shifted(span_at(b), loaded[b],
                        stage + own_channel(b) * s_.row.channel_bytes + own_vector(b) * 16);
        }
      }
    }
  }

  template <int kBytes>
  __device__ void copy_vectors(int first, int count, uint32_t stage) const {
    const int exist = min(count, s_.C - first);
    const int64_t step = channel_step_ * s_.c;
    const int to_step = channel_step_ * s_.row.channel_bytes;
    const int64_t first_offset = (first + first_channel_) * s_.c;
    stage += first_channel_ * s_.row.channel_bytes;
    for (int vector = first_; vector < s_.vectors; vector += threads_) {
      const T* source = from_[vector];
      const bool exists = source != nullptr;
      source = exists ? source + first_offset : s_.x;
      const int64_t source_step = exists ? step : 0;
      uint32_t to = stage + vector * kBytes;
      int c = first_channel_;
      const auto copy = [&](auto number) {
        // A copy reads its address late: with an address each, they need not wait for each other.
        constexpr int kNumber = decltype(number)::value;
        const T* address[kNumber];
#pragma unroll
        for (int i = 0; i < kNumber; ++i) address[i] = source + i * source_step;
#pragma unroll
        for (int i = 0; i < kNumber; ++i) {
          ptx::copy_async<kBytes>(to + i * to_step, address[i], exists);
        }
        c += kNumber * channel_step_;
        source += kNumber * source_step;
        to += kNumber * to_step;
      };
#pragma unroll 1
      while (c + 7 * channel_step_ < exist) copy(std::integral_constant<int, 8>());
      if (c + 3 * channel_step_ < exist) copy(std::integral_constant<int, 4>());
#pragma unroll 1
      while (c < exist) copy(std::integral_constant<int, 1>());
      for (; c < count; c += channel_step_, to += to_step) {
        ptx::copy_async<kBytes>(to, s_.x, false);
      }
    }
  }

  // 16-bit elements at odd places: no asynchronous copy is so small. Those of some channels are
  // under way at the same time.
  __device__ void copy_elements(int first, int count, uint32_t stage) const {
    constexpr int kBatch = 16;
    const int exist = min(count, s_.C - first);
    const int64_t step = channel_step_ * s_.c;
    const int to_step = channel_step_ * s_.row.channel_bytes;
    const int64_t first_offset = (first + first_channel_) * s_.c;
    stage += first_channel_ * s_.row.channel_bytes;
    for (int vector = first_; vector < s_.vectors; vector += threads_) {
      const auto* source = reinterpret_cast<const uint16_t*>(from_[vector]);
      const bool exists = source != nullptr;
      source += first_offset;
      uint32_t to = stage + vector * kSize;
      for (int c = first_channel_; c < count; c += kBatch * channel_step_) {
        uint16_t value[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b, source += step) {
          value[b] = 0;
          if (exists && c + b * channel_step_ < exist) value[b] = *source;
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b, to += to_step) {
          if (c + b * channel_step_ < count) ptx::store_shared(to, value[b]);
        }
      }
    }
  }

  const Params<T>& p_;
  const RowSource<T>& s_;
  const T** from_;
  uint64_t* list_;  // the same memory, of shifted vectors
  int thread_, threads_, first_, first_channel_, channel_step_;
};

// Called by kRowThreads.
template <typename T, int kChannels, Fetch kFetch>
__device__ inline void copy_rows(const Params<T>& p, const Shared& shared, int thread) {
  constexpr int kPiece = kPieceBytes / static_cast<int>(sizeof(T));
  const bool one_plane = p.h.planes * p.w_axis.planes == 1;
  RowCopies<T, kFetch != Fetch::kPieces> copies(p, shared.copies, thread);
  Place x;
  for (Walk<T> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    if (walk.is_new_tile() || !one_plane) copies.set(walk.plane());
    ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
    const int count = p.source.flat ? p.source.C : walk.step.pieces(p) * kPiece;
    copies.copy(walk.work.at.c + walk.step.chunk * p.chunk * kPiece, count,
                shared.input + x.stage * p.stage_bytes, &shared.x_full[x.stage]);
    x.advance(p.x_stages);
  }
}

}  // namespace customconv::implicit_gemm::mma_sync
