// What a plan costs: each family counts the work of its kernels, and a table says how fast a kind
// of kernel does such work. `python -m bench calibrate` writes the table from recorded timings.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "plan/device.h"

namespace customconv {

enum class PriceKind : uint8_t {
#define CUSTOMCONV_PRICE(name, rows, text) name,
#include "plan/prices.def"
#undef CUSTOMCONV_PRICE
  kCount,
};

// A row of the table: how well a kind of kernel does its work.
struct Price {
  float rate = 1;          // share of the busiest unit's full rate
  float wait = 0;          // clocks, each time that a block waits
  float store = 1;         // bytes a clock, of a block that stores its results
  float bandwidth = 0.9F;  // share of the device memory's
};

// Number among all of a row of a kind.
uint16_t price_row(PriceKind kind, int row);
// For each row, the text of its kind and its number of that kind.
std::vector<std::pair<const char*, int>> price_rows();
constexpr uint16_t kNoRow = UINT16_MAX;

// The work of one kernel, counted from its tiles. Blocks are thread blocks, or tiles that resident
// blocks take in turns.
struct Work {
  uint16_t row = kNoRow;        // its price,
  uint16_t store_row = kNoRow;  // and that of its stores, where they have one of their own
  float repeats = 1;            // launches, one after the other
  float blocks = 1;
  float sms = 1;       // multiprocessors that they run on
  float resident = 1;  // blocks that share one
  float busy = 0;      // clocks of a multiprocessor's busiest unit at its full rate, for a block
  float waits = 0;     // times that a block waits
  float stored = 0;    // bytes that a block stores when it has summed
  float bytes = 0;     // of device memory, of all blocks
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

// A row for each kind of kernel; the one that was compiled in for a device.
using PriceTable = const Price*;
PriceTable prices_of(const DeviceProperties& device);

// What is less than the most is not free: it competes for the same clocks.
double busiest(std::initializer_list<double> clocks);

// Milliseconds of a plan's kernels.
double price(const WorkList& works, const DeviceProperties& device, PriceTable table);
inline double price(const WorkList& works, const DeviceProperties& device) {
  return price(works, device, prices_of(device));
}

}  // namespace customconv
