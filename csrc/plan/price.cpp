#include "plan/price.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include "plan/hardware.h"

namespace customconv {

namespace {

constexpr int kRows[] = {
#define CUSTOMCONV_PRICE(name, rows, text) rows,
#include "plan/prices.def"
#undef CUSTOMCONV_PRICE
};
constexpr auto kFirstRows = [] {
  std::array<int, static_cast<size_t>(PriceKind::kCount) + 1> first{};
  for (size_t i = 0; i + 1 < first.size(); ++i) first[i + 1] = first[i] + kRows[i];
  return first;
}();

// New kinds at the end of prices.def have the default price until the table is fitted again.
constexpr std::array<Price, kFirstRows.back()> kSm90 = {{
#include "plan/prices_sm90.inc"
}};

double kernel_ms(const Work& w, const DeviceProperties& d, PriceTable table, double most) {
  const Price& own = table[w.row];
  const double busy = w.busy / own.rate;
  double block = busy + w.waits * own.wait, begin = 0;
  if (w.store_row != kNoRow) {
    const Price& stores = table[w.store_row];
    block += w.stored / stores.store;
    begin = stores.wait;
  }
  // Blocks that share a multiprocessor share its units, and wait at the same time.
  const double share = std::ceil(w.blocks / w.sms);
  const double clocks = begin + std::max(share * busy, std::ceil(share / w.resident) * block);
  const double ms = clocks / (d.clock_ghz * 1e6);
  const double bytes_ms = 1e-6 * w.bytes / (own.bandwidth * d.bandwidth_gb_s);
  const double least = w.repeats * (std::max(ms, bytes_ms) + hardware::kNextMs);
  if (least >= most) return std::numeric_limits<double>::infinity();
  const double square = ms * ms, bytes_square = bytes_ms * bytes_ms;
  const double both = std::sqrt(std::sqrt(square * square + bytes_square * bytes_square));
  return w.repeats * (both + hardware::kNextMs);
}

}  // namespace

uint16_t price_row(PriceKind kind, int row) {
  return static_cast<uint16_t>(kFirstRows[static_cast<size_t>(kind)] + row);
}

std::vector<std::pair<const char*, int>> price_rows() {
  constexpr const char* kTexts[] = {
#define CUSTOMCONV_PRICE(name, rows, text) text,
#include "plan/prices.def"
#undef CUSTOMCONV_PRICE
  };
  std::vector<std::pair<const char*, int>> all;
  for (size_t kind = 0; kind < std::size(kTexts); ++kind) {
    for (int row = 0; row < kRows[kind]; ++row) all.emplace_back(kTexts[kind], row);
  }
  return all;
}

PriceTable prices_of(const DeviceProperties&) { return kSm90.data(); }

double busiest(std::initializer_list<double> clocks) {
  double most = 0, all = 0;
  for (const double each : clocks) {
    most = std::max(most, each);
    all += each;
  }
  return most + hardware::kUnhidden * (all - most);
}

double price(const WorkList& works, const DeviceProperties& d, PriceTable table, double most) {
  double ms = hardware::kLaunchMs - hardware::kNextMs;
  for (const Work& work : works) ms += kernel_ms(work, d, table, most - ms);
  return ms;
}

double pass_ms(double bytes, const DeviceProperties& device) {
  constexpr double kBandwidth = 0.85;
  return bytes * 1e-6 / (kBandwidth * device.bandwidth_gb_s);
}

double epilogue_ms(const ConvProblem& p, const DeviceProperties& device) {
  constexpr double kPassLaunchMs = 0.003;
  const bool gradient = p.pass == Pass::kDgrad;
  const int passes = p.epilogue_passes + (gradient && p.has_bias ? 1 : 0);
  const auto bytes = static_cast<double>(p.result_count() * element_size(p.dtype));
  return passes * (kPassLaunchMs + pass_ms(2 * bytes, device));
}

double statistics_ms(const ConvProblem& p, const DeviceProperties& device) {
  return pass_ms(static_cast<double>(p.y_count() * element_size(p.dtype)), device);
}

}  // namespace customconv
