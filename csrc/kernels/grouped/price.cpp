#include "kernels/grouped/price.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/parts.h"
#include "plan/hardware.h"

namespace customconv::grouped {

namespace {

// Instructions of a warp, as the kernels have them.
constexpr double kSlotInstructions = 40;     // of 32 slots: where their pixels are
constexpr double kVectorInstructions = 12;   // brought: of 32 units
constexpr double kElementInstructions = 12;  // the same, of 32 elements
constexpr double kStepInstructions = 6;      // of products, besides operands: a table, the loop
constexpr double kOperandInstructions = 2;   // its address, the load
constexpr double kOutputInstructions = 30;   // a vector of channels, or a pixel: where, the store
constexpr double kTileInstructions = 100;    // and phase: what it is, barriers
constexpr double kSumInstructions = 2;       // of a product's four: zeroed, staged

// The same of boxes.
constexpr double kBoxOperandInstructions = 5;  // its swizzled address, the load
constexpr double kBoxOutputInstructions = 4;   // of a lane's pixel
constexpr double kWeightInstructions = 60;     // brought: of a lane's sixteen bytes, by divisions
constexpr double kPieceInstructions = 12;      // brought by threads: of an element of a piece
constexpr double kTurnInstructions = 160;      // of 2 KB of strips
constexpr double kStoredVectorInstructions = 30;  // of planes
// In a weight gradient, of a product's four sums: left as they are, exchanged, stored in the
// result.
constexpr double kLeftInstructions = 8;
constexpr double kExchangedInstructions = 30;
constexpr double kStoredInstructions = 80;
constexpr double kClusterWaits = 2;  // until all blocks have their sums, and until all are read

// What threads that bring boxes and store planes cost: a warp's instructions, lines that the
// first-level cache looks for, bytes to and from the second-level cache, and how often a warp
// waits.
struct ByThreads {
  double issues = 0, lines = 0, bytes = 0, waits = 0;
};
// Rows of an image, with so many pixels each, of so many channels. `stride`: of these pixels.
void count_rows(ByThreads& all, int size, double rows, double pixels, double channels,
                int64_t stride) {
  const double row_bytes = pixels * size * static_cast<double>(stride);
  all.lines += rows * channels * std::min(1 + row_bytes / hardware::kSharedBytesPerClock, pixels);
  all.bytes += rows * channels *
               std::min(hardware::kSectorBytes + row_bytes, pixels * hardware::kSectorBytes);
}
void count_boxes(ByThreads& all, int size, const Shape5& strides, int rows, int pixels,
                 int64_t pieces) {
  const double elements = static_cast<double>(kPieceBytes) / size;
  count_rows(all, size, rows, pixels, static_cast<double>(pieces) * elements, strides[3]);
  // A lane brings a piece's elements of two pixels at a time.
  const double turns = std::ceil(rows * pixels / 64.0) * static_cast<double>(pieces);
  all.issues += turns * 2 * elements * kPieceInstructions;
  all.waits += std::ceil(turns / (box_producers(size) / 32));
}

// Strips that warps transpose into boxes.
void count_strips(ByThreads& all, const Strips& s, int images) {
  const double part = 16 * kBoxRowBytes;  // bytes
  const double bytes = s.brought_bytes(images);
  const double turns = bytes / part;
  all.issues += turns * kTurnInstructions;
  all.lines += 2 * bytes / kBoxRowBytes;
  all.waits += std::ceil(turns / (kMostThreads / 32)) / hardware::kStepsOfWait;
}

// How often a block waits for its own tiles of so many bytes: for the first one of all blocks,
// and for others, of which some come meanwhile.
double tile_waits(const customconv::Work& work, double own, double bytes, int stages) {
  const double together = std::min<double>(work.resident, std::ceil(work.blocks / work.sms));
  const double whole = 1 + together * bytes / hardware::kBroughtBytes;
  return stages > 1 ? whole + (own - 1) / stages : own * whole;
}

// How often threads wait that bring so many units of each of some pixels.
double bring_waits(bool vectors, double pixels, double units, double threads, double at_once) {
  if (vectors) return std::ceil(pixels * units / 2 / (threads * at_once));
  return std::ceil(units / (threads / 32)) * std::ceil(pixels / (32 * at_once));
}

}  // namespace

double count_conflicts(const Geometry& g, const Tile& tile) {
  const int pixels = tile.pixels(), down = g.h.step / g.h.class_step * tile.pitch;
  int asked = 0, eights = 0, column = 0, row = 0, image = 0, slot = 0;
  for (int first = 0; first < pixels; first += 8, ++eights) {
    uint32_t found = 0;  // of each of eight banks so many, four bits each
    int most = 0;
    for (int i = first; i < std::min(first + 8, pixels); ++i) {
      const int bank = (slot + column) % 8 * 4;
      found += 1u << bank;
      most = std::max(most, static_cast<int>(found >> bank & 15));
      if (++column < tile.columns) continue;
      column = 0;
      slot += down;
      if (++row < tile.rows) continue;
      row = 0;
      slot = ++image * tile.kept_rows * tile.pitch;
    }
    asked += most;
  }
  return static_cast<double>(asked) / eights;
}

WorkList Counter::count(const SlotsPlan& v, const Work& w, const ConvPlan& plan,
                        double resident) const {
  const Tile& tile = w.tile;
  const Kernel& kernel = kKernels[v.kernel];
  const double passes = v.passes;
  const double own = static_cast<double>(ceil_divide(w.tiles.all(), v.tile_blocks));
  const double slots = tile.slots, warps = w.threads / 32.0;
  const double steps = static_cast<double>(w.packed_steps);
  const double pixels = kernel.pixels, channels = kernel.channels;
  const double units = slots * w.groups * w.units * w.chunks;
  const double weights = steps * w.groups * w.channel_tiles * kVectorInstructions;
  double issues = slots / 32 * kSlotInstructions + units / 32 * bring(in_vectors_);
  if (!w.resident) issues += weights;
  issues += warps * passes * steps *
            (kStepInstructions + channels + pixels * (kOperandInstructions + channels));
  const double phases = g_.h.phases * g_.w.phases;
  const double outputs =
      phases * tile.pixels() * w.groups *
      static_cast<double>(std::min<int64_t>(g_.K, w.channel_tiles * kChannelTile));
  issues += outputs / 32 * kOutputInstructions / (out_vectors_ ? 16 / size_ : 1) +
            warps * phases * (kTileInstructions + passes * pixels * channels * kSumInstructions);
  // Single units are read for four taps at a time, from two rows of the tile. For filters three
  // wide, they lie in banks of their own where rows are so far apart.
  const int turn = tile.pitch % 16;
  const double operand = w.units > 1 || (turn >= 6 && turn <= 12) ? 2 : 4;
  const double operands = warps * passes * steps * (1 + 4 * channels + operand * pixels);
  const double products = warps * passes * steps * pixels * channels * hardware::kWarpProductClocks;
  const double stages = phases > 1 && w.chunks > 1 ? phases * w.chunks : w.chunks;
  const double once = w.resident ? weights / hardware::kSchedulers : 0;
  WorkList works;
  customconv::Work pack;
  pack.row = price_row(PriceKind::kGroupedWeights, 0);
  pack.waits = 2;
  pack.bytes = static_cast<float>(2 * plan.workspace_bytes);
  works.add(pack);
  customconv::Work work = work_of(PriceKind::kGroupedSlots,
                                  (w.resident ? 0 : 2) + (size_ == 2 ? 0 : 1), plan, resident);
  const double clocks = busiest({issues / hardware::kSchedulers, operands, products});
  work.busy = static_cast<float>(own * clocks + once);
  // Whoever brings a tile: the list of its slots, and slots as often as registers have room.
  const int bringing = w.resident ? kProducers : w.threads, at_once = w.resident ? 8 : 4;
  const double brings = bring_waits(in_vectors_, slots, w.groups * w.units, bringing, at_once);
  const double fills = w.resident ? 0 : std::ceil(steps / stages / w.steps);
  work.waits = static_cast<float>(
      3 + own * (1 + phases + stages * (brings + fills) + passes * steps / hardware::kStepsOfWait));
  work.bytes = static_cast<float>(p_.least_bytes() + part_bytes());
  works.add(work);
  return works;
}

WorkList Counter::count(const BoxesPlan& v, const BoxWork& w, const ConvPlan& plan, double resident,
                        double asked) const {
  const BoxKernel& kernel = kBoxKernels[v.kernel];
  const double own = static_cast<double>(ceil_divide(w.tiles.all(), v.tile_blocks));
  const double warps = w.warps, pixels = kernel.pixels, channels = kernel.channels;
  const double phases = g_.h.phases * g_.w.phases, steps = warps * w.steps;
  const double issues =
      steps * (kStepInstructions + channels + pixels * (kBoxOperandInstructions + channels)) +
      warps * phases * (kTileInstructions + 2 * pixels * (kBoxOutputInstructions + 2 * channels));
  // Accesses of shared memory, 128 bytes each.
  const double shared = steps * (1 + 2 * channels + 4 * pixels * asked) +
                        w.brought_bytes() / hardware::kSharedBytesPerClock +
                        warps * phases * pixels * 2;
  const double products = steps * pixels * channels * hardware::kWarpProductClocks;
  ByThreads threads;
  if (w.loading == Loading::kStrips) {
    count_strips(threads, w.strips, w.tile.images);
  } else if (w.loading == Loading::kThreads) {
    const Tile& t = w.tile;
    count_boxes(threads, size_, g_.in, t.images * t.kept_rows, t.kept_columns * g_.w.classes,
                int64_t{w.sets} * w.pieces);
  }
  if (w.out_pitch > 0) {
    int vector = g_.w.phases > 1 ? 1 : 16 / size_;
    while (w.tile.columns % vector != 0 || g_.w.out % vector != 0) vector /= 2;
    threads.issues +=
        phases * w.stored * w.tile.pixels() / (32.0 * vector) * kStoredVectorInstructions;
    count_rows(threads, size_, phases * w.tile.images * w.tile.rows, w.tile.columns, w.stored,
               g_.out[3] * g_.w.phases);
  }
  // Weights are brought once, by sixteen bytes, or element by element.
  const bool by_vectors = g_.weight_c == 1 || g_.weight_k == 1;
  const double pieces = w.steps * channels * kStepWeights / (32.0 * kPieceBytes);  // of a lane
  const double filling =
      w.sets * w.column_warps * pieces *
      (kWeightInstructions + (by_vectors ? 0 : kPieceBytes / size_ * kElementInstructions));
  const double fills = std::ceil(pieces / v.pixel_warps / (by_vectors ? 8 : 2));
  customconv::Work work =
      work_of(PriceKind::kGroupedBoxes, static_cast<int>(w.loading) * 2 + (size_ == 2 ? 0 : 1),
              plan, resident);
  const double tile =
      busiest({(issues + threads.issues) / hardware::kSchedulers, shared + threads.lines, products,
               std::max<double>(w.brought_bytes(), threads.bytes) / hardware::kL2BytesPerClock});
  work.busy = static_cast<float>(own * tile + filling / hardware::kSchedulers);
  work.waits =
      static_cast<float>(2 + fills + tile_waits(work, own, w.brought_bytes(), w.stages) +
                         own * (threads.waits + phases + w.steps / hardware::kStepsOfWait));
  work.bytes = static_cast<float>(p_.least_bytes() + part_bytes());
  WorkList works;
  works.add(work);
  return works;
}

GradientClocks Counter::count_tile(const SlotGradientsPlan& v, const GradientWork& w) const {
  const Tile& tile = w.tile;
  const GradientKernel& kernel = v.own_kernel();
  const double warps = w.cut.threads / 32.0, pairs = kernel.pairs, channels = kernel.channels;
  const double steps = std::ceil(tile.pixels() / (32.0 / size_) / v.pixel_warps);
  const double units = kOctet * size_ / kUnitBytes;
  double issues = (tile.slots + tile.pixels()) / 32.0 * kSlotInstructions;
  issues += tile.slots * w.cut.sets * w.cut.octets * units / 32 * bring(in_vectors_);
  issues += tile.pixels() * w.cut.sets * w.cut.columns * units / 32 * bring(out_vectors_);
  const double loads = size_ == 2 ? 1 : 4;
  issues += warps * steps * (kStepInstructions + pairs * (3 * loads + channels));
  const double operands = warps * steps * (2 + 2 * channels + 4 * pairs);
  const double products = warps * steps * pairs * channels * hardware::kWarpProductClocks;
  const double clocks = busiest({issues / hardware::kSchedulers, operands, products});
  const double waits =
      1 + steps / hardware::kStepsOfWait +
      bring_waits(in_vectors_, tile.slots, w.cut.sets * w.cut.octets * units, w.cut.threads, 4) +
      bring_waits(out_vectors_, tile.pixels(), w.cut.sets * w.cut.columns * units, w.cut.threads,
                  4);
  const double sums = warps * pairs * channels * 4 * kLeftInstructions / hardware::kSchedulers;
  return {clocks, waits, sums};
}

GradientClocks Counter::count_tile(const BoxGradientsPlan& v, const GradientBoxWork& w,
                                   double asked) const {
  const GradientKernel& kernel = v.own_kernel();
  const Tile& tile = w.tile;
  const double warps = w.cut.threads / 32.0, pairs = kernel.pairs, channels = kernel.channels;
  const double own_steps =
      std::ceil(static_cast<double>(ceil_divide(tile.pixels(), kStepPixels)) / v.pixel_warps);
  const double steps = warps * own_steps;
  const bool checks = tile.pixels() % kStepPixels != 0 || g_.w.positions % tile.columns != 0 ||
                      g_.h.positions % tile.rows != 0;
  const double issues =
      warps * kTileInstructions +
      steps * ((checks ? 2 : 1) * 8 + 2 * channels + pairs * (kBoxOperandInstructions + channels));
  const double shared = steps * (1 + 2 * channels + 4 * pairs * asked) +
                        w.brought_bytes() / hardware::kSharedBytesPerClock;
  const double products = steps * pairs * channels * hardware::kWarpProductClocks;
  ByThreads threads;
  if (w.loading == Loading::kStrips) {
    count_strips(threads, w.strips, tile.images);
    count_strips(threads, w.out_strips, tile.images);
  } else if (w.loading == Loading::kThreads) {
    count_boxes(threads, size_, g_.in, tile.images * tile.kept_rows,
                tile.kept_columns * g_.w.classes, int64_t{w.cut.sets} * w.cut.octets);
    count_boxes(threads, size_, g_.out, tile.images * tile.rows, tile.columns,
                int64_t{w.cut.sets} * w.cut.columns);
  }
  const double clocks =
      busiest({(issues + threads.issues) / hardware::kSchedulers, shared + threads.lines, products,
               std::max<double>(w.brought_bytes(), threads.bytes) / hardware::kL2BytesPerClock});
  // Operands are loaded some at a time.
  const double waits = threads.waits + own_steps * std::ceil(pairs / 3) / hardware::kStepsOfWait;
  const double sums = warps * pairs * channels / hardware::kSchedulers;
  return {clocks, waits, sums};
}

WorkList Counter::count(const SlotGradientsPlan& v, const GradientWork& w, const ConvPlan& plan,
                        double resident, const GradientClocks& clocks) const {
  const double own =
      static_cast<double>(ceil_divide(w.cut.tiles.all(), plan.splits / v.pixel_warps));
  customconv::Work work =
      work_of(PriceKind::kGroupedSlotGradients, size_ == 2 ? 0 : 1, plan, resident);
  work.busy = static_cast<float>(own * clocks.tile + clocks.sums);
  work.waits = static_cast<float>(3 + own * clocks.waits);
  work.bytes = static_cast<float>(p_.least_bytes());
  WorkList works;
  works.add(work);
  works.add(adding_up(p_.w_count(), plan.splits, d_));
  return works;
}

WorkList Counter::count(const BoxGradientsPlan& v, const GradientBoxWork& w, const ConvPlan& plan,
                        double resident, const GradientClocks& clocks) const {
  const GradientKernel& kernel = v.own_kernel();
  const int64_t cluster = v.cluster, parts = plan.splits / cluster;
  const double own = static_cast<double>(ceil_divide(w.cut.tiles.all(), plan.splits));
  const double sums_bytes = w.cut.threads / v.pixel_warps * kernel.pairs * kernel.channels * 16.0;
  const double others = static_cast<double>(cluster - 1) / static_cast<double>(cluster);
  const double exchange = sums_bytes * others / hardware::kL2BytesPerClock;
  const bool exchanges_sums = cluster * v.pixel_warps > 1;
  const double stored = parts == 1       ? kStoredInstructions
                        : exchanges_sums ? kExchangedInstructions
                                         : kLeftInstructions;
  customconv::Work work =
      work_of(PriceKind::kGroupedBoxGradients, static_cast<int>(w.loading), plan, resident);
  work.busy = static_cast<float>(own * clocks.tile + clocks.sums * stored + exchange);
  const double exchanges = std::ceil(clocks.sums * hardware::kSchedulers / (w.cut.threads / 32.0) /
                                     static_cast<double>(v.pixel_warps * cluster)) *
                           (parts == 1 || exchanges_sums ? 1 : 0);
  work.waits =
      static_cast<float>(3 + tile_waits(work, own, w.brought_bytes(), w.stages) +
                         own * clocks.waits + exchanges + (cluster > 1 ? kClusterWaits : 0));
  work.bytes = static_cast<float>(p_.least_bytes());
  WorkList works;
  works.add(work);
  if (parts > 1) works.add(adding_up(w.part * 4, parts, d_));
  return works;
}

// For blocks that share a multiprocessor.
customconv::Work Counter::work_of(PriceKind kind, int row, const ConvPlan& plan,
                                  double resident) const {
  customconv::Work work;
  work.row = price_row(kind, row);
  work.blocks = static_cast<float>(plan.blocks);
  work.sms = static_cast<float>(d_.sm_count);
  work.resident = static_cast<float>(resident);
  return work;
}

// Bytes beyond the least: each phase of a plane's columns writes parts of all sectors.
double Counter::part_bytes() const {
  const int parts = is_planar(g_) ? g_.w.phases - 1 : 0;
  return static_cast<double>(parts) * size_ * static_cast<double>(p_.x_count());
}

// A warp's instructions for a unit of 32 pixels.
double Counter::bring(bool vectors) const {
  return vectors ? kVectorInstructions : kElementInstructions * kUnitBytes / size_;
}

}  // namespace customconv::grouped
