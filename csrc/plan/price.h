// What a plan costs: each family counts the work of its kernels, and a table says how fast a kind
// of kernel does such work. `python -m bench calibrate` writes the table from recorded timings.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "plan/device.h"
#include "plan/problem.h"
#include "plan/work.h"

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
  float bandwidth = 0.9F;  // share of the device memory's bandwidth
};

// The place in the table of a kind's row.
uint16_t price_row(PriceKind kind, int row);
// For each row of the table, the text of its kind and its number within that kind.
std::vector<std::pair<const char*, int>> price_rows();
// The rows of all kinds.
using PriceTable = const Price*;
// The table that was compiled in for a device.
PriceTable prices_of(const DeviceProperties& device);

// Clocks of units that work at the same time: those of the busiest, and a part of the others',
// because these are not hidden entirely.
double busiest(std::initializer_list<double> clocks);

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
// Milliseconds of a plan's kernels; perhaps infinite where they are no less than `most`.
double price(const WorkList& works, const DeviceProperties& device, PriceTable table,
             double most = kNoLimit);
inline double price(const WorkList& works, const DeviceProperties& device, double most = kNoLimit) {
  return price(works, device, prices_of(device), most);
}

// A kernel that only reads and writes so many bytes, without its launch.
double pass_ms(double bytes, const DeviceProperties& device);
// What PyTorch takes for an epilogue that a plan's kernels don't do.
double epilogue_ms(const ConvProblem& problem, const DeviceProperties& device);
// What it takes to read a convolution's output once more for its statistics. A convolution's own
// kernel takes about as long for them as the launch does.
double statistics_ms(const ConvProblem& problem, const DeviceProperties& device);

}  // namespace customconv
