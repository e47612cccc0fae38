#include "kernels/implicit_gemm/price.h"

#include <algorithm>
#include <cmath>

#include "kernels/implicit_gemm/moving.h"
#include "plan/hardware.h"
#include "plan/price.h"

namespace customconv::implicit_gemm {

namespace {

// Instructions of a thread for each copy.
constexpr double kCopyInstructions = 8;      // of a vector
constexpr double kElementInstructions = 12;  // of an element, through registers
constexpr double kShiftedInstructions = 40;  // of a vector that is put together from words

// Bytes of shared memory that a warpgroup reads for the pixels of an instruction. A thread reads a
// whole bank at a time: for a pair of pixels, but also for an element that it fetches alone.
double fetched_bytes(const ConvProblem& p, const Tile& t) {
  constexpr double kBankBytes = 4;
  const double bytes = kInstructionRows * kPieceBytes;
  const bool alone = t.fetch == Fetch::kElements || t.fetch == Fetch::kFlat;
  return alone ? bytes / static_cast<double>(element_size(p.dtype)) * kBankBytes : bytes;
}

// The same where warps multiply, and with weights: each warp loads all of them for its own pixels.
double warp_bytes(const ConvProblem& p, const Tile& t) {
  const double warps = 4.0 * warpgroups(t.kind(), t.fetch) / t.kind().blocks();
  return warps * t.kind().channels * kPieceBytes + fetched_bytes(p, t);
}

// What a tile takes until it is summed: clocks of the busiest unit, and how often it waits.
struct Clocks {
  double busy, waits;
};

Clocks count_clocks(const Forward& p, const DeviceProperties& d, const Tile& t) {
  const Kernel& kind = t.kind();
  const bool boxes = t.fetch == Fetch::kShared;
  const double size = static_cast<double>(element_size(p.dtype));
  const double planes = t.h.planes * t.w.planes;
  const double flat = t.row.interleaved ? 1 : static_cast<double>(p.C);
  const double channels = t.is_flat() ? flat : t.pieces * static_cast<double>(kPieceBytes) / size;
  // A box takes as long as if all of its 128 bytes of channels existed.
  const double position_bytes =
      boxes ? t.chunks() * static_cast<double>(kRowBytes) : channels * size;
  const double input = t.positions * planes * position_bytes;
  const double taps = t.is_flat() ? 1 : static_cast<double>(p.R * p.S);
  const double products = taps * t.pieces;
  const double weights = products * kind.channels * kPieceBytes;

  const double count = products * kind.blocks();
  const double operands =
      t.by_warps ? warp_bytes(p, t) : kind.channels * kPieceBytes + fetched_bytes(p, t);
  const double moved = count * operands + weights + input;
  const double groups = products / (boxes ? kRowBytes / kPieceBytes : group_products(t.fetch));

  // The copy engine copies pixels row by row, or a few warps do, one instruction after the other.
  double copies = 0;
  if (t.row.boxes > 0) {
    copies = planes * t.plane_rows * t.row.boxes * channels * hardware::kCopyRowClocks;
  } else if (is_copied(t.fetch)) {
    const double instructions = t.row.shifted       ? kShiftedInstructions / 16
                                : t.row.vector == 2 ? kElementInstructions / 2
                                                    : kCopyInstructions / t.row.vector;
    copies = input * instructions * hardware::kDependentClocks / kRowThreads;
  } else if (!t.by_warps) {
    const double pieces = p.groups == 1 ? copied_pieces(p.C * element_size(p.dtype), kRowBytes) : 1;
    copies = (input + weights) / kRowBytes * pieces * hardware::kCopyRowClocks;
  }
  if (t.by_warps) {
    const double copied = weights + (boxes ? input : 0);
    copies += copied / 16 * kCopyInstructions * hardware::kDependentClocks / kRowThreads;
  }
  // With few stages of weights, products wait for them.
  const double arrivals = groups * hardware::kMemoryClocks / t.w_stages;
  return {busiest({count * instruction_clocks(p, d, t), moved / hardware::kSharedBytesPerClock,
                   (input + weights) / hardware::kL2BytesPerClock, copies, arrivals}),
          groups};
}

Store store_of(const Forward& p, const Tile& t) {
  const double size = static_cast<double>(element_size(p.dtype));
  const double results = static_cast<double>(t.kind().pixels) * t.kind().channels;
  if (t.clustered) return Store::kCluster;
  if (t.splits > 1) return Store::kSplits;
  if (t.boxed_out) return staging(p, t) >= results * size ? Store::kBoxes : Store::kThreads;
  if (t.fetch != Fetch::kShared && stores_planes(p)) return Store::kPlanes;
  // Pixels without whole units of 16 bytes are stored element by element.
  const bool by_elements = p.y_strides[1] == 1 && p.K * element_size(p.dtype) % 16 != 0;
  return by_elements ? Store::kElements : Store::kThreads;
}

}  // namespace

double instruction_clocks(const ConvProblem& p, const DeviceProperties& d, const Tile& t) {
  const double size = static_cast<double>(element_size(p.dtype));
  const double flop = 2.0 * kInstructionRows * t.kind().channels * kPieceBytes / size;
  return flop * d.sm_count * d.clock_ghz * 1e9 / d.matrix_flops(p.dtype, p.tf32);
}

int64_t blocks_at_once(const DeviceProperties& d, const Tile& t) {
  const double share = t.cluster() > 2 ? hardware::kClusterReach : 1;
  const auto clusters = static_cast<int64_t>(share * d.sm_count / t.cluster());
  return std::max<int64_t>(clusters, 1) * t.cluster();
}

uint16_t store_row(const Forward& p, Store store) {
  return price_row(PriceKind::kRowStore,
                   static_cast<int>(store) * 2 + (p.dtype == DType::kFloat32 ? 1 : 0));
}

double stored_bytes(const Forward& p, const Tile& t, Store store) {
  const double size = static_cast<double>(element_size(p.dtype));
  const double results = static_cast<double>(t.kind().pixels) * t.kind().channels;
  switch (store) {
    case Store::kBoxes:
    case Store::kThreads:
    case Store::kElements:
      return results * size;
    case Store::kPlanes: {
      // A line counts whole, also where a row of the tile fills only a part of it.
      const double line = kRowBytes / size;
      const double width = t.shape == Shape::kLines ? std::min<double>(t.columns, line) : line;
      return results / width * kRowBytes;
    }
    case Store::kCluster:
      return results * (size / static_cast<double>(t.splits) + 4);
    case Store::kSplits:
      return results * 4;
  }
  return 0;
}

uint16_t loop_row(const Tile& t, int wide) {
  // The first row of each way to fetch. A way that has kernels by warpgroups and by warps has a row
  // for each of them.
  constexpr int kFirst[kFetchCount] = {0, 0, 1, 3, 5, 6, 8};
  if (t.fetch == Fetch::kShared) {
    return price_row(PriceKind::kBoxLoop, (t.by_warps ? kKernelCount : t.kernel) * 2 + wide);
  }
  const bool only_by_warps = t.fetch == Fetch::kPieces || t.fetch == Fetch::kElements;
  const int second = t.by_warps && !only_by_warps ? 1 : 0;
  return price_row(PriceKind::kRowLoop, (kFirst[static_cast<int>(t.fetch)] + second) * 2 + wide);
}

Work adding(const Tile& t) {
  constexpr double kAtOnce = 4;  // splits that a thread loads before it waits
  Work work = moving(PriceKind::kAddSplits, 0, static_cast<double>(partial_bytes(t)));
  work.waits = static_cast<float>(std::ceil(t.splits / kAtOnce));
  return work;
}

WorkList count_work(const Forward& p, const DeviceProperties& d, const Tile& t) {
  const int wide = p.dtype == DType::kFloat32 ? 1 : 0;
  const Clocks clocks = count_clocks(p, d, t);
  const Store store = store_of(p, t);
  Work loop;
  loop.row = loop_row(t, wide);
  loop.store_row = store_row(p, store);
  loop.blocks = static_cast<float>(t.tiles() * t.splits);
  loop.sms = static_cast<float>(blocks_at_once(d, t));
  loop.busy = static_cast<float>(clocks.busy / static_cast<double>(t.splits));
  loop.waits = static_cast<float>(clocks.waits / static_cast<double>(t.splits));
  loop.stored = static_cast<float>(stored_bytes(p, t, store));
  // Rows of a tile follow each other where it has all columns, or is a run.
  const bool whole_rows = t.tiles_q == 1 || t.shape == Shape::kRun;
  const int64_t runs = (whole_rows ? t.tiles_n * t.tiles_p : p.N * p.P) * t.tiles_q;
  loop.bytes = static_cast<float>(p.least_bytes() + split_sector_bytes(p, runs));
  WorkList works;
  works.add(loop);
  if (partial_bytes(t) > 0) works.add(adding(t));
  if (p.woven > 0) works.add(weaving(p, /*planes=*/true));
  const PackedWeight weight = packed_weight(p, t);
  if (!weight.in_place) {
    works.add(packing(
        p, weight, has_matrix(t.fetch) ? matrix_packing(p, t.transposed) : WeightPacking::kUnits));
  }
  return works;
}

}  // namespace customconv::implicit_gemm
