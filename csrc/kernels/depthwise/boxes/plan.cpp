// boxes: every channel by a filter of its own, channels-last, brought by the copy engine.
#include <algorithm>
#include <cmath>

#include "kernels/depthwise/boxes/geometry.h"
#include "kernels/depthwise/geometry.h"
#include "plan/search.h"

namespace customconv::depthwise::boxes {

namespace {

// The cost model: a thread's instructions, by purpose.
constexpr double kInstructionsPerRead = 2.59;  // of a pair of channels: its address, the load
constexpr double kInstructionsPerWiden = 1.22;
constexpr double kInstructionsPerOutput = 4.45;  // of a pair: rounded, stored
constexpr double kInstructionsPerPatch = 15.6;
constexpr double kInstructionsPerSum = 50;  // of a weight gradient, when a block ends
constexpr double kIssueEfficiency = 0.84;   // of an instruction a clock, of each scheduler
// Clocks that a block waits: until it begins, for each value of the filter that a thread brings,
// for each byte of the first tile, while others bring theirs, and for a tile.
constexpr double kBlockClocks = 1540;
constexpr double kFilterClocks = 555;
constexpr double kFirstClocks = 0.0216;
constexpr double kTileClocks = 286, kGradientTileClocks = 464;
constexpr double kLastTile = 0.27;  // of a tile's clocks: nothing is brought meanwhile
// Clocks from one instruction of a warp to the next, where it has the schedulers to itself.
constexpr double kLatency = 1.26, kLatencyOfAny = 4.44;
constexpr double kRowClocks = 2.46;  // of a row of a box, brought
constexpr double kBandwidthEfficiency = 0.92;
// Of a weight gradient: how much longer bytes take where a block's channels are no whole lines of
// 128 bytes of images that the second-level cache cannot hold, and of bytes that it brings twice.
constexpr double kPartLines = 0.08, kAgainShare = 0.18;
// Of other passes: of the halo, and of that and of channels that are not whole pieces of 256 bytes
// whenever images are twice as large as the cache.
constexpr double kHaloShare = 0.1, kLargeHaloShare = 0.15, kPartOfPiece = 0.03;
constexpr double kOverlapLoss = 0.34;
// The same of a weight gradient, of a block of so many tiles: of more, less is lost.
constexpr double kGradientLoss = 0.29, kManyTiles = 18;
constexpr double kLaunchMs = 5.06e-3;
constexpr double kNextMs = 4.2e-3;  // of a weight gradient's second kernel, and of a part
constexpr double kPartMs = 10.6e-6;
constexpr double kClusterMs = 1.6e-3;  // of a cluster, and of each of its blocks
constexpr double kMemberMs = 0.2e-3;

constexpr int kMostPatches = 8;            // of a thread in a tile
constexpr int kClusters[] = {1, 2, 4, 8};  // blocks of a weight gradient that share channels
constexpr int kMostTurns = 2;              // of all multiprocessors, that clusters may take
constexpr int kLeastShare = 2;             // of these they keep at least one in so many busy

bool is_whole(const Shape4& strides, const Shape4& sizes, int64_t unit) {
  for (const int axis : {0, 2, 3}) {
    if (sizes[axis] > 1 && strides[axis] % unit != 0) return false;
  }
  return strides[1] == 1 && sizes[1] % unit == 0;
}
// Whether the copy engine can bring boxes of both images.
bool has_boxes(const ConvProblem& p) {
  constexpr double kMostStrideBytes = 1ll << 40;
  const int64_t unit = 16 / element_size(p.dtype);
  for (const Shape4& strides : {p.x_strides, p.y_strides}) {
    for (const int64_t stride : strides) {
      const double bytes = static_cast<double>(stride * element_size(p.dtype));
      if (bytes < 0 || bytes >= kMostStrideBytes) return false;
    }
  }
  return p.x_aligned && p.y_aligned && is_whole(p.x_strides, p.x_sizes(), unit) &&
         is_whole(p.y_strides, p.y_sizes(), unit);
}

// The smallest tile, which decides whether there is a plan.
Tile least_tile(int size) { return {16 / size, 1, 1, 1, false}; }

const char* can_implement(const ConvProblem& p, const DeviceProperties& d) {
  if (p.dtype == DType::kFloat64) return "sums are kept in float32";
  if (p.group_C() != 1) return "a group has more than one input channel";
  if (p.group_K() != 1) return "a group has several output channels";
  if (!d.has_hopper_kernels()) return "it needs Hopper's copy engine";
  if (p.R > kMostKernel || p.S > kMostKernel || p.R * p.S > kMostKernel) {
    return "its filter has more than 1024 taps";
  }
  if (!has_int32_coordinates(p)) return "image coordinates pass 2^31";
  if (p.w_count() > INT32_MAX / 2) return "the weight passes 2^30 elements";
  if (!has_boxes(p)) return "images are not channels-last, in whole 16 bytes";
  const Geometry g = geometry_of(p);
  if (g.walk == Walk::kAny) {
    if (g.of_weights) return "the weight gradient of this filter, stride or dilation";
    const bool strided = p.stride_h > 1 || p.stride_w > 1;
    if (p.pass == Pass::kDgrad && strided) return "the input gradient of this filter and stride";
  }
  const int size = static_cast<int>(element_size(p.dtype));
  if (!work_of(g, least_tile(size), size, d.shared_bytes_block).fits) {
    return "its halo fits no box";
  }
  const double patches = static_cast<double>(p.N) * g.h.patches * g.w.patches;
  if (patches * static_cast<double>(p.C) > INT32_MAX) {
    return "it has too many output pixels for one grid";
  }
  return nullptr;
}

int even_piece(int64_t size, int64_t most) {
  return static_cast<int>(ceil_divide(size, ceil_divide(size, most)));
}

class Search : public PlanSearch {
 public:
  using PlanSearch::PlanSearch;

  ConvPlan best() {
    int last_channels = 0;
    for (const int most : {256, 128, 64, 32}) {
      const int sector = 32 / size_;  // of which blocks should not share the parts
      const int64_t pieces = even_piece(ceil_divide(p_.C, sector), most / sector);
      const auto channels = static_cast<int>(std::min(pieces * sector, p_.C));
      if (channels == last_channels) continue;
      last_channels = channels;
      int last_columns = 0;
      for (const int most_columns : {16, 8, 4, 2}) {
        const int columns = even_piece(g_.w.patches, most_columns);
        if (columns == last_columns) continue;
        last_columns = columns;
        try_rows(channels, columns, false);
        if (channels == p_.C && can_merge(g_)) try_rows(channels, columns, true);
      }
    }
    if (best_.block == 0) consider(least_tile(size_));
    return best_;
  }

 private:
  void try_rows(int channels, int columns, bool merged) {
    int last = 0;
    for (const int most : {8, 4, 2, 1}) {
      const int rows = even_piece(g_.h.patches, most);
      if (rows == last) continue;
      last = rows;
      if (rows == g_.h.patches && columns == g_.w.patches) {
        for (const int images : {8, 4, 2}) {
          if (images <= p_.N) consider({channels, rows, columns, images, merged});
        }
      }
      consider({channels, rows, columns, 1, merged});
    }
  }

  void consider(const Tile& tile) {
    int last = 0;
    for (int blocks = blocks_of(taps_of(g_)); blocks >= 1; --blocks) {
      const Work w = work_of(g_, tile, size_, shared_bytes_of(d_, blocks));
      if (!w.fits || w.bytes == last) continue;
      last = w.bytes;
      if (ceil_divide(tile.rows * tile.images, w.down) > kMostPatches) return;
      weigh(w, blocks);
    }
  }

  void weigh(const Work& w, int resident) {
    const int64_t tiles = w.tiles();
    const auto evenly = [&](int64_t blocks) {
      return ceil_divide(tiles, ceil_divide(tiles, std::clamp<int64_t>(blocks, 1, tiles)));
    };
    const int64_t all = int64_t{resident} * d_.sm_count;
    take(w, resident, evenly(all / w.chunks), false);
    if (!g_.of_weights) return;
    for (const int blocks : kClusters) {
      const int64_t grid = blocks * w.chunks;
      if (grid > kMostTurns * all || kLeastShare * grid < d_.sm_count) continue;
      if (evenly(blocks) == blocks) take(w, resident, blocks, true);
    }
  }

  // `clustered`: the blocks that share channels are a cluster.
  void take(const Work& w, int resident, int64_t tile_blocks, bool clustered) {
    ConvPlan plan{};
    plan.variant = w.tile.merged ? "boxes of rows" : "boxes";
    plan.variant_index = w.tile.channels * 2 + (w.tile.merged ? 1 : 0);
    plan.tile[0] = w.tile.rows;
    plan.tile[1] = w.tile.columns;
    plan.tile[2] = w.tile.images;
    plan.grid[0] = w.chunks * tile_blocks;
    plan.block = w.threads + kLoaderThreads;
    plan.shared_bytes = w.bytes;
    plan.wide_index = needs_wide_index(p_);
    if (g_.of_weights) plan.splits = tile_blocks;
    plan.predicted_ms = predict_ms(w, resident, plan.grid[0], ceil_divide(w.tiles(), tile_blocks));
    if (plan.splits > 1 && clustered) {
      plan.predicted_ms += kClusterMs + kMemberMs * static_cast<double>(plan.splits);
    } else if (plan.splits > 1) {
      plan.workspace_bytes = plan.splits * p_.w_count() * 4;
      plan.predicted_ms += kNextMs + kPartMs * static_cast<double>(plan.splits);
    }
    add(plan);
  }

  // Of blocks that go through so many tiles each.
  double predict_ms(const Work& w, int resident, int64_t blocks, int64_t own) const {
    const double outputs = kPatch * kPatch, kernel = g_.h.taps * g_.w.taps;
    const double read = kInstructionsPerRead + (size_ == 2 ? kInstructionsPerWiden : 0);
    double products = 2 * outputs * kernel / (g_.walk == Walk::kHalf ? 4 : 1);
    double reads = g_.h.window * g_.w.window;
    if (g_.walk == Walk::kAny) {
      const double band = taps_of(g_), bands = std::ceil(g_.w.taps / band);
      const double rows = std::min(g_.h.out, kPatch);
      reads = g_.h.taps * (bands * rows * (kPatch + 2) + 4 * g_.w.taps);
      products *= rows / kPatch;
    }
    double patch = reads * read + products + kInstructionsPerPatch +
                   outputs * (g_.of_weights ? read : kInstructionsPerOutput);
    if (g_.of_weights && !sums_patches(static_cast<int>(g_.h.taps))) {
      patch += partial_patches() * reads * (read + 2);  // where they are finite
    }
    const double warps = w.threads / 32.0, brought = w.in.all_bytes + w.out.all_bytes;
    const double turns = std::ceil(static_cast<double>(w.tile.rows * w.tile.images) / w.down);
    const auto rows_of = [&](const Boxed& b) {
      return b.rows * w.tile.images * (w.tile.merged ? b.count : b.columns);
    };
    const double issues = warps * turns * patch / (4 * kIssueEfficiency);
    const double shared = warps * turns * reads * size_ / 2 + brought / 128.0;
    const double tile = std::max({issues, shared, kRowClocks * (rows_of(w.in) + rows_of(w.out))});
    // Of a block, when it begins and when it ends.
    const double sharing = std::ceil(static_cast<double>(blocks) / d_.sm_count);
    double first = kBlockClocks + sharing * brought * kFirstClocks, last = 0;
    if (g_.of_weights) {
      last = warps * 2 * kernel * kInstructionsPerSum / (4 * kIssueEfficiency);
    } else {
      first += kernel * w.tile.channels / w.threads * kFilterClocks;
    }
    const double each = static_cast<double>(own);
    const double waves =
        std::ceil(static_cast<double>(blocks) / (static_cast<double>(d_.sm_count) * resident));
    const double to_ms = 1 / (d_.clock_ghz * 1e6);
    const double busy_ms = sharing * (each * tile + last) * to_ms;
    const double latency = g_.walk == Walk::kAny ? kLatencyOfAny : kLatency;
    const double waits =
        (g_.of_weights ? kGradientTileClocks : kTileClocks) + latency * turns * patch;
    const double waits_ms = waves * (first + each * waits + kLastTile * tile) * to_ms;
    const double bytes = bytes_of(w, static_cast<double>(blocks) * each);
    const double bytes_ms = 1e-6 * bytes / (kBandwidthEfficiency * d_.bandwidth_gb_s);
    const double longest = std::max({busy_ms, waits_ms, bytes_ms});
    const double loss =
        (g_.of_weights ? kGradientLoss : kOverlapLoss) * std::min(kManyTiles / each, 1.0);
    return kLaunchMs + longest + loss * (busy_ms + waits_ms + bytes_ms - longest);
  }

  // Of an image's patches, those of which a part lies outside.
  double partial_patches() const {
    const double whole = (g_.h.out / kPatch) * (g_.w.out / kPatch);
    return 1 - whole / static_cast<double>(ceil_divide(g_.h.out, kPatch) *
                                           ceil_divide(g_.w.out, kPatch));
  }

  // What all blocks move, of so many tiles together: those that several bring count in part.
  double bytes_of(const Work& w, double tiles) const {
    const double least = p_.least_bytes();
    const double large = std::max(std::log2(least / static_cast<double>(d_.l2_bytes)), 0.0);
    const double channels = w.tile.channels * size_;
    double share = kAgainShare,
           part = large > 0 && w.tile.channels * size_ % 128 != 0 ? kPartLines : 0;
    double again = tiles * (w.in.all_bytes + w.out.all_bytes) - least;
    if (!g_.of_weights) {
      const double own = w.tile.patches() * g_.h.advance * g_.w.advance * channels;
      const double in = static_cast<double>(p_.N * p_.C * size_) * g_.h.in * g_.w.in;
      again = (w.in.all_bytes / own - 1) * in;
      share = kHaloShare + kLargeHaloShare * large;
      part = kPartOfPiece * large * std::max(std::log2(256 / channels), 0.0);
    }
    return (least + share * std::max(again, 0.0)) * (w.chunks > 1 ? 1 + part : 1);
  }

  const Geometry g_ = geometry_of(p_);
  const int size_ = static_cast<int>(element_size(p_.dtype));
};

}  // namespace

extern const Family kind;
const Family kind{"boxes", can_implement, cheapest_of<Search>, all_of<Search>, /*fuses=*/true};

}  // namespace customconv::depthwise::boxes
