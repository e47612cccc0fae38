// grouped: groups on the tensor cores, thin ones several to a block.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/grouped/geometry.h"

namespace customconv::grouped {

namespace {

// The cost model: a warp's instructions, by purpose.
constexpr double kInstructionsPerSlot = 46.3;    // listed
constexpr double kInstructionsPerVector = 37.2;  // brought
constexpr double kInstructionsPerElement = 24.3;
constexpr double kInstructionsPerStep = 2.73;  // of products, besides operands
constexpr double kInstructionsPerOperand = 1.5;
constexpr double kInstructionsPerOutput = 63.5;  // stored: a vector of channels, or a pixel
constexpr double kInstructionsPerTile = 100;     // and phase, of a warp
constexpr double kInstructionsPerPass = 20;
constexpr double kInstructionsPerSum = 2;   // of a product's four: zeroed, staged
constexpr double kIssueEfficiency = 0.896;  // of an instruction a clock, of each scheduler
// Clocks of a multiprocessor: of a product of 16 by 8 by 32 bytes, and of an operand's 512 bytes
// from shared memory.
constexpr double kProductClocks = 1.9;
constexpr double kOperandClocks = 2.03;
constexpr double kBlockClocks = 3.36e+03;  // that a block waits: until it begins
constexpr double kTileClocks = 2960;       // for a tile, where producers bring it
constexpr double kTurnClocks = 4280;       // and where all threads bring it or a chunk in turns
constexpr double kBandwidthEfficiency = 0.666;
constexpr double kOverlapLoss = 1;
constexpr double kLaunchMs = 4.9e-3;
constexpr double kPackMs = 0.9e-3;
constexpr double kNextMs = 2.9e-3;  // of a weight gradient's second kernel

constexpr int kGradientPixels[] = {64, 128, 256};  // of a tile
constexpr int kGradientTurns[] = {2, 4};           // blocks for each multiprocessor
constexpr int64_t kMostPartBytes = 64 << 20;

// The variants whose smallest tile decides whether there is a plan.
constexpr Variant kLeast{1, 0, 0};
constexpr Variant kLeastGradient{0, 0, 0};

const char* can_implement(const ConvProblem& p, const DeviceProperties& d) {
  if (p.groups == 1) return "it has one group";
  if (p.group_C() == 1) return "a group has one input channel";
  if (p.dtype == DType::kFloat64) return "tensor cores would round float64";
  if (p.dtype == DType::kFloat32 && !p.tf32) return "TF32 is off, and tensor cores would round";
  if (d.capability_major < 8) return "it needs compute capability 8.0";
  if (!has_int32_coordinates(p)) return "image coordinates pass 2^31";
  if (!has_phases(p)) return "the input gradient of a stride above 8";
  if (p.w_count() > INT32_MAX / 2 || std::max(p.C, p.K) > INT32_MAX / 2) {
    return "the weight passes 2^30 elements";
  }
  const Geometry g = geometry_of(p);
  const double tiles = static_cast<double>(p.N) * g.h.positions * g.w.positions;
  if (tiles * static_cast<double>(p.groups + p.K) > INT32_MAX) {
    return "it has too many output pixels for one grid";
  }
  const Tile least = tile_of(g, 1, 1, 1);
  const int64_t size = element_size(p.dtype);
  const bool fits =
      p.pass == Pass::kWgrad
          ? gradient_work_of(g, kLeastGradient, least, size, d.shared_bytes_block).fits
          : work_of(g, kLeast, least, size, d.shared_bytes_block).fits;
  return fits ? nullptr : "its halo fits no shared memory";
}

int64_t even_piece(int64_t size, int64_t most) {
  return ceil_divide(size, ceil_divide(size, most));
}

class Search {
 public:
  // `all`: where every plan goes that is weighed.
  Search(const ConvProblem& p, const DeviceProperties& d, std::vector<ConvPlan>* all = nullptr)
      : p_(p),
        d_(d),
        g_(geometry_of(p)),
        size_(static_cast<int>(element_size(p.dtype))),
        all_(all) {
    in_vectors_ = g_.in[1] == 1 && g_.C * size_ % kUnitBytes == 0;
    out_vectors_ = g_.out[1] == 1 && g_.K * size_ % kUnitBytes == 0;
  }

  ConvPlan best() {
    const bool gradient = p_.pass == Pass::kWgrad;
    const int kernels = gradient ? kGradientKernelCount : kKernelCount;
    for (int kernel = 0; kernel < kernels; ++kernel) {
      for (int warps = 0; warps < 4; ++warps) {
        if (gradient) {
          for (const int pixels : kGradientPixels) try_tiles({kernel, warps, 0}, pixels);
          continue;
        }
        for (int passes = 0; passes < kPassChoices; ++passes) {
          const Variant v{kernel, warps, passes};
          try_tiles(v, v.pixels());
        }
      }
    }
    return best_;
  }

 private:
  // Tiles of about so many pixels, from wide ones to narrow ones.
  void try_tiles(const Variant& v, int64_t pixels) {
    constexpr int64_t kNarrow = 6;
    int64_t last = 0;
    for (int64_t most = pixels; most >= std::min<int64_t>(kNarrow, pixels); most /= 2) {
      const int64_t columns = even_piece(g_.w.positions, most);
      if (columns == last) continue;
      last = columns;
      const int64_t rows = even_piece(g_.h.positions, pixels / columns);
      const bool whole = rows == g_.h.positions && columns == g_.w.positions;
      const int64_t images = whole ? even_piece(p_.N, pixels / (rows * columns)) : 1;
      fit(v, images, rows, columns);
    }
  }

  // Takes the tile, or of one that is too large a part.
  void fit(const Variant& v, int64_t images, int64_t rows, int64_t columns) {
    for (;;) {
      const Tile tile =
          tile_of(g_, static_cast<int>(images), static_cast<int>(rows), static_cast<int>(columns));
      if (p_.pass == Pass::kWgrad ? consider_gradient(v, tile) : consider(v, tile)) return;
      int64_t& most = images > 1 ? images : rows >= columns ? rows : columns;
      if (most == 1) return;
      most = (most + 1) / 2;
    }
  }

  bool consider(const Variant& v, const Tile& tile) {
    const Work w = work_of(g_, v, tile, size_, d_.shared_bytes_block);
    if (!w.fits) return v.passes > 0 && !w.resident;
    const Kernel& kernel = kKernels[v.kernel];
    const double passes = 1 << v.passes;
    const int64_t tiles = w.tiles_n * w.tiles_p * w.tiles_q;
    const double resident = std::min<double>(kernel.blocks(), resident_of(w.bytes));
    // All blocks at once, or of each slice one.
    const auto room = static_cast<int64_t>(resident) * d_.sm_count;
    int64_t tile_blocks = std::clamp<int64_t>(room / w.slices, 1, tiles);
    tile_blocks = ceil_divide(tiles, ceil_divide(tiles, tile_blocks));
    const double own = static_cast<double>(ceil_divide(tiles, tile_blocks));
    const double slots = tile.slots, warps = w.threads / 32.0;
    const double steps = static_cast<double>(w.packed_steps);
    const double pixels = kernel.pixels, channels = kernel.channels;
    const double units = slots * w.groups * w.units * w.chunks;
    const double weights = steps * w.groups * w.channel_tiles * kInstructionsPerVector;
    double issues = slots / 32 * kInstructionsPerSlot + units / 32 * bring(in_vectors_);
    if (!w.resident) issues += weights;
    issues += warps * passes * steps *
              (kInstructionsPerStep + channels + pixels * (kInstructionsPerOperand + channels));
    const double phases = g_.h.phases * g_.w.phases;
    const double outputs =
        phases * tile.pixels() * w.groups *
        static_cast<double>(std::min<int64_t>(g_.K, w.channel_tiles * kChannelTile));
    issues += outputs / 32 * kInstructionsPerOutput / (out_vectors_ ? 16 / size_ : 1) +
              warps * phases *
                  (kInstructionsPerTile +
                   passes * (kInstructionsPerPass + pixels * channels * kInstructionsPerSum));
    // Of units that are single ones, four taps are read at a time, of two rows of the tile: of
    // filters three wide these lie in banks of their own where rows are so far apart.
    const int turn = tile.pitch % 16;
    const double operand =
        w.units > 1 || (turn >= 6 && turn <= 12) ? kOperandClocks : 1.7 * kOperandClocks;
    const double operands = warps * passes * steps * (1 + 4 * channels + operand * pixels);
    const double products = warps * passes * steps * pixels * channels * kProductClocks;
    const double stages = phases > 1 && w.chunks > 1 ? phases * w.chunks : w.chunks;
    const double once = w.resident ? weights / (4 * kIssueEfficiency) : 0;
    ConvPlan plan{};
    plan.variant = kernel.name;
    plan.grid[0] = w.slices * tile_blocks;
    plan.block = w.threads + (w.resident ? kProducers : 0);
    plan.shared_bytes = w.bytes;
    plan.workspace_bytes = packed_bytes(w);
    const double bytes = p_.least_bytes() + 2.0 * static_cast<double>(plan.workspace_bytes);
    const double clocks = std::max({issues / (4 * kIssueEfficiency), operands, products});
    plan.predicted_ms =
        kLaunchMs + kPackMs +
        total_ms(static_cast<double>(plan.grid[0]), own * clocks + once,
                 kBlockClocks + own * stages * (w.resident ? kTileClocks : kTurnClocks), resident,
                 bytes);
    take(plan, v, tile);
    return true;
  }

  bool consider_gradient(const Variant& v, const Tile& tile) {
    const GradientWork w = gradient_work_of(g_, v, tile, size_, d_.shared_bytes_block);
    if (!w.fits) return false;
    const GradientKernel& kernel = kGradientKernels[v.kernel];
    const int64_t tiles = w.tiles_n * w.tiles_p * w.tiles_q;
    const double warps = w.threads / 32.0, pairs = kernel.pairs, channels = kernel.channels;
    const double steps = std::ceil(tile.pixels() / (32.0 / size_) / v.pixel_warps());
    const double units = kOctet * size_ / kUnitBytes;
    double issues = (tile.slots + tile.pixels()) / 32.0 * kInstructionsPerSlot;
    issues += tile.slots * w.sets * w.octets * units / 32 * bring(in_vectors_);
    issues += tile.pixels() * w.sets * w.columns * units / 32 * bring(out_vectors_);
    const double loads = size_ == 2 ? 1 : 4;
    issues += warps * steps * (kInstructionsPerStep + pairs * (3 * loads + channels));
    const double operands = warps * steps * (2 + 2 * channels + kOperandClocks * pairs);
    const double products = warps * steps * pairs * channels * kProductClocks;
    const double clocks = std::max({issues / (4 * kIssueEfficiency), operands, products});
    const double resident = std::min<double>(kernel.blocks(), resident_of(w.bytes));
    const double sums = warps * pairs * channels * 4 * 8 / (4 * kIssueEfficiency);
    int64_t last = 0;
    for (const int turns : kGradientTurns) {
      int64_t splits = std::clamp<int64_t>(turns * d_.sm_count / w.slices, 1, tiles);
      splits = std::min(
          splits, std::max<int64_t>(kMostPartBytes / (4 * p_.w_count() * v.pixel_warps()), 1));
      if (splits == last) break;
      last = splits;
      const double own = std::ceil(static_cast<double>(tiles) / static_cast<double>(splits));
      ConvPlan plan{};
      plan.variant = kernel.name;
      plan.grid[0] = w.slices * splits;
      plan.block = w.threads;
      plan.shared_bytes = w.bytes;
      plan.splits = splits * v.pixel_warps();
      plan.workspace_bytes = plan.splits * p_.w_count() * 4;
      const double bytes = p_.least_bytes() + 2.0 * static_cast<double>(plan.workspace_bytes);
      plan.predicted_ms = kLaunchMs + kNextMs +
                          total_ms(static_cast<double>(plan.grid[0]), clocks * own + sums,
                                   kBlockClocks + own * kTurnClocks, resident, bytes);
      take(plan, v, tile);
    }
    return true;
  }

  // A warp's instructions for a unit of 32 pixels.
  double bring(bool vectors) const {
    return vectors ? kInstructionsPerVector / 2 : kInstructionsPerElement * kUnitBytes / size_;
  }
  double resident_of(double bytes) const {
    return std::max(std::floor(d_.shared_bytes_block / (bytes + 1024)), 1.0);
  }

  // Of blocks that keep a multiprocessor busy for so many clocks, and last at least so long.
  double total_ms(double blocks, double clocks, double waits, double resident, double bytes) const {
    const double to_ms = 1 / (d_.clock_ghz * 1e6);
    const double busy_ms = std::ceil(blocks / d_.sm_count) * clocks * to_ms;
    const double waits_ms = std::ceil(blocks / (d_.sm_count * resident)) * waits * to_ms;
    const double bytes_ms = bytes / (d_.bandwidth_gb_s * 1e6 * kBandwidthEfficiency);
    const double longest = std::max({busy_ms, waits_ms, bytes_ms});
    return longest + kOverlapLoss * (busy_ms + waits_ms + bytes_ms - longest);
  }

  void take(ConvPlan& plan, const Variant& v, const Tile& tile) {
    plan.variant_index = v.index();
    plan.tile[0] = tile.rows;
    plan.tile[1] = tile.columns;
    plan.tile[2] = tile.images;
    plan.wide_index = needs_wide_index(p_);
    if (all_ != nullptr) all_->push_back(plan);
    if (best_.block == 0 || plan.predicted_ms < best_.predicted_ms) best_ = plan;
  }

  const ConvProblem& p_;
  const DeviceProperties& d_;
  const Geometry g_;
  const int size_;
  bool in_vectors_, out_vectors_;
  std::vector<ConvPlan>* all_;
  ConvPlan best_{};
};

ConvPlan propose(const ConvProblem& p, const DeviceProperties& d) { return Search(p, d).best(); }

std::vector<ConvPlan> variants(const ConvProblem& p, const DeviceProperties& d) {
  std::vector<ConvPlan> plans;
  Search(p, d, &plans).best();
  return plans;
}

}  // namespace

extern const Family family;
const Family family{"grouped", can_implement, propose, variants, /*fuses=*/true};

}  // namespace customconv::grouped
