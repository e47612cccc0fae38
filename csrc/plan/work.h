// The work of a plan's kernels, from which its price follows (plan/price.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace customconv {

constexpr uint16_t kNoRow = UINT16_MAX;

// The work of one kernel, counted from its tiles. A block is a thread block, or one of the tiles
// that resident thread blocks take in turns.
struct Work {
  uint16_t row = kNoRow;        // the row of its price
  uint16_t store_row = kNoRow;  // the row of its stores' price, if they have one of their own
  float repeats = 1;            // launches, one after the other
  float blocks = 1;
  float sms = 1;       // multiprocessors that the blocks run on
  float resident = 1;  // blocks that share a multiprocessor
  float busy = 0;      // clocks that a block keeps the busiest unit busy, at the unit's full rate
  float waits = 0;     // how often a block waits
  float stored = 0;    // bytes that a block stores when it has summed
  float bytes = 0;     // bytes of device memory that all blocks read and write
};

// The work of all kernels of a plan.
class WorkList {
 public:
  void add(const Work& work) { works_[count_++] = work; }
  const Work* begin() const { return works_.data(); }
  const Work* end() const { return works_.data() + count_; }
  bool empty() const { return count_ == 0; }

 private:
  static constexpr size_t kMost = 6;
  std::array<Work, kMost> works_{};
  size_t count_ = 0;
};

}  // namespace customconv
