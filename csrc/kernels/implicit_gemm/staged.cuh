// Rows that begin anywhere: threads copy the aligned 16 bytes that hold them to shared memory, and
// put vectors in order from there while the next step's are on their way.
#pragma once

#include "kernels/implicit_gemm/rows.cuh"
#include "kernels/implicit_gemm/unit.cuh"

namespace customconv::implicit_gemm {

// `kHasRows`: else a tile's pixels follow each other, those of each image from whole vectors on.
template <typename T, bool kHasRows>
class StagedRows {
 public:
  __device__ StagedRows(const Params<T>& p, int thread)
      : p_(p),
        s_(p.source),
        begin_(reinterpret_cast<uint64_t>(s_.x) & kWhole),
        end_(reinterpret_cast<uint64_t>(s_.end)),
        channel_bytes_(s_.c * int64_t{sizeof(T)}) {
    const bool few = s_.vectors <= kRowThreads;
    threads_ = few ? 32 : kRowThreads;
    first_ = thread % threads_;
    first_channel_ = thread / threads_;
    channel_step_ = kRowThreads / threads_;
    from_step_ = channel_step_ * channel_bytes_;
    to_step_ = channel_step_ * s_.row.slots * kUnitBytes;
  }

  // Starts to copy what holds channels [first, first + count) of a plane whose first pixel is `at`,
  // as they lie in memory.
  __device__ void bring(const Corner& at, int first, int count, char* raw) const {
    const int exist = min(count, s_.C - first);
    const uint32_t raw_at = ptx::shared_address(raw) + first_channel_ * s_.row.slots * kUnitBytes;
    each_vector(at, first, [&](int vector, const Vector& own) {
      if (!own.exists) return;  // else the vector before may need it
      const uint64_t last = own.from + (exist - 1 - first_channel_) * channel_bytes_;
      const bool inside = (own.from & kWhole) >= begin_ && (last & kWhole) + 2 * kUnitBytes <= end_;
      uint64_t from = own.from;
      uint32_t to = raw_at + own.slot * kUnitBytes;
      const auto each_channel = [&](const auto& copy) {
#pragma unroll 4
        for (int c = first_channel_; c < exist; c += channel_step_) {
          copy(to, from & kWhole);
          if (own.ends) copy(to + kUnitBytes, (from & kWhole) + kUnitBytes);
          from += from_step_;
          to += to_step_;
        }
      };
      if (inside) {
        each_channel([](uint32_t to, uint64_t from) { copy(to, from, kUnitBytes); });
      } else {
        each_channel([&](uint32_t to, uint64_t from) { copy_end(to, from); });
      }
    });
  }

  // Puts them in order, zeros where the tensor ends.
  __device__ void put(const Corner& at, int first, int count, const char* raw, char* stage) const {
    const int exist = min(count, s_.C - first);
    const uint32_t raw_at = ptx::shared_address(raw) + first_channel_ * s_.row.slots * kUnitBytes;
    const uint32_t stage_at = ptx::shared_address(stage) + first_channel_ * s_.row.channel_bytes;
    each_vector(at, first, [&](int vector, const Vector& own) {
      const uint4 mask = mask_of<T>(own.first, own.last);
      auto begin = static_cast<uint32_t>(own.from);
      uint32_t from = raw_at + own.slot * kUnitBytes;
      uint32_t to = stage_at + vector * kUnitBytes;
      int c = first_channel_;
      const auto put_some = [&](auto number) {
        constexpr int kNumber = decltype(number)::value;
        uint4 units[kNumber][2];
#pragma unroll
        for (int i = 0; i < kNumber; ++i, from += to_step_) {
          units[i][0] = ptx::load_shared<uint4>(from);
          units[i][1] = ptx::load_shared<uint4>(from + kUnitBytes);
        }
#pragma unroll
        for (int i = 0; i < kNumber; ++i) {
          const uint4 found =
              shifted(units[i][0], units[i][1], static_cast<int>(begin % kUnitBytes));
          ptx::store_shared(to, make_uint4(found.x & mask.x, found.y & mask.y, found.z & mask.z,
                                           found.w & mask.w));
          begin += static_cast<uint32_t>(from_step_);
          to += channel_step_ * s_.row.channel_bytes;
        }
        c += kNumber * channel_step_;
      };
#pragma unroll 1
      while (c + channel_step_ < exist) put_some(std::integral_constant<int, 2>());
      if (c < exist) put_some(std::integral_constant<int, 1>());
      for (; c < count; c += channel_step_) {
        ptx::store_shared(to, make_uint4(0, 0, 0, 0));
        to += channel_step_ * s_.row.channel_bytes;
      }
    });
  }

 private:
  static constexpr int kUnitBytes = 16;
  static constexpr uint64_t kWhole = ~uint64_t{15};                       // units
  static constexpr int kSpan = kUnitBytes / static_cast<int>(sizeof(T));  // elements

  // Sixteen bytes of a row, of the thread's first channel.
  struct Vector {
    uint64_t from;    // its first element, wherever that is
    bool exists;      // the row
    int first, last;  // elements that are in the image, from the first on, before the last
    int slot;         // of what has been brought: the unit with its first element
    bool ends;        // the row: one more unit belongs to it
  };

  // Calls it for each of a thread's vectors. Where they are few, warps take turns at the channels.
  template <typename Function>
  __device__ void each_vector(const Corner& at, int channel, const Function& function) const {
    const Spot corner = locate(s_, at.pair);
    const int first = kHasRows ? plane_row(s_, corner) : corner.n;
    // What a run does not reach is not read.
    const int rows = !kHasRows || p_.run == 0
                         ? INT32_MAX
                         : plane_row(s_, locate(s_, at.pair + p_.run - 1)) - first + s_.reach + 1;
    const int64_t skipped = (channel + first_channel_) * channel_bytes_;
    for (int vector = first_; vector < s_.vectors; vector += threads_) {
      int32_t n, row = vector;
      int h = at.p, w = at.q;
      Vector own{};
      if constexpr (kHasRows) {
        const int unit = s_.vectors_in_row.split(row);
        own.ends = unit + 1 == s_.vectors_in_row.divisor();
        n = first + row;
        h += s_.period.split(n) * s_.row.row_step;
        w += unit * kSpan;
      } else {
        const Spot spot = locate(s_, at.pair + vector * (kSpan / 2));
        n = spot.n;
        h += spot.row;
        w += spot.pair * 2;
        row = n - first + spot.row;
        own.ends = spot.pair + kSpan / 2 >= s_.pairs.divisor() || vector + 1 == s_.vectors;
      }
      n += at.n;
      own.exists = row < rows && n < s_.N && h >= 0 && h < s_.H;
      own.first = max(-w, 0);
      own.last = own.exists ? min(s_.W - w, kSpan) : 0;
      own.from = reinterpret_cast<uint64_t>(s_.x + n * s_.n + h * s_.h + w) + skipped;
      own.slot = own.exists ? vector + row : 0;  // a row has one more there
      function(vector, own);
    }
  }

  static __device__ void copy(uint32_t to, uint64_t from, int bytes) {
    ptx::copy_async_part<kUnitBytes>(to, reinterpret_cast<const void*>(from), bytes);
  }
  // What lies outside of the tensor's memory is not read.
  __device__ void copy_end(uint32_t to, uint64_t from) const {
    if (from < begin_ || from >= end_) return;
    copy(to, from, static_cast<int>(min(end_ - from, uint64_t{kUnitBytes})));
  }

  const Params<T>& p_;
  const RowSource<T>& s_;
  uint64_t begin_, end_;  // of the tensor's memory
  int64_t channel_bytes_, from_step_;
  int to_step_;  // bytes
  int threads_, first_, first_channel_, channel_step_;
};

// Called by kRowThreads.
template <typename T, int kChannels, bool kHasRows, bool kGradient>
__device__ inline void load_staged_rows(const Params<T>& p, const Shared& shared, int thread,
                                        Walk<T, kGradient> walk) {
  constexpr int kPiece = kPieceBytes / static_cast<int>(sizeof(T));
  const StagedRows<T, kHasRows> rows(p, thread);
  const auto first_of = [&](const Walk<T, kGradient>& at) {
    return at.work.at.c + at.step.chunk * p.chunk * kPiece;
  };
  Walk<T, kGradient> ahead = walk;
  const auto bring = [&](int raw) {
    if (!ahead.is_over()) {
      rows.bring(ahead.plane(), first_of(ahead), ahead.step.pieces(p) * kPiece,
                 shared.raw + raw * p.raw_bytes);
      ahead.advance();
    }
    ptx::commit_copies();
  };
  int raw = 0;
  bring(raw);
  Place x;
  for (; !walk.is_over(); walk.advance()) {
    ptx::await_groups<0>();
    // All have come, and nobody reads those before any more.
    ptx::sync_threads<kRowThreads>(kRowBarrier);
    bring(raw ^ 1);
    ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
    rows.put(walk.plane(), first_of(walk), walk.step.pieces(p) * kPiece,
             shared.raw + raw * p.raw_bytes, shared.input + x.stage * p.stage_bytes);
    ptx::arrive(&shared.x_full[x.stage]);
    raw ^= 1;
    x.advance(p.x_stages);
  }
}

}  // namespace customconv::implicit_gemm
