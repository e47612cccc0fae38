// boxes: every channel by a filter of its own, channels-last, brought by TMA.
#include <algorithm>
#include <cmath>

#include "kernels/common/parts.h"
#include "kernels/common/waits.h"
#include "kernels/depthwise/boxes/geometry.h"
#include "kernels/depthwise/geometry.h"
#include "plan/fields.h"
#include "plan/hardware.h"
#include "plan/price.h"
#include "plan/search.h"

namespace customconv::depthwise::boxes {

namespace {

// What a price is counted from: instructions of a thread, as the kernels have them.
constexpr double kReadInstructions = 2;     // of a pair of channels: its address, the load
constexpr double kWidenInstructions = 2;    // of a pair of 16 bits
constexpr double kOutputInstructions = 4;   // of a pair: rounded, its address, the store
constexpr double kPatchInstructions = 20;   // where it lies, and the loop
constexpr double kSumInstructions = 6;      // of a weight gradient, when a block ends
constexpr double kFilterInstructions = 30;  // of a value that is brought: divisions, its address
constexpr double kFiltersAtOnce = 8;        // values that a thread brings while it waits once

constexpr float kClusterWaits = 2;  // until all blocks have their parts, and until all are read

constexpr int kMostPatches = 8;            // of a thread in a tile
constexpr int kClusters[] = {1, 2, 4, 8};  // blocks of a weight gradient that share channels
constexpr int kMostTurns = 2;              // of all multiprocessors, that clusters may take
constexpr int kLeastShare = 2;             // of these they keep at least one in so many busy

bool is_whole(const Shape5& strides, const Shape5& sizes, int64_t unit) {
  for (const int axis : {0, 2, 3}) {
    if (sizes[axis] > 1 && strides[axis] % unit != 0) return false;
  }
  return strides[1] == 1 && sizes[1] % unit == 0;
}
// Whether TMA can bring boxes of both images.
bool has_boxes(const ConvProblem& p) {
  constexpr double kMostStrideBytes = 1ll << 40;
  const int64_t unit = 16 / element_size(p.dtype);
  for (const Shape5& strides : {p.x_strides, p.y_strides}) {
    for (const int64_t stride : strides) {
      const double bytes = static_cast<double>(stride * element_size(p.dtype));
      if (bytes < 0 || bytes >= kMostStrideBytes) return false;
    }
  }
  return p.x_aligned && p.y_aligned && is_whole(p.x_strides, p.x_sizes(), unit) &&
         is_whole(p.y_strides, p.y_sizes(), unit);
}

// The smallest tile, which decides whether there is a plan.
BoxesPlan least_plan(int size) { return {false, 16 / size, {1, 1, 1}}; }

const char* can_implement(const ConvProblem& p, const DeviceProperties& d) {
  if (p.dtype == DType::kFloat64) return "sums are kept in float32";
  if (p.group_C() != 1) return "a group has more than one input channel";
  if (p.group_K() != 1) return "a group has several output channels";
  if (!d.has_hopper_kernels()) return "it needs Hopper's TMA";
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
  BoxesPlan least = least_plan(size);
  if (choose_stages(g, size, d.shared_bytes_block, least).bytes == 0) {
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
    if (best_.threads == 0) consider(least_plan(size_));
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
          if (images <= p_.N) consider({merged, channels, {rows, columns, images}});
        }
      }
      consider({merged, channels, {rows, columns, 1}});
    }
  }

  void consider(BoxesPlan plan) {
    int last = 0;
    for (int blocks = blocks_of(taps_of(g_)); blocks >= 1; --blocks) {
      const Work w = choose_stages(g_, size_, shared_bytes_of(d_, blocks), plan);
      if (w.bytes == 0 || w.bytes == last) continue;
      last = w.bytes;
      if (ceil_divide(w.tile.rows * w.tile.images, w.down) > kMostPatches) return;
      weigh(plan, w, blocks);
    }
  }

  void weigh(const BoxesPlan& way, const Work& w, int resident) {
    const int64_t tiles = w.tiles();
    const auto evenly = [&](int64_t blocks) {
      return ceil_divide(tiles, ceil_divide(tiles, std::clamp<int64_t>(blocks, 1, tiles)));
    };
    const int64_t all = int64_t{resident} * d_.sm_count;
    take(way, w, resident, evenly(all / w.chunks), false);
    if (!g_.of_weights) return;
    for (const int blocks : kClusters) {
      const int64_t grid = blocks * w.chunks;
      if (grid > kMostTurns * all || kLeastShare * grid < d_.sm_count) continue;
      if (evenly(blocks) == blocks) take(way, w, resident, blocks, true);
    }
  }

  // `clustered`: the blocks that share channels are a cluster.
  void take(BoxesPlan way, const Work& w, int resident, int64_t tile_blocks, bool clustered) {
    const int64_t splits = g_.of_weights ? tile_blocks : 1;
    way.tile_blocks = static_cast<int>(tile_blocks);
    way.clustered = clustered && splits > 1;
    ConvPlan plan{shape_of(p_, w, way, splits)};
    plan.splits = splits;
    plan.payload = way;
    customconv::Work work =
        count_work(w, resident, plan.blocks, ceil_divide(w.tiles(), tile_blocks));
    if (way.clustered) {
      const double sums = static_cast<double>(g_.h.taps * g_.w.taps * w.tile.channels);
      work.waits +=
          kClusterWaits +
          static_cast<float>(std::ceil(sums / static_cast<double>(w.threads * plan.splits)));
    }
    plan.works.add(work);
    if (plan.workspace_bytes > 0) plan.works.add(adding_up(p_.w_count(), plan.splits, d_));
    add(plan);
  }

  // The work of blocks that go through `own` tiles each.
  customconv::Work count_work(const Work& w, int resident, int64_t blocks, int64_t own) const {
    const double outputs = kPatch * kPatch, kernel = g_.h.taps * g_.w.taps;
    const double read = kReadInstructions + (size_ == 2 ? kWidenInstructions : 0);
    double products = 2 * outputs * kernel / (g_.walk == Walk::kHalf ? 4 : 1);
    double reads = g_.h.window * g_.w.window, weights = 0, turns_of_code = 1;
    if (g_.walk == Walk::kAny) {
      const double band = taps_of(g_), bands = std::ceil(g_.w.taps / band);
      const double rows = std::min(g_.h.out, kPatch);
      turns_of_code = g_.h.taps * bands;
      reads = turns_of_code * rows * (kPatch + band - 1);
      weights = 2 * g_.h.taps * g_.w.taps;
      products *= rows / kPatch;
    }
    double patch = reads * read + weights * kReadInstructions + products + kPatchInstructions +
                   outputs * (g_.of_weights ? read : kOutputInstructions);
    if (g_.of_weights && !sums_patches(static_cast<int>(g_.h.taps))) {
      patch += partial_patches() * reads * (read + 2);  // where they are finite
    }
    const double warps = w.threads / 32.0, brought = w.in.all_bytes + w.out.all_bytes;
    const double turns = std::ceil(static_cast<double>(w.tile.rows * w.tile.images) / w.down);
    const auto rows_of = [&](const Boxed& b) {
      return b.rows * w.tile.images * (w.tile.merged ? b.count : b.columns);
    };
    const double pair_bytes = 32 * 2 * size_;  // of a warp
    const double tile = busiest(
        {warps * turns * patch / hardware::kSchedulers,
         (warps * turns * ((reads + (g_.of_weights ? outputs : 0)) * pair_bytes + weights * 256) +
          brought) /
             hardware::kSharedBytesPerClock,
         hardware::kCopyRowClocks * (rows_of(w.in) + rows_of(w.out)),
         brought / hardware::kL2BytesPerClock});
    const double code = patch / turns_of_code + (g_.of_weights ? 2 * kernel : 0);  // unrolled
    const double sums = g_.of_weights ? kernel * w.tile.channels : 0;
    const double once = g_.of_weights ? 2 * kernel * kSumInstructions
                                      : kernel * w.tile.channels / w.threads * kFilterInstructions;
    customconv::Work work;
    work.row =
        price_row(PriceKind::kDepthwiseBoxes, (g_.of_weights ? 2 : 0) + (size_ == 2 ? 0 : 1));
    work.blocks = static_cast<float>(blocks);
    work.sms = static_cast<float>(d_.sm_count);
    work.resident = static_cast<float>(resident);
    work.busy =
        static_cast<float>(static_cast<double>(own) * tile + warps * once / hardware::kSchedulers);
    const double filters = std::ceil(kernel * w.tile.channels / w.threads / kFiltersAtOnce);
    // Nothing is summed while the first tiles of all blocks are brought.
    const double together =
        std::min<double>(resident, std::ceil(static_cast<double>(blocks) / d_.sm_count));
    work.waits = static_cast<float>(
        2 + (g_.of_weights ? 0 : filters) + together * brought / hardware::kBroughtBytes +
        static_cast<double>(own - 1) / w.stages + std::ceil(sums / w.threads) +
        lone_waits(static_cast<double>(own) * turns * patch, together * warps) +
        fetch_waits(code, static_cast<double>(own) * turns * turns_of_code));
    work.bytes = static_cast<float>(p_.least_bytes());
    return work;
  }

  // The fraction of an image's patches that lie partly outside of it.
  double partial_patches() const {
    const double whole = (g_.h.out / kPatch) * (g_.w.out / kPatch);
    return 1 - whole / static_cast<double>(ceil_divide(g_.h.out, kPatch) *
                                           ceil_divide(g_.w.out, kPatch));
  }

  const Geometry g_ = geometry_of(p_);
  const int size_ = static_cast<int>(element_size(p_.dtype));
};

LaunchShape shape(const ConvProblem& p, const DeviceProperties&, const ConvPlan& plan) {
  const auto way = plan.payload.as<BoxesPlan>();
  const Geometry g = geometry_of(p);
  if (way.merged && (!can_merge(g) || way.channels != g.C)) return {};
  const Work work = work_of(g, way, static_cast<int>(element_size(p.dtype)));
  return work.bytes > 0 ? shape_of(p, work, way, plan.splits) : LaunchShape{};
}

}  // namespace

extern const Family kind;
const Family kind{"boxes", can_implement,  cheapest_of<Search>,
                  shape,   all_of<Search>, /*fuses=*/true};

}  // namespace customconv::depthwise::boxes

namespace customconv {

template <>
Fields fields_of<PlanKind::depthwise_boxes>() {
  using depthwise::boxes::BoxesPlan;
  return FieldList<BoxesPlan>()
      .flag("merged", &BoxesPlan::merged)
      .size("channels", &BoxesPlan::channels)
      .size("tile", &BoxesPlan::tile)
      .size("stages", &BoxesPlan::stages)
      .size("tile_blocks", &BoxesPlan::tile_blocks)
      .flag("clustered", &BoxesPlan::clustered);
}

}  // namespace customconv
