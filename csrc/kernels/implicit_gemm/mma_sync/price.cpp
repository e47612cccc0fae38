#include "kernels/implicit_gemm/mma_sync/price.h"

#include <algorithm>
#include <cmath>

#include "kernels/implicit_gemm/moving.h"
#include "plan/hardware.h"
#include "plan/price.h"

namespace customconv::implicit_gemm::mma_sync {

namespace {

// Instructions of a thread for each copy.
constexpr double kCopyInstructions = 8;      // of a vector
constexpr double kElementInstructions = 12;  // of an element, through registers
constexpr double kShiftedInstructions = 40;  // of a vector that is put together from words

// How a tile's results leave it; each way has a price.
enum class Store : int { kThreads, kPlanes, kSplits, kElements };

int is_wide(const ConvProblem& p) { return p.dtype == DType::kFloat32 ? 1 : 0; }

uint16_t store_row(const ConvProblem& p, Store store) {
  return price_row(PriceKind::kMmaSyncStore, static_cast<int>(store) * 2 + is_wide(p));
}

// Bytes of shared memory that a warpgroup reads for the pixels of a block's products. A thread
// reads a whole bank at a time: for a pair of pixels, but also for an element that it fetches
// alone.
double fetched_bytes(const ConvProblem& p, const Tile& t) {
  constexpr double kBankBytes = 4;
  const double bytes = kBlockPixels * kPieceBytes;
  const bool alone = t.fetch == Fetch::kElements || t.fetch == Fetch::kFlat;
  return alone ? bytes / static_cast<double>(element_size(p.dtype)) * kBankBytes : bytes;
}

// The same with weights: each warp loads all of them for its own pixels.
double operand_bytes(const ConvProblem& p, const Tile& t) {
  const double warps = 4.0 * kWarpgroups / t.kind().blocks();
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
  // A pixel of a box takes as long as if all of its 128 bytes of channels existed.
  const double position_bytes =
      boxes ? t.chunks() * static_cast<double>(kRowBytes) : channels * size;
  const double input = t.positions * planes * position_bytes;
  const double taps = t.is_flat() ? 1 : static_cast<double>(p.R * p.S);
  const double products = taps * t.pieces;
  const double weights = products * kind.channels * kPieceBytes;

  const double count = products * kind.blocks();
  const double moved = count * operand_bytes(p, t) + weights + input;
  const double groups = products / (boxes ? kRowBytes / kPieceBytes : group_products(t.fetch));

  // A few warps copy, one instruction after the other.
  const double vector = kCopyInstructions / 16;
  double instructions = vector;  // for a byte of the input
  if (!boxes) {
    instructions = t.row.shifted       ? kShiftedInstructions / 16
                   : t.row.vector == 2 ? kElementInstructions / 2
                                       : kCopyInstructions / t.row.vector;
  }
  const double copies =
      (input * instructions + weights * vector) * hardware::kDependentClocks / kRowThreads;
  // With few stages of weights, products wait for them.
  const double arrivals = groups * hardware::kMemoryClocks / t.w_stages;
  return {busiest({count * product_clocks(p, d, t), moved / hardware::kSharedBytesPerClock,
                   (input + weights) / hardware::kL2BytesPerClock, copies, arrivals}),
          groups};
}

Store store_of(const Forward& p, const Tile& t) {
  if (t.splits > 1) return Store::kSplits;
  if (t.fetch != Fetch::kShared && stores_planes(p)) return Store::kPlanes;
  // Pixels without whole units of 16 bytes are stored element by element.
  const bool by_elements = p.y_strides[1] == 1 && p.K * element_size(p.dtype) % 16 != 0;
  return by_elements ? Store::kElements : Store::kThreads;
}

// Bytes that a tile stores, as the memory system counts them.
double stored_bytes(const Forward& p, const Tile& t, Store store) {
  if (store == Store::kSplits) return split_stored_bytes(t);
  const double size = static_cast<double>(element_size(p.dtype));
  const double results = static_cast<double>(t.kind().pixels) * t.kind().channels;
  if (store != Store::kPlanes) return results * size;
  // A line counts whole, also where a row of the tile fills only a part of it.
  const double line = kRowBytes / size;
  const double width = t.shape == Shape::kLines ? std::min<double>(t.columns, line) : line;
  return results / width * kRowBytes;
}

}  // namespace

double product_clocks(const ConvProblem& p, const DeviceProperties& d, const Tile& t) {
  const double size = static_cast<double>(element_size(p.dtype));
  const double flop = 2.0 * kBlockPixels * t.kind().channels * kPieceBytes / size;
  return flop * d.sm_count * d.clock_ghz * 1e9 / d.matrix_flops(p.dtype, p.tf32);
}

uint16_t loop_row(const ConvProblem& p, const Tile& t) {
  return price_row(PriceKind::kMmaSyncLoop, static_cast<int>(t.fetch) * 2 + is_wide(p));
}

uint16_t split_store_row(const ConvProblem& p) { return store_row(p, Store::kSplits); }

double split_stored_bytes(const Tile& t) {
  return static_cast<double>(t.kind().pixels) * t.kind().channels * 4;
}

Work adding(const Tile& t) {
  constexpr double kAtOnce = 4;  // splits that a thread loads before it waits
  Work work = moving(PriceKind::kMmaSyncSplits, 0, static_cast<double>(partial_bytes(t)));
  work.waits = static_cast<float>(std::ceil(t.splits / kAtOnce));
  return work;
}

WorkList count_work(const Forward& p, const DeviceProperties& d, const Tile& t) {
  const Clocks clocks = count_clocks(p, d, t);
  const Store store = store_of(p, t);
  Work loop;
  loop.row = loop_row(p, t);
  loop.store_row = store_row(p, store);
  loop.blocks = static_cast<float>(t.tiles() * t.splits);
  loop.sms = static_cast<float>(d.sm_count);
  loop.busy = static_cast<float>(clocks.busy / static_cast<double>(t.splits));
  loop.waits = static_cast<float>(clocks.waits / static_cast<double>(t.splits));
  loop.stored = static_cast<float>(stored_bytes(p, t, store));
  // Rows of a tile follow each other where it has all columns, or is a run.
  const bool whole_rows = t.tiles_q == 1 || t.shape == Shape::kRun;
  const int64_t runs = (whole_rows ? t.tiles_n * t.tiles_p : p.N * p.P) * t.tiles_q;
  loop.bytes = static_cast<float>(p.least_bytes() + split_sector_bytes(p, runs));
  WorkList works;
  works.add(loop);
  if (t.splits > 1) works.add(adding(t));
  if (p.woven > 0) works.add(weaving(p, /*planes=*/true));
  const PackedWeight weight = packed_weight(p, t);
  if (!weight.in_place) {
    works.add(packing(
        p, weight,
        has_matrix(t.fetch) ? matrix_packing(p, /*transposed=*/false) : WeightPacking::kUnits));
  }
  return works;
}

}  // namespace customconv::implicit_gemm::mma_sync
