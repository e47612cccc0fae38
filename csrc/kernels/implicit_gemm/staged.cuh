// Rows that begin anywhere: threads copy the aligned 16 bytes that hold them to shared memory, and
// put vectors in order from there while the next step's are on their way.
#pragma once

#include "kernels/implicit_gemm/rows.cuh"
#include "kernels/implicit_gemm/unit.cuh"

namespace customconv::implicit_gemm {

template <typename T>
class StagedRows {
 public:
  // Where the rows of a plane come from: of the first channel, the element that a row's first
  // vector begins with, be it in the image or not; 0 where the row is not.
  struct List {
    uint64_t* from;
    int w;  // column of those elements
  };

  __device__ StagedRows(const Params<T>& p, const Shared& shared, int thread)
      : p_(p),
        s_(p.source),
        list_(static_cast<uint64_t*>(shared.copies)),
        begin_(reinterpret_cast<uint64_t>(s_.x) & kWholeUnits),
        end_(reinterpret_cast<uint64_t>(s_.end)),
        channel_bytes_(s_.c * int64_t{sizeof(T)}),
        units_(s_.vectors_in_row.divisor() + 1),
        thread_(thread) {
    const bool few = s_.vectors <= kRowThreads;
    threads_ = few ? 32 : kRowThreads;
    first_ = thread % threads_;
    first_channel_ = thread / threads_;
    channel_step_ = kRowThreads / threads_;
  }

  // Lists the rows of the plane whose first pixel is `at`, in one of two lists.
  __device__ List list(const Corner& at, int number) const {
    const List own{list_ + number * s_.plane_rows, at.q};
    const int first = plane_row(s_, locate(s_, at.pair));
    // What a run does not reach is not read.
    const int rows = p_.run == 0
                         ? INT32_MAX
                         : plane_row(s_, locate(s_, at.pair + p_.run - 1)) - first + s_.reach + 1;
    for (int row = thread_; row < s_.plane_rows; row += kRowThreads) {
      int32_t n = first + row;
      const int h = s_.period.split(n) * s_.row.row_step + at.p;
      n += at.n;
      const bool exists = row < rows && n < s_.N && h >= 0 && h < s_.H;
      own.from[row] = exists ? reinterpret_cast<uint64_t>(s_.x + n * s_.n + h * s_.h + at.q) : 0;
    }
    ptx::sync_threads<kRowThreads>(kRowBarrier);
    return own;
  }

  // Starts to copy what holds channels [first, first + count), as they lie in memory.
  __device__ void bring(const List& list, int first, int count, char* raw) const {
    const uint32_t to = ptx::shared_address(raw);
    each(min(count, s_.C - first), [&](int vector, int row, int unit, int c) {
      if (list.from[row] == 0) return;
      const uint64_t from = (list.from[row] + (first + c) * channel_bytes_) & kWholeUnits;
      const uint32_t own = to + slot(c, row, unit) * kUnitBytes;
      copy(own, from + unit * kUnitBytes);
      if (unit == units_ - 2) copy(own + kUnitBytes, from + (unit + 1) * kUnitBytes);
    });
    ptx::commit_copies();
  }

  // Puts them in order, zeros where the tensor ends.
  __device__ void put(const List& list, int first, int count, const char* raw, char* stage) const {
    const uint32_t from = ptx::shared_address(raw), to = ptx::shared_address(stage);
    const int exist = min(count, s_.C - first);
    each(count, [&](int vector, int row, int unit, int c) {
      const int w = list.w + unit * kSpan;
      const int before = max(-w, 0), last = min(s_.W - w, kSpan);
      uint4 found{};
      if (list.from[row] != 0 && before < last && c < exist) {
        const uint64_t begin = list.from[row] + (first + c) * channel_bytes_;
        const uint32_t own = from + slot(c, row, unit) * kUnitBytes;
        const uint4 mask = mask_of<T>(before, last);
        found = shifted(ptx::load_shared<uint4>(own), ptx::load_shared<uint4>(own + kUnitBytes),
                        static_cast<int>(begin & ~kWholeUnits));
        found = make_uint4(found.x & mask.x, found.y & mask.y, found.z & mask.z, found.w & mask.w);
      }
      ptx::store_shared(to + c * s_.row.channel_bytes + vector * kUnitBytes, found);
    });
  }

 private:
  static constexpr int kUnitBytes = 16;
  static constexpr uint64_t kWholeUnits = ~uint64_t{15};
  static constexpr int kSpan = kUnitBytes / sizeof(T);  // elements

  // Calls it for a thread's vectors of so many channels. Where vectors are few, warps take turns at
  // the channels.
  template <typename Function>
  __device__ void each(int count, const Function& function) const {
    for (int vector = first_; vector < s_.vectors; vector += threads_) {
      int32_t row = vector;
      const int unit = s_.vectors_in_row.split(row);
      for (int c = first_channel_; c < count; c += channel_step_) function(vector, row, unit, c);
    }
  }

  __device__ int slot(int c, int row, int unit) const {
    return (c * s_.plane_rows + row) * units_ + unit;
  }

  // What lies outside of the tensor's memory is not read.
  __device__ void copy(uint32_t to, uint64_t from) const {
    if (from < begin_ || from >= end_) return;
    const auto bytes = static_cast<int>(min(end_ - from, uint64_t{kUnitBytes}));
    ptx::copy_async_part<kUnitBytes>(to, reinterpret_cast<const void*>(from), bytes);
  }

  const Params<T>& p_;
  const RowSource<T>& s_;
  uint64_t* list_;
  uint64_t begin_, end_;  // of the tensor's memory
  int64_t channel_bytes_;
  int units_;  // of a row as it lies in memory
  int thread_, threads_, first_, first_channel_, channel_step_;
};

// Called by kRowThreads.
template <typename T, int kChannels, bool kGradient>
__device__ inline void load_staged_rows(const Params<T>& p, const Shared& shared, int thread,
                                        Walk<T, kGradient> walk) {
  constexpr int kPiece = kPieceBytes / static_cast<int>(sizeof(T));
  const bool one_plane = p.h.planes * p.w_axis.planes == 1;
  const StagedRows<T> rows(p, shared, thread);
  const auto first_of = [&](const Walk<T, kGradient>& at) {
    return at.work.at.c + at.step.chunk * p.chunk * kPiece;
  };
  typename StagedRows<T>::List coming{};
  int list = 0, raw = 0;
  Walk<T, kGradient> ahead = walk;
  const auto bring = [&](int stage) {
    if (ahead.is_new_tile() || !one_plane) {
      list ^= 1;
      coming = rows.list(ahead.plane(), list);
    }
    rows.bring(coming, first_of(ahead), ahead.step.pieces(p) * kPiece,
               shared.raw + stage * p.raw_bytes);
    ahead.advance();
  };
  if (!ahead.is_over()) bring(raw);
  Place x;
  for (; !walk.is_over(); walk.advance()) {
    const auto own = coming;
    ptx::await_groups<0>();
    // All have come, and nobody reads those before any more.
    ptx::sync_threads<kRowThreads>(kRowBarrier);
    if (!ahead.is_over()) bring(raw ^ 1);
    ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
    rows.put(own, first_of(walk), walk.step.pieces(p) * kPiece, shared.raw + raw * p.raw_bytes,
             shared.input + x.stage * p.stage_bytes);
    ptx::arrive(&shared.x_full[x.stage]);
    raw ^= 1;
    x.advance(p.x_stages);
  }
}

}  // namespace customconv::implicit_gemm
