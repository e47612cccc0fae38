// planes: every channel by a filter of its own, planes staged in shared memory by the
// TMA.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "kernels/common/parts.h"
#include "kernels/common/waits.h"
#include "kernels/depthwise/planes/geometry.h"
#include "plan/fields.h"
#include "plan/hardware.h"
#include "plan/price.h"
#include "plan/search.h"

namespace customconv::depthwise::planes {

namespace {

// What a price is counted from: instructions of a thread, as the kernels have them.
constexpr double kTileInstructions = 60;   // what it is, barriers, where results go
constexpr double kRowInstructions = 6;     // of a window: whether it exists, its address
constexpr double kWordInstructions = 2;    // of 32 bits: the load, whether it exists
constexpr double kPairInstructions = 5;    // of two of 16: the same, moved into place, widened
constexpr double kOutputInstructions = 2;  // rounded, stored
constexpr double kSumInstructions = 6;     // of a weight gradient, when a block ends

constexpr int kMostBlocks = 32;  // of a multiprocessor

constexpr int kTileThreads[] = {32, 64, 128, 256};
constexpr int kGradientTurns[] = {0, 2, 4};  // blocks of a weight gradient for each multiprocessor

int taps_index(const depthwise::Geometry& g) {
  for (int i = 0; i < kTapsCount; ++i) {
    if (g.R == kTaps[i] && g.S == kTaps[i]) return i;
  }
  return -1;
}

PlanesPlan plan_of(const Variant& v, int size, int64_t planes, int64_t rows, int64_t images) {
  return {v.walk,
          kTaps[v.taps],
          {kRows[v.rows], v.columns(size)},
          {static_cast<int>(planes), static_cast<int>(rows), static_cast<int>(images)}};
}

// Whether a strip of rows of one plane fits a block, by any kernel.
bool has_tile(const depthwise::Geometry& g, Walk walk, int taps, int size,
              const DeviceProperties& d) {
  for (int width = 0; width < kColumnsCount; ++width) {
    for (int rows = 0; rows < kRowsCount; ++rows) {
      const Variant v{walk, taps, width, rows};
      if (!has_kernel(v, size)) continue;
      const Tile t = tile_of(g, plan_of(v, size, 1, kRows[rows], 1));
      const int stages = g.of_weights ? 1 : 2;
      if (t.items <= kMostThreads && t.count <= INT32_MAX / 2 && t.steps <= INT32_MAX &&
          places_of(g, t, stages, size).all <= d.shared_bytes_block) {
        return true;
      }
    }
  }
  return false;
}

// Whether no strip reads far outside its row.
bool stays_near(Walk walk, int taps, int64_t size, int64_t outputs, int64_t pad) {
  const int64_t first = first_input(walk, taps, static_cast<int>(pad));
  const int64_t last = input_of(walk, static_cast<int>(outputs - 1), static_cast<int>(first));
  return first > -taps && first < taps && last < size + taps;
}

class Search : public PlanSearch {
 public:
  using PlanSearch::PlanSearch;

  ConvPlan best() {
    find_walk(g_, p_.pass, &walk_);
    const int taps = taps_index(g_);
    for (int width = 0; width < kColumnsCount; ++width) {
      for (int rows = 0; rows < kRowsCount; ++rows) {
        const Variant v{walk_, taps, width, rows};
        if (has_kernel(v, size_)) try_tiles(v);
      }
    }
    return best_;
  }

 private:
  void try_tiles(const Variant& v) {
    const int64_t kept = kRows[v.rows];
    const int64_t all_rows = ceil_divide(g_.P, kept) * kept;
    const Tile plane = tile_of(g_, plan_of(v, size_, 1, all_rows, 1));
    tried_.clear();
    for (const int threads : kTileThreads) {
      if (plane.items > threads) {
        const int64_t strips = std::max(threads / plane.column_strips, 1);
        // As few bands, of about as many rows each.
        const int64_t bands = ceil_divide(plane.row_strips, strips);
        const int64_t rows = ceil_divide(plane.row_strips, bands) * kept;
        consider(v, 1, rows, 1);
        continue;
      }
      const int64_t planes = g_.of_weights ? g_.K : g_.N * g_.K;
      const int64_t images = g_.of_weights ? g_.N : 1;
      for (int64_t i = 1; i <= images && i * plane.items <= threads; i *= 2) {
        const int64_t most = std::min(threads / (i * plane.items), planes);
        consider(v, most, all_rows, i);
        if (g_.of_weights) continue;
        // As many turns of the blocks, all of which are busy to the end.
        const int64_t blocks = resident_blocks(v, threads) * d_.sm_count;
        const int64_t turns = ceil_divide(ceil_divide(planes, most), blocks);
        const int64_t even = ceil_divide(planes, turns * blocks);
        if (even < most) consider(v, even, all_rows, 1);
      }
    }
  }

  void consider(const Variant& v, int64_t planes, int64_t rows, int64_t images) {
    if (!tried_.add({planes, rows, images})) return;
    PlanesPlan way = plan_of(v, size_, planes, rows, images);
    const Tile t = tile_of(g_, way);
    if (t.items > kMostThreads || t.count > INT32_MAX / 2 || t.steps > INT32_MAX) return;
    if (!g_.of_weights) {
      for (const int stages : {1, 2}) {
        const LaunchShape shape = shape_of(p_, g_, t, stages, 1);
        if (shape.shared_bytes > d_.shared_bytes_block) continue;
        const int64_t blocks = resident_blocks(v, shape.threads, shape.shared_bytes) * d_.sm_count;
        if (stages == 1 && blocks < t.count) continue;
        way.stages = stages;
        weigh(v, way, t, count_reads(v, t), shape, std::min(blocks, t.count), 1);
        break;
      }
      return;
    }
    const double reads = count_reads(v, t);
    int64_t last = 0;
    for (const int wanted : kGradientTurns) {
      const int64_t splits = std::clamp<int64_t>(wanted * d_.sm_count / t.count, 1, t.steps);
      if (splits == last || t.count * splits > INT32_MAX) continue;
      last = splits;
      int last_shared = 0;
      for (const int stages : {1, 2, kMostStages}) {
        if (stages / 2 >= ceil_divide(t.steps, splits)) continue;
        const LaunchShape shape = shape_of(p_, g_, t, stages, splits);
        if (shape.shared_bytes > d_.shared_bytes_block || shape.shared_bytes == last_shared) {
          continue;
        }
        last_shared = shape.shared_bytes;
        // As many as there is room for, where the sums that take their place are larger.
        const int64_t room = (shape.shared_bytes - kZeroBytes) / places_of(g_, t, 1, size_).stage;
        way.stages = static_cast<int>(std::min<int64_t>(room, kMostStages));
        weigh(v, way, t, reads, shape, shape.blocks, splits);
      }
    }
  }

  // That share a multiprocessor.
  int64_t resident_blocks(const Variant& v, int threads, int64_t shared = 0) const {
    return std::max<int64_t>(std::min<int64_t>({kMostThreads * blocks_of(v, size_) / threads,
                                                kMostBlocks, resident_of(d_, shared)}),
                             1);
  }

  void weigh(const Variant& v, const PlanesPlan& way, const Tile& t, double reads,
             const LaunchShape& shape, int64_t blocks, int64_t splits) {
    ConvPlan plan{shape};
    plan.blocks = blocks;
    plan.splits = splits;
    plan.payload = way;
    plan.works.add(count_work(v, t, reads, plan, way.stages));
    if (splits > 1) plan.works.add(adding_up(p_.w_count(), splits, d_));
    add(plan);
  }

  // How often shared memory is asked for a word of a warp's windows, once where all banks differ.
  // What lies how many elements apart: images of a tile, planes, strips of rows and of columns.
  int conflicts(const Tile& t, int64_t image_elements, int64_t plane, int64_t row,
                int64_t column) const {
    constexpr int kBanks = 32;
    const int64_t image = t.images > 1 ? run_bytes(image_elements, size_) / size_ : 0;
    int found[kBanks] = {};
    int64_t words[kBanks], most = 0;
    for (int i = 0; i < std::min<int64_t>(kBanks, t.items); ++i) {
      int rest = i;
      const int q = rest % t.column_strips;
      rest /= t.column_strips;
      const int p = rest % t.row_strips;
      rest /= t.row_strips;
      const int64_t at =
          (q * column + p * row + rest % t.images * image + rest / t.images * plane) * size_ / 4;
      const int bank = static_cast<int>(at % kBanks);
      words[i] = at;
      bool is_new = true;
      for (int j = 0; j < i && is_new; ++j) is_new = words[j] != at;
      if (is_new) most = std::max<int64_t>(most, ++found[bank]);
    }
    return static_cast<int>(most);
  }

  // Words that a strip of inputs and one of outputs have in a row.
  double in_words(const Variant& v) const {
    return std::floor(reach_of(walk_, kTaps[v.taps], v.columns(size_)) * size_ / 4) + 1;
  }
  double out_words(const Variant& v) const { return std::floor(v.columns(size_) * size_ / 4) + 1; }

  // How often a warp asks shared memory for its windows.
  double count_reads(const Variant& v, const Tile& t) const {
    const int kept = kRows[v.rows], columns = v.columns(size_);
    const double reads = reach_of(walk_, kTaps[v.taps], kept) * in_words(v) *
                         conflicts(t, t.in_elements, g_.H * g_.W, input_of(walk_, kept, 0) * g_.W,
                                   input_of(walk_, columns, 0));
    if (!g_.of_weights) return reads;
    return reads +
           kept * out_words(v) * conflicts(t, t.out_elements, g_.P * g_.Q, kept * g_.Q, columns);
  }

  // `reads`: see count_reads.
  Work count_work(const Variant& v, const Tile& t, double reads, const ConvPlan& plan,
                  int stages) const {
    const int taps = kTaps[v.taps], kept = kRows[v.rows], columns = v.columns(size_);
    const double word = size_ == 2 ? kPairInstructions : kWordInstructions;
    double products = kept * columns * taps * taps * (is_half(walk_) ? 0.25 : 1);
    if (g_.of_weights && !sums_strips(taps)) {
      const auto whole = static_cast<double>((g_.P / kept) * (g_.Q / columns));
      const auto all = static_cast<double>(ceil_divide(g_.P, kept) * ceil_divide(g_.Q, columns));
      // A warp that has a partial strip goes through all of it again.
      products *= 1 + std::min(32 * (1 - whole / all), 1.0);
    }
    const double rows = reach_of(walk_, taps, kept);
    const double outputs = kept * columns;
    double each = kTileInstructions + products + rows * (kRowInstructions + word * in_words(v));
    if (g_.of_weights) {
      each += kept * (kRowInstructions + word * out_words(v));
    } else {
      each += outputs * kOutputInstructions + taps * taps;
    }
    const double warps = plan.threads / 32.0;
    const double brought = static_cast<double>(
        t.images * size_ * (t.in_elements + (g_.of_weights ? t.out_elements : 0)));
    const double tile =
        busiest({warps * each / hardware::kSchedulers,
                 (warps * (reads * 4 + (g_.of_weights ? 0 : outputs * size_)) * 32 + brought) /
                     hardware::kSharedBytesPerClock,
                 brought / hardware::kL2BytesPerClock});
    // Tiles of a block.
    const auto blocks = static_cast<double>(plan.blocks);
    const double tiles = std::ceil(static_cast<double>(g_.of_weights ? t.steps : t.count) /
                                   (g_.of_weights ? static_cast<double>(plan.splits) : blocks));
    const double once = g_.of_weights ? taps * taps * kSumInstructions : 0;
    Work work;
    work.row =
        price_row(PriceKind::kDepthwisePlanes, (g_.of_weights ? 2 : 0) + (size_ == 2 ? 0 : 1));
    work.blocks = static_cast<float>(blocks);
    work.sms = static_cast<float>(d_.sm_count);
    work.resident = static_cast<float>(resident_blocks(v, plan.threads, plan.shared_bytes));
    work.busy = static_cast<float>(tiles * tile + warps * once / hardware::kSchedulers);
    const double sums = g_.of_weights ? t.planes * taps * taps : 0;
    const bool shared = t.images * t.row_strips * t.column_strips >= 32;
    const double end = std::ceil(sums / (shared ? warps : plan.threads));
    // Nothing is summed while the first tiles of all blocks are brought.
    const double together = std::min<double>(work.resident, std::ceil(blocks / d_.sm_count));
    work.waits = static_cast<float>(2 + together * brought / hardware::kBroughtBytes +
                                    (tiles - 1) / stages + fetch_waits(each + once, tiles) +
                                    lone_waits(tiles * each, together * warps) + end);
    work.bytes = static_cast<float>(p_.least_bytes());
    return work;
  }

  const depthwise::Geometry g_ = depthwise::geometry_of(p_);
  const int size_ = static_cast<int>(element_size(p_.dtype));
  Walk walk_{};
  Tried<std::array<int64_t, 3>> tried_;  // planes, rows and images of a variant's tiles
};

const char* can_implement(const ConvProblem& p, const DeviceProperties& d) {
  if (!d.has_hopper_kernels()) return "it needs Hopper's TMA";
  if (p.dtype == DType::kFloat64) return "sums are kept in float32";
  if (p.group_C() != 1) return "a group has more than one input channel";
  if (p.group_K() != 1) return "a group has more than one output channel";
  if (p.dilation_h != 1 || p.dilation_w != 1) return "its taps are not neighbours";
  if (!has_int32_coordinates(p) || p.w_count() > INT32_MAX || p.N * p.C > INT32_MAX / 2) {
    return "image coordinates, planes or the weight pass 2^31";
  }
  if (p.x_count() == 0 || p.y_count() == 0) return "a tensor is empty";
  const depthwise::Geometry g = depthwise::geometry_of(p);
  if (!strides_match({g.N, g.K, g.H, g.W, 1}, g.in, Layout::kNchw) ||
      !strides_match({g.N, g.K, g.P, g.Q, 1}, g.out, Layout::kNchw)) {
    return "rows and planes are not next to each other in memory";
  }
  // depthwise walks images of one column with rows and columns in each other's place.
  if (!strides_match(p.w_sizes(), p.w_strides, Layout::kNchw) || std::abs(g.weight_s) != 1) {
    return "filters are not contiguous, or images have one column";
  }
  const int taps = taps_index(g);
  if (taps < 0) return "the filter is not a square of 3, 5 or 7";
  Walk walk;
  if (!find_walk(g, p.pass, &walk)) return "strides or paddings along rows and columns differ";
  if (!stays_near(walk, kTaps[taps], g.H, g.P, g.pad_h) ||
      !stays_near(walk, kTaps[taps], g.W, g.Q, g.pad_w)) {
    return "there is more padding than a filter reaches";
  }
  if (!has_tile(g, walk, taps, static_cast<int>(element_size(p.dtype)), d)) {
    return "rows are too long for a block";
  }
  return nullptr;
}

LaunchShape shape(const ConvProblem& p, const DeviceProperties&, const ConvPlan& plan) {
  const auto way = plan.payload.as<PlanesPlan>();
  const depthwise::Geometry g = depthwise::geometry_of(p);
  Walk walk{};
  find_walk(g, p.pass, &walk);
  if (walk != way.walk || g.R != way.taps || g.S != way.taps) return {};
  const Tile t = tile_of(g, way);
  if (!g.of_weights && way.stages == 1 && plan.blocks < t.count) return {};  // blocks take turns
  return shape_of(p, g, t, way.stages, plan.splits);
}

}  // namespace

extern const Family kind;
const Family kind{"planes", can_implement,  cheapest_of<Search>,
                  shape,    all_of<Search>, /*fuses=*/true};

}  // namespace customconv::depthwise::planes

namespace customconv {

template <>
Fields fields_of<PlanKind::depthwise_planes>() {
  using depthwise::planes::PlanesPlan;
  return FieldList<PlanesPlan>()
      .word("walk", &PlanesPlan::walk, {"next", "second", "back", "half", "half-odd"})
      .number("taps", &PlanesPlan::taps)
      .number("strip", &PlanesPlan::strip)
      .size("tile", &PlanesPlan::tile)
      .size("stages", &PlanesPlan::stages);
}

}  // namespace customconv
