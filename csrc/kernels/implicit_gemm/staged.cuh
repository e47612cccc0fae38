// Rows that begin anywhere: the copy engine brings the aligned 16 bytes that hold them to shared
// memory, some steps ahead, and threads put them in order.
#pragma once

#include "kernels/implicit_gemm/rows.cuh"
#include "kernels/implicit_gemm/unit.cuh"

namespace customconv::implicit_gemm {

// What follows in memory, of each channel: rows of an image, or one; without rows an image's
// pixels.
struct Stretch {
  uint64_t from;   // of channel 0: where its first element is, or would be
  uint32_t bytes;  // none where nothing of it exists
  uint32_t to;     // of what has been brought of a channel: the 16 bytes that hold its first
};

// Sixteen bytes of a stage: of the elements those exist from the first on, before the last.
struct StagedVector {
  uint32_t place;  // bytes from a stretch's first 16 to it, were that element the first of those
  uint32_t low;    // where that element is in them, of channel 0
  int first, last;

  __device__ uint32_t packed() const {
    return place << 12 | low << 8 | static_cast<uint32_t>(last) << 4 | static_cast<uint32_t>(first);
  }
  static __device__ StagedVector unpacked(uint32_t word) {
    return {word >> 12, word >> 8 & 15, static_cast<int>(word & 15),
            static_cast<int>(word >> 4 & 15)};
  }
};

// Of a tile's plane.
struct StagedLists {
  Stretch stretches[kMostStretches];
  uint32_t vectors[kMostStagedVectors];
};
// When one is listed, threads a step behind may read that of kStagedAhead + 1 planes before.
constexpr int kStagedLists = kStagedAhead + 2;
static_assert(kStagedLists * sizeof(StagedLists) <= kCopiesBytes);

// `kHasRows`: else a tile's pixels follow each other, those of each image from whole vectors on.
template <typename T, bool kHasRows>
class StagedRows {
 public:
  __device__ StagedRows(const Params<T>& p, int thread)
      : p_(p),
        s_(p.source),
        thread_(thread),
        own_channel_(thread / s_.row.threads),
        own_vector_(thread % s_.row.threads),
        channels_(kRowThreads / s_.row.threads),
        begin_(reinterpret_cast<uint64_t>(s_.x) & kWhole),
        end_(reinterpret_cast<uint64_t>(s_.end)),
        channel_bytes_(s_.c * int64_t{sizeof(T)}) {}

  // For planes whose first pixel is `at`.
  __device__ void list(const Corner& at, StagedLists& lists) const {
    const Plane plane(*this, at);
    for (int i = thread_; i < s_.row.stretches; i += kRowThreads) {
      lists.stretches[i] = plane.stretch(i).own;
    }
    for (int vector = thread_; vector < s_.vectors; vector += kRowThreads) {
      lists.vectors[vector] = plane.vector(vector).packed();
    }
  }

  // Starts to copy what holds channels [first, first + count), as they lie in memory, and arrives.
  __device__ void bring(const StagedLists& lists, int first, int count, char* raw,
                        ptx::Barrier* full) const {
    // A warp's threads start their copies one after the other: each warp gets as many.
    constexpr int kLanes = 8, kWarps = kRowThreads / 32;
    const int warp = thread_ / 32, lane = thread_ % 32;
    const int exist = min(count, s_.C - first);
#pragma unroll 1
    for (int i = lane / kLanes; i < s_.row.stretches; i += 32 / kLanes) {
      const Stretch stretch = lists.stretches[i];
      if (stretch.bytes == 0) continue;
#pragma unroll 1
      for (int c = lane % kLanes * kWarps + warp; c < exist; c += kLanes * kWarps) {
        bring(stretch, first + c, raw + c * s_.row.slots * kUnitBytes + stretch.to, full);
      }
    }
    ptx::arrive(full);
  }

  // Puts them in order, zeros where the tensor ends.
  __device__ void put(const StagedLists& lists, int first, int count, const char* raw,
                      char* stage) const {
    const int exist = min(count, s_.C - first);
    const int raw_step = s_.row.slots * kUnitBytes, from_step = channels_ * raw_step;
    const int to_step = channels_ * s_.row.channel_bytes;
    const auto low_step = static_cast<uint32_t>(channels_ * channel_bytes_);
    const uint32_t raw_at = ptx::shared_address(raw) + own_channel_ * raw_step;
    const uint32_t stage_at = ptx::shared_address(stage) + own_channel_ * s_.row.channel_bytes;
#pragma unroll 1
    for (int vector = own_vector_; vector < s_.vectors; vector += s_.row.threads) {
      const StagedVector own = StagedVector::unpacked(lists.vectors[vector]);
      const uint4 mask = mask_of<T>(own.first, own.last);
      uint32_t low = own.low + static_cast<uint32_t>((first + own_channel_) * channel_bytes_);
      uint32_t from = raw_at + own.place, to = stage_at + vector * kUnitBytes;
      int c = own_channel_;
      const auto put_some = [&](auto number) {
        constexpr int kNumber = decltype(number)::value;
        uint4 units[kNumber][2];
        uint32_t bytes[kNumber];
#pragma unroll
        for (int i = 0; i < kNumber; ++i) {
          const uint32_t at = from + low % kUnitBytes;
          bytes[i] = at % kUnitBytes;
          units[i][0] = ptx::load_shared<uint4>(at - bytes[i]);
          units[i][1] = ptx::load_shared<uint4>(at - bytes[i] + kUnitBytes);
          low += low_step;
          from += from_step;
        }
#pragma unroll
        for (int i = 0; i < kNumber; ++i) {
          const uint4 found = shifted(units[i][0], units[i][1], static_cast<int>(bytes[i]));
          ptx::store_shared(to, make_uint4(found.x & mask.x, found.y & mask.y, found.z & mask.z,
                                           found.w & mask.w));
          to += to_step;
        }
        c += kNumber * channels_;
      };
#pragma unroll 1
      while (c + 3 * channels_ < exist) put_some(std::integral_constant<int, 4>());
      if (c + channels_ < exist) put_some(std::integral_constant<int, 2>());
      if (c < exist) put_some(std::integral_constant<int, 1>());
      for (; c < count; c += channels_, to += to_step) {
        ptx::store_shared(to, make_uint4(0, 0, 0, 0));
      }
    }
  }

 private:
  static constexpr int kUnitBytes = 16, kSize = static_cast<int>(sizeof(T));
  static constexpr uint64_t kWhole = ~uint64_t{15};  // units
  static constexpr int kSpan = kUnitBytes / kSize;   // elements

  // Where the elements of a tile's plane are.
  class Plane {
   public:
    __device__ Plane(const StagedRows& rows, const Corner& at)
        : p_(rows.p_), s_(rows.s_), at_(at), corner_(locate(s_, at.pair)) {
      if constexpr (kHasRows) {
        const int first = plane_row(s_, corner_);
        // What a run does not reach is not read.
        rows_ = s_.plane_rows;
        if (p_.run != 0) {
          const int last = plane_row(s_, locate(s_, at.pair + p_.run - 1));
          rows_ = min(rows_, last - first + s_.reach + 1);
        }
        image_ = first;
        skipped_ = s_.period.split(image_);
      }
    }

    struct Found {
      Stretch own;
      int h;     // of its first row
      int pair;  // without rows: of its first pixels
    };
    __device__ Found stretch(int number) const {
      if constexpr (!kHasRows) {
        const int before = number * s_.pairs.divisor() - corner_.pair;  // pairs of other images
        const int first = max(before, 0) / kPairs;
        const int last = min((before + s_.pairs.divisor()) / kPairs, s_.vectors);
        const int pair = number == 0 ? corner_.pair : 0, n = at_.n + corner_.n + number;
        Found found{
            {address(n, at_.p, at_.q + pair * 2), 0, bytes_of(first + number)}, at_.p, pair};
        if (n < s_.N) found.own.bytes = bytes_of(max(last - first, 0));
        return found;
      } else if (s_.row.whole) {
        // Rows of the plane before this image's first one.
        const int before = number * s_.period.divisor() - skipped_, n = at_.n + image_ + number;
        const int h = max(at_.p + (number == 0 ? skipped_ : 0), 0);
        const int end = min(at_.p + min(rows_ - before, s_.period.divisor()), s_.H);
        const int units = (max(before, 0) * s_.W * kSize + kUnitBytes - 1) / kUnitBytes;
        Found found{{address(n, h, at_.q), 0, bytes_of(units + number * s_.row.more_slots)}, h, 0};
        if (n < s_.N && h < end) {
          found.own.bytes = (end - h - 1) * s_.W * kSize + bytes_of(s_.vectors_in_row.divisor());
        }
        return found;
      } else {
        int32_t n = image_ * s_.period.divisor() + skipped_ + number;
        const int h = at_.p + s_.period.split(n) * s_.row.row_step,
                  units = s_.vectors_in_row.divisor();
        n += at_.n;
        Found found{{address(n, h, at_.q), 0, bytes_of(number * (units + 1))}, h, 0};
        if (number < rows_ && n < s_.N && h >= 0 && h < s_.H) found.own.bytes = bytes_of(units);
        return found;
      }
    }

    __device__ StagedVector vector(int number) const {
      int stretch_number, w, row = 0, unit = 0;
      if constexpr (kHasRows) {
        int32_t rest = number;
        unit = s_.vectors_in_row.split(rest);
        row = rest;
        int32_t image = skipped_ + row;
        s_.period.split(image);
        stretch_number = s_.row.whole ? image : row;
        w = at_.q + unit * kSpan;
      } else {
        const Spot spot = locate(s_, at_.pair + number * kPairs);
        stretch_number = spot.n - corner_.n;
        w = at_.q + spot.pair * 2;
        unit = (spot.pair * 2) / kSpan;
      }
      const Found found = stretch(stretch_number);
      uint32_t place = found.own.to;
      bool exists = found.own.bytes > 0;
      if constexpr (kHasRows) {
        int32_t rest = skipped_ + row;
        const int h = at_.p + s_.period.split(rest) * s_.row.row_step;
        exists = exists && row < rows_ && h >= 0 && h < s_.H;
        place += static_cast<uint32_t>((h - found.h) * s_.W * kSize) + bytes_of(unit);
      } else {
        place += bytes_of(unit - found.pair * 2 / kSpan);
      }
      if (!exists) return {0, 0, 0, 0};
      return {place, static_cast<uint32_t>(found.own.from % kUnitBytes), min(max(-w, 0), kSpan),
              max(min(s_.W - w, kSpan), 0)};
    }

   private:
    static constexpr int kPairs = kSpan / 2;

    static __device__ uint32_t bytes_of(int units) {
      return static_cast<uint32_t>(units * kUnitBytes);
    }
    __device__ uint64_t address(int n, int h, int w) const {
      return reinterpret_cast<uint64_t>(s_.x + n * s_.n + h * s_.h + w);
    }

    const Params<T>& p_;
    const RowSource<T>& s_;
    const Corner& at_;
    Spot corner_;
    int rows_;       // that are read
    int32_t image_;  // of the first row
    int skipped_;    // rows of that image in front of it
  };

  // A channel's. What lies outside of the tensor's memory is not read, but for what shares 16 bytes
  // with its first element.
  __device__ void bring(const Stretch& stretch, int channel, char* to, ptx::Barrier* full) const {
    const uint64_t element = stretch.from + channel * channel_bytes_;
    const uint64_t first = element & kWhole, end = element + stretch.bytes;
    const uint64_t from = first < begin_ ? begin_ : first;
    const uint64_t whole = end_ & kWhole, wanted = (end + kUnitBytes - 1) & kWhole;
    const uint64_t last = wanted < whole ? wanted : whole;
    if (from < last) {
      const auto bytes = static_cast<int>(last - from);
      ptx::expect_bytes(full, bytes);
      ptx::copy_bytes(to + (from - first), reinterpret_cast<const void*>(from), bytes, full);
    }
    // The tensor's last elements, where they do not fill such bytes.
#pragma unroll 1
    for (uint64_t at = whole; first <= at && at < end && at < end_; at += kSize) {
      *reinterpret_cast<T*>(to + (at - first)) = *reinterpret_cast<const T*>(at);
    }
  }

  const Params<T>& p_;
  const RowSource<T>& s_;
  int thread_;
  // Of those that put vectors in order: of a thread the first, and from a channel to its next.
  int own_channel_, own_vector_, channels_;
  uint64_t begin_, end_;  // of the tensor's memory
  int64_t channel_bytes_;
};

// Called by kRowThreads.
template <typename T, int kChannels, bool kHasRows, Mode kMode>
__device__ inline void load_staged_rows(const Params<T>& p, const Shared& shared, int thread,
                                        Walk<T, kMode> walk) {
  constexpr int kPiece = kPieceBytes / static_cast<int>(sizeof(T));
  const bool one_plane = p.h.planes * p.w_axis.planes == 1;
  const StagedRows<T, kHasRows> rows(p, thread);
  auto* const lists = static_cast<StagedLists*>(shared.copies);
  const auto first_of = [&](const Walk<T, kMode>& at) {
    return at.work.at.c + at.step.chunk * p.chunk * kPiece;
  };
  const auto begins = [&](const Walk<T, kMode>& at) { return at.is_new_tile() || !one_plane; };
  Walk<T, kMode> ahead = walk;
  Place next, raw, x;
  uint32_t listed = 0, own = 0;  // planes
  const auto bring = [&] {
    if (ahead.is_over()) return;
    if (begins(ahead)) {
      rows.list(ahead.plane(), lists[listed++ % kStagedLists]);
      __syncwarp();  // lanes may have parted where each started its copies
      ptx::sync_threads<kRowThreads>(kRowBarrier);
    }
    ptx::wait(&shared.raw_empty[next.stage], next.parity ^ 1);
    rows.bring(lists[(listed - 1) % kStagedLists], first_of(ahead), ahead.step.pieces(p) * kPiece,
               shared.raw + next.stage * p.raw_bytes, &shared.raw_full[next.stage]);
    ahead.advance();
    next.advance(kStagedAhead + 1);
  };
#pragma unroll 1
  for (int i = 0; i < kStagedAhead; ++i) bring();
  for (; !walk.is_over(); walk.advance()) {
    bring();
    if (begins(walk)) ++own;
    ptx::wait(&shared.raw_full[raw.stage], raw.parity);
    ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
    rows.put(lists[(own - 1) % kStagedLists], first_of(walk), walk.step.pieces(p) * kPiece,
             shared.raw + raw.stage * p.raw_bytes, shared.input + x.stage * p.stage_bytes);
    ptx::arrive(&shared.raw_empty[raw.stage]);
    ptx::arrive(&shared.x_full[x.stage]);
    raw.advance(kStagedAhead + 1);
    x.advance(p.x_stages);
  }
}

}  // namespace customconv::implicit_gemm
