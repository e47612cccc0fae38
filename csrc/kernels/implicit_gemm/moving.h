// The work of the kernels around a main loop: they pack its operands and move its results. Plain
// C++.
#pragma once

#include <bitset>
#include <cmath>
#include <cstdlib>

#include "kernels/implicit_gemm/forward.h"
#include "plan/hardware.h"
#include "plan/price.h"

namespace customconv::implicit_gemm {

// Pieces that TMA takes for a row of a stage, on average: pixels have so many bytes of
// channels, stages so many in a row, and what the last stage lacks becomes zeros. A piece is of 16,
// 32, 64 or 128 aligned bytes, which are all read or all zeros.
inline double copied_pieces(int64_t pixel_bytes, int row_bytes) {
  constexpr int64_t kUnit = 16;
  const int64_t stages = ceil_divide(pixel_bytes, row_bytes);
  const int64_t read = ceil_divide(pixel_bytes - (stages - 1) * row_bytes, kUnit);
  const auto count = [](int64_t units) {
    return std::bitset<8>(static_cast<size_t>(units)).count();
  };
  const auto last = static_cast<double>(count(read) + count(row_bytes / kUnit - read));
  return (static_cast<double>(stages - 1) + last) / static_cast<double>(stages);
}

// What it costs, as bytes of memory, that tiles store so many runs of each channel's pixels which
// begin and end inside sectors: two parts of a sector take as long as eleven whole ones, where the
// output is so large that they leave the second-level cache before the next tile completes them.
inline double split_sector_bytes(const Forward& p, int64_t runs) {
  constexpr double kSectors = 11, kStays = 48 << 20;  // bytes
  const auto size = static_cast<double>(element_size(p.dtype));
  const bool planes = p.K > 1 && p.y_strides[1] != 1 && p.y_strides[3] == 1 && !p.has_phases();
  const bool whole =
      std::fmod(static_cast<double>(p.y_strides[1]) * size, hardware::kSectorBytes) == 0;
  if (!planes || whole || static_cast<double>(p.N * p.y_strides[0]) * size <= kStays) return 0;
  return kSectors * hardware::kSectorBytes * static_cast<double>(p.K * runs);
}

// A kernel that only moves bytes, in device memory or L2.
inline Work moving(PriceKind kind, int row, double bytes, double repeats = 1) {
  Work work;
  work.row = price_row(kind, row);
  work.waits = 1;
  work.bytes = static_cast<float>(bytes);
  work.repeats = static_cast<float>(repeats);
  return work;
}

// The kernel that brings phases to their places, in planes or with a pixel's channels side by side.
inline Work weaving(const Forward& p, bool planes, double launches = 1) {
  const int row = !p.joins_phases ? 0 : planes ? 2 : 1;
  const int wide = p.dtype == DType::kFloat32 ? 1 : 0;
  return moving(PriceKind::kWeave, row * 2 + wide, weave_bytes(p), launches);
}

// Which kernel packs weights (pack_weights.cuh).
enum class WeightPacking : int { kMatrix, kTransposed, kJoined, kUnits };

// How pack_weight_matrix packs: it transposes where neighbours in memory are in different rows of
// the matrix, not in one, and where taps belong to phases.
inline WeightPacking matrix_packing(const Forward& p, bool transposed) {
  const bool phases = !transposed && p.period_h * p.period_w > 1;
  const auto &of_row = p.w_strides[transposed ? 1 : 0],
             of_element = p.w_strides[transposed ? 0 : 1];
  return phases || std::abs(of_row) < std::abs(of_element) ? WeightPacking::kTransposed
                                                           : WeightPacking::kMatrix;
}

inline Work packing(const Forward& p, const PackedWeight& weight, WeightPacking how) {
  const auto elements = static_cast<double>(weight.rows * weight.row);
  return moving(PriceKind::kPackWeights, static_cast<int>(how),
                2 * elements * static_cast<double>(element_size(p.dtype)));
}

}  // namespace customconv::implicit_gemm
