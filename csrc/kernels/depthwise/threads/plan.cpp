// threads: every channel by filters of its own, straight from the tensors.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "kernels/depthwise/threads/work.h"
#include "plan/search.h"

namespace customconv::depthwise::threads {

namespace {

// The cost model: a thread's instructions, by purpose.
constexpr double kInstructionsPerRead = 6;    // of memory: its address, whether it exists, the load
constexpr double kInstructionsPerLine = 6.4;  // of a read, for each line that a warp touches
constexpr double kInstructionsPerColumn = 3.7;  // of a filter, or a turn
constexpr double kInstructionsPerItem = 43;
constexpr double kInstructionsPerRow = 1.6;     // stored
constexpr double kInstructionsPerExchange = 6;  // stored by another thread
constexpr double kInstructionsPerFilter = 109;  // for each value in shared memory
constexpr double kInstructionsPerSum = 41;      // of a weight gradient, when a block ends
constexpr double kIssueEfficiency = 0.8;        // of an instruction a clock, of each scheduler
// Clocks that a thread waits: until its block has begun, for an item, and for the rows of a column.
constexpr double kBlockClocks = 340;
constexpr double kItemClocks = 2700;
constexpr double kColumnClocks = 410;
// Of 4 bytes and more, of 2, and of a weight gradient. Of 4, columns of channels are read several
// times.
constexpr double kBandwidthEfficiency = 0.85, kHalfBandwidthEfficiency = 0.73;
constexpr double kColumnEfficiency = 0.79, kGradientEfficiency = 0.75;
constexpr double kOverlapLoss = 0.17;
constexpr double kSourceShare = 1.8;  // of a filter's work, where an output is summed over several
constexpr double kManyWaves = 18;     // of blocks: of more, less is lost, but of a weight gradient
constexpr double kLaunchMs = 6.6e-3;
constexpr double kNextMs = 6.4e-3;  // of a weight gradient's second kernel

// Blocks of a weight gradient for each multiprocessor, and the least items of a thread.
constexpr int kGradientTurns[] = {4, 8, 16, 32};
constexpr int kGradientItems = 4;

bool starts_aligned(const ConvProblem& p) {
  return p.pass == Pass::kFprop   ? p.x_aligned
         : p.pass == Pass::kDgrad ? p.y_aligned
                                  : p.x_aligned && p.y_aligned;
}
// Whether rows, channels and images are whole units apart.
bool is_whole(const Shape4& strides, const Shape4& sizes, int64_t unit, int unit_axis) {
  for (int i = 0; i < 4; ++i) {
    if (i != unit_axis && sizes[i] > 1 && strides[i] % unit != 0) return false;
  }
  return strides[unit_axis] == 1 && sizes[unit_axis] % unit == 0;
}

bool has_vectors(const ConvProblem& p) {
  const Geometry g = geometry_of(p);
  const int64_t width = width_of(Order::kChannels);
  return g.multiplier == 1 && g.sources == 1 && starts_aligned(p) &&
         is_whole(g.in, {g.N, g.K, g.H, g.W}, width, 1) &&
         is_whole(g.out, {g.N, g.K, g.P, g.Q}, width, 1);
}
// Whether neighbours in a row are neighbours in memory, and share all but one of their taps'
// pixels.
bool has_lines(const Geometry& g) {
  return g.sources == 1 && !g.transposed && g.step_w == 1 && g.dilation_w == 1 && g.in[3] == 1 &&
         g.out[3] == 1;
}
// Whether rows, too, and whether they can be read by units of so many elements.
bool has_windows(const ConvProblem& p, int unit) {
  const Geometry g = geometry_of(p);
  if (!has_lines(g) || g.step_h != 1 || g.dilation_h != 1) return false;
  if (unit == 1) return true;
  return starts_aligned(p) && is_whole(g.in, {g.N, g.K / g.multiplier, g.H, g.W}, unit, 3) &&
         (!g.of_weights || is_whole(g.out, {g.N, g.K, g.P, g.Q}, unit, 3));
}

// What is always possible, of a channel at a time.
Variant least_variant(const Geometry& g) {
  return {g.planar ? Order::kPlanes : Order::kElements, Walk::kAny, 0, 0, 0};
}
bool fits_grid(const Work& w) {
  return w.blocks <= INT32_MAX / kThreads && w.items <= INT32_MAX / 2;
}

const char* can_implement(const ConvProblem& p, const DeviceProperties& d) {
  if (p.dtype == DType::kFloat64) return "sums are kept in float32";
  if (p.group_C() != 1) return "a group has more than one input channel";
  if (!has_int32_coordinates(p)) return "image coordinates pass 2^31";
  const Geometry g = geometry_of(p);
  const double far = static_cast<double>(p.R) * static_cast<double>(std::abs(p.w_strides[2])) +
                     static_cast<double>(p.S) * static_cast<double>(std::abs(p.w_strides[3]));
  if (p.w_count() > INT32_MAX || far > INT32_MAX) return "the weight passes 2^31 elements";
  const Work least = work_of(g, least_variant(g), 1, element_size(p.dtype));
  if (!fits_grid(least)) return "it has too many output pixels for one grid";
  if (least.shared_bytes > d.shared_bytes_block) {
    return "a column of the filter is larger than shared memory";
  }
  return nullptr;
}

class Search : public PlanSearch {
 public:
  using PlanSearch::PlanSearch;

  ConvPlan best() {
    const Order thin = least_variant(g_).order;
    try_order(thin, walk());
    if (has_vectors(p_)) try_order(Order::kChannels, walk());
    if (g_.R == 1) {
      const int shape = g_.S <= kLineTaps[0] ? 0 : 1;
      if (has_lines(g_)) consider({Order::kLines, Walk::kAny, 0, 0, shape}, 1);
    } else {
      for (const int unit : {4, 2, 1}) {
        if (has_windows(p_, unit) && try_windows(unit)) break;
      }
    }
    // Where shared memory holds a tap's sums only, or a channel's filter.
    if (best_.block == 0) try_order(thin, Walk::kAny);
    if (best_.block == 0) consider(least_variant(g_), 1);
    return best_;
  }

 private:
  Walk walk() const {
    if (g_.dilation_h != 1 || g_.R == 1) return Walk::kAny;
    if (g_.transposed) return g_.step_h == 2 ? Walk::kHalf : Walk::kAny;
    return g_.step_h == 1 ? Walk::kNext : g_.step_h == 2 ? Walk::kSecond : Walk::kAny;
  }

  // The order's kernel for a walk, else the one for any; of those the one of the fewest taps that
  // hold the filter's rows, else of the most.
  Variant variant_of(Order order, Walk walk) const {
    Variant best{order, Walk::kAny, 0, 0, 0};
    for (int taps = 0; taps < kTapsCount; ++taps) {
      const Variant v{order, walk, taps, 0, 0};
      if (!has_kernel(v)) continue;
      best = v;
      if (kTaps[taps] >= g_.R) break;
    }
    return best;
  }

  void try_order(Order order, Walk walk) {
    Variant v = variant_of(order, walk);
    for (v.rows = 0; v.rows < kRowsCount; ++v.rows) {
      if (!has_kernel(v)) continue;
      const bool fewer =
          v.rows + 1 < kRowsCount && has_kernel({order, v.walk, v.taps, v.rows + 1, 0});
      if (fewer && kRows[v.rows] >= 2 * g_.P) continue;
      if (is_planar(order)) {
        consider(v, 1);
        continue;
      }
      const int64_t vectors = g_.K / width_of(order);
      for (const int64_t count : {8, 16, 32, 64, 128, 256}) {
        consider(v, static_cast<int>(std::min(count, vectors)));
        // As many, in groups that are all full.
        consider(v, static_cast<int>(ceil_divide(vectors, ceil_divide(vectors, count))));
      }
    }
  }

  // Whether there is a kernel.
  bool try_windows(int unit) {
    Variant v{Order::kWindows, Walk::kNext, 0, 1, 0};
    const auto fits = [this](int taps) { return g_.R == taps && g_.S == taps; };
    while (kTaps[v.taps] < kBandTaps && !fits(kTaps[v.taps])) ++v.taps;
    const auto offset = static_cast<int>(((-g_.pad_w) % unit + unit) % unit);
    while (kWindowShapes[v.shape].unit != unit || kWindowShapes[v.shape].offset != offset)
      ++v.shape;
    if (!has_kernel(v)) return false;
    consider(v, 1);
    return true;
  }

  void consider(const Variant& v, int vectors) {
    const Work w = work_of(g_, v, vectors, size_);
    if (!fits_grid(w) || w.shared_bytes > d_.shared_bytes_block || vectors > kThreads) return;
    int64_t last_splits = 0;
    for (const int turns : kGradientTurns) {
      const int64_t splits = g_.of_weights ? splits_of(w, turns) : 1;
      if (splits != last_splits) weigh(v, w, vectors, splits);
      last_splits = splits;
    }
  }

  void weigh(const Variant& v, const Work& w, int vectors, int64_t splits) {
    constexpr const char* kNames[] = {"planes", "channels", "elements", "windows", "lines"};
    ConvPlan plan{};
    plan.variant = kNames[static_cast<int>(v.order)];
    plan.variant_index = v.index();
    plan.tile[0] = v.kept();
    plan.tile[1] = columns_of(v.order, kTaps[v.taps], size_);
    plan.tile[2] = vectors;
    plan.grid[0] = w.blocks * splits;
    plan.splits = splits;
    if (splits > 1) plan.workspace_bytes = splits * p_.w_count() * 4;
    plan.block = kThreads;
    plan.shared_bytes = w.shared_bytes;
    plan.wide_index = needs_wide_index(p_);
    plan.predicted_ms = predict_ms(v, w, static_cast<double>(splits));
    add(plan);
  }

  // Of a weight gradient: parts of the pixels, for so many blocks a multiprocessor.
  int64_t splits_of(const Work& w, int turns) const {
    const int64_t wanted = ceil_divide(int64_t{turns} * d_.sm_count, w.blocks);
    const int64_t most = ceil_divide(w.items * w.vectors, int64_t{kThreads} * kGradientItems);
    return std::clamp<int64_t>(std::min(wanted, most), 1, w.items);
  }

  double predict_ms(const Variant& v, const Work& w, double splits) const {
    const double width = width_of(v.order), kept = v.kept(), taps = kTaps[v.taps];
    const double across = columns_of(v.order, kTaps[v.taps], size_);
    const double S = static_cast<double>(g_.S);
    double turns = std::ceil(static_cast<double>(g_.R) / taps);
    const double size = static_cast<double>(size_);
    // Of the rows that go by in a turn: how many, and reads of a row and column of taps.
    double rows = row_count(v.walk, kTaps[v.taps], v.kept());
    double columns = S, reads = 1, read_width = width, products = taps * width;
    if (v.order == Order::kWindows) {
      const double unit = kWindowShapes[v.shape].unit;
      columns = std::ceil(S / taps);
      reads = std::ceil((kWindowShapes[v.shape].offset + across + taps - 1) / unit);
      read_width = unit;
      products = taps * taps * across;
      if (kTaps[v.taps] == kBandTaps && !g_.of_weights) {  // it walks as far as the filter reaches
        turns = static_cast<double>(g_.R) / taps;
        rows = (static_cast<double>(g_.R) + kept - 1) / turns;
      }
    } else if (v.order == Order::kLines) {  // of the row only what the last taps did not need
      const double unit = line_unit(size_), band = kLineTaps[v.shape];
      columns = std::ceil(S / band);
      reads = (std::ceil((across + band - 1) / unit) + (columns - 1) * band / unit) / columns;
      read_width = unit;
      products = S / columns * across;
    }
    // Neighbours in a warp read from places that are a thread's columns, or its channels, apart.
    const double inner = static_cast<double>(is_planar(v.order) ? std::abs(g_.in[3]) : 1);
    const double apart = is_planar(v.order) ? across * inner : width;
    const double lines = std::max(32 * size * apart / 128, 1.0);
    const double read = kInstructionsPerRead + kInstructionsPerLine * lines + read_width;
    const double halved = v.walk == Walk::kHalf ? 0.5 : 1;
    // Each channel that an output is summed over is a filter more, which was not fetched ahead.
    if (g_.sources > 1) turns *= kSourceShare * static_cast<double>(g_.sources);
    double each = columns * turns * (rows * reads * read + kept * products * halved);
    double column_weights = g_.of_weights ? 0 : taps * (is_planar(v.order) ? 4 : 2);
    if (v.order == Order::kWindows) column_weights *= taps;
    if (v.order == Order::kLines) column_weights *= S / columns;
    each += columns * turns * (column_weights + kInstructionsPerColumn);
    const double exchange = v.order == Order::kLines ? kInstructionsPerExchange : 0;
    each += kept * across * (kInstructionsPerRow + width + exchange) + kInstructionsPerItem;
    double waits = kItemClocks + (columns * turns - 1) * kColumnClocks;
    double once = 0;
    double blocks = static_cast<double>(w.blocks);
    if (g_.of_weights) {
      // The items of a thread, of its part of the filter.
      const double chunks = static_cast<double>(w.chunks_r * w.chunks_s);
      const double items = static_cast<double>(w.items * w.vectors);
      const double own = std::ceil(items / splits / kThreads);
      each = own * (each + kept * across * (read + kInstructionsPerRow)) / chunks;
      waits *= own / chunks;
      once = kInstructionsPerSum * taps * gradient_columns(v.order, kTaps[v.taps], v.shape) * width;
      blocks *= splits;
    } else if (!is_planar(v.order)) {
      once = std::ceil(w.vectors * width * S * w.filter_rows / kThreads) * kInstructionsPerFilter;
    }
    const bool thin = v.order == Order::kPlanes || v.order == Order::kElements;
    const double resident = thin || v.order == Order::kLines ? 4 : 2;
    const double clocks = (each + once) * kThreads / 32 / (4 * kIssueEfficiency);
    const double to_ms = 1 / (d_.clock_ghz * 1e6);
    const double busy_ms = std::max(blocks / d_.sm_count, 1.0) * clocks * to_ms;
    const double waves = std::ceil(blocks / d_.sm_count / resident);
    const double waits_ms = waves * (kBlockClocks + waits) * to_ms;
    // Lines of which a block needs a part are fetched by sectors of 32 bytes.
    const double piece = w.vectors * width * size;
    const double waste = is_planar(v.order) ? 1 : std::max(1.0, 32 / piece);
    const double bytes_ms = 1e-6 * p_.least_bytes() * waste / (efficiency(v) * d_.bandwidth_gb_s);
    const double longest = std::max({busy_ms, waits_ms, bytes_ms});
    const double loss = kOverlapLoss * (g_.of_weights ? 1 : std::min(kManyWaves / waves, 1.0));
    return longest + loss * (busy_ms + waits_ms + bytes_ms - longest) + kLaunchMs +
           (splits > 1 ? kNextMs : 0);
  }

  // Of the bandwidth.
  double efficiency(const Variant& v) const {
    if (g_.of_weights) return kGradientEfficiency;
    if (size_ == 2) return kHalfBandwidthEfficiency;
    return v.order == Order::kChannels ? kColumnEfficiency : kBandwidthEfficiency;
  }

  const Geometry g_ = geometry_of(p_);
  const int64_t size_ = element_size(p_.dtype);
};

}  // namespace

extern const Family kind;
const Family kind{"threads", can_implement, cheapest_of<Search>, all_of<Search>, /*fuses=*/true};

}  // namespace customconv::depthwise::threads
