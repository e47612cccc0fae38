// The work of a weight gradient's kernels, as all its planners count it (plan/price.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/implicit_gemm/wgrad/geometry.h"
#include "plan/hardware.h"
#include "plan/price.h"

namespace customconv::implicit_gemm::wgrad {

// Kernels whose stores have prices of their own: of parts, and of clusters of 1, 2, 4 and 8.
enum class Sort { kBoxes, kPlanes, kRegisters };
constexpr int kStoreRows = 5;

// What a plan's thread blocks do.
struct Counted {
  uint16_t row = kNoRow;  // the price of
  Sort sort = Sort::kBoxes;
  double products = 0;         // clocks of the tensor cores for a pixel
  double busy = 0, waits = 0;  // of a tile, while others are loaded
  double alone = 0;            // busy with a block's first: it is loaded, then multiplied
  double end_waits = 0;        // of a block of no cluster that stores results
  double bytes = 0;            // of device memory, at least,
  double cut = 0;              // and as a share of them those that rows cut out bring beside
  double sums = 0;             // of a thread block, of channels and taps that exist,
  int64_t all_sums = 0;        // and of all that it has
  double result_bytes = 4;     // that a result takes of what is stored

  // What differs from plan to plan of a tile.
  int64_t tiles = 1;         // of all splits
  int64_t blocks = 1;        // that share a split
  int64_t splits = 1;        // thread blocks that share a sum,
  int64_t cluster = 1;       // those of them that add up their sums first
  int64_t along_p = 1;       // warpgroups that have a part each
  bool stores_parts = true;  // rather than results

  int cluster_log() const { return __builtin_ctzll(static_cast<uint64_t>(cluster)); }
  int first_store() const { return static_cast<int>(sort) * kStoreRows; }
};

// Clocks until so many threads have filled a box of so many pixels by units of 16 bytes: until what
// they ask for arrives, four units at a time, and their instructions.
inline double filled_clocks(int64_t pixels, int64_t channels, int64_t unit, int threads) {
  constexpr int64_t kTogether = 4;
  constexpr double kInstructions = 60;  // of a unit: where it is, five words shifted, and stored
  int64_t units = 1;                    // a power of two
  while (units * unit < channels) units *= 2;
  const auto rounds = static_cast<double>(ceil_divide(pixels * units, kTogether * threads));
  const double warps = std::min<double>(threads / 32.0, hardware::kSchedulers);
  return rounds * (hardware::kMemoryClocks + kTogether * kInstructions * threads / 32 / warps);
}

inline double reached_by(const DeviceProperties& d, int64_t cluster) {
  return d.sm_count * (cluster > 2 ? hardware::kClusterReach : 1);
}

// A kernel adds up the parts: so many threads share four sums, and load eight parts each at a time.
inline Work count_parts(const Counted& c) {
  const int64_t parts = c.splits / c.cluster * c.along_p;
  const int rank = parts <= 16 ? 0 : parts <= 64 ? 1 : 2;  // see parts.cuh
  const int sharers[] = {1, 8, 32};
  constexpr double kThreads = 256, kTogether = 8, kResident = 8;
  constexpr double kInstructions = 150;  // of a thread beside its parts: where a sum belongs
  const double own = static_cast<double>(parts) / sharers[rank];  // of a thread
  const double fours = kThreads / sharers[rank];
  const double exist = c.sums / static_cast<double>(c.all_sums);
  Work work;
  work.row = price_row(PriceKind::kWgradParts, rank);
  work.blocks = static_cast<float>(static_cast<double>(c.blocks * c.all_sums) /
                                   static_cast<double>(c.along_p) / 4 / fours);
  work.resident = kResident;
  work.busy = static_cast<float>(
      busiest({exist * fours * static_cast<double>(parts) * 16 / hardware::kL2BytesPerClock,
               (kInstructions + own * 6) * kThreads / 32 / hardware::kSchedulers}));
  work.waits = static_cast<float>(std::ceil(own / kTogether));
  return work;
}

inline WorkList count_works(const DeviceProperties& d, const Counted& c) {
  const double of_block = static_cast<double>(ceil_divide(c.tiles, c.splits));  // tiles
  Work sum;
  sum.row = c.row;
  const bool only_parts = c.stores_parts && c.cluster == 1;
  sum.store_row =
      price_row(PriceKind::kWgradStore, c.first_store() + (only_parts ? 0 : 1 + c.cluster_log()));
  sum.blocks = static_cast<float>(c.blocks * c.splits);
  sum.sms = static_cast<float>(reached_by(d, c.cluster));
  sum.busy = static_cast<float>((of_block - 1) * c.busy + c.alone);
  sum.waits = static_cast<float>(
      of_block * c.waits +
      (c.stores_parts ? 0 : std::ceil(c.end_waits / static_cast<double>(c.cluster))));
  const double own = c.sums / static_cast<double>(c.cluster);
  const double result = c.stores_parts ? 4.0 : c.result_bytes;
  sum.stored =
      static_cast<float>((c.cluster > 1 || !c.stores_parts ? c.sums * 4 : 0) + own * result);
  sum.bytes = static_cast<float>(c.bytes * (1 + c.cut));
  WorkList works;
  works.add(sum);
  if (c.stores_parts) {
    Work parts = count_parts(c);
    parts.sms = static_cast<float>(d.sm_count);
    works.add(parts);
  }
  return works;
}

}  // namespace customconv::implicit_gemm::wgrad
