// threads: every channel by filters of its own, straight from the tensors.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include "kernels/common/parts.h"
#include "kernels/common/waits.h"
#include "kernels/depthwise/threads/work.h"
#include "plan/fields.h"
#include "plan/hardware.h"
#include "plan/price.h"
#include "plan/search.h"

namespace customconv::depthwise::threads {

namespace {

// What a price is counted from: instructions of a thread, as the kernels have them.
constexpr double kItemInstructions = 40;   // where an item lies, by divisions, and which rows exist
constexpr double kColumnInstructions = 8;  // of a filter, or a turn: where it is, and the loop
constexpr double kReadInstructions = 5;    // of memory: its address, whether it exists, the load
constexpr double kStoreInstructions = 3;  // of an output: whether it exists, its address, the store
constexpr double kExchangeInstructions = 6;  // the same of one that another thread stores
constexpr double kFilterInstructions =
    30;                                 // for each value in shared memory: two divisions, bounds
constexpr double kSumInstructions = 5;  // of a weight gradient, when a block ends

// Blocks of a weight gradient for each multiprocessor, and the least items of a thread.
constexpr int kGradientTurns[] = {4, 8, 16, 32};
constexpr int kGradientItems = 4;

bool starts_aligned(const ConvProblem& p) {
  return p.pass == Pass::kFprop   ? p.x_aligned
         : p.pass == Pass::kDgrad ? p.y_aligned
                                  : p.x_aligned && p.y_aligned;
}
// Whether rows, channels and images are whole units apart.
bool is_whole(const Shape5& strides, const Shape5& sizes, int64_t unit, int unit_axis) {
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

// How outputs share rows of the input.
Walk walk_of(const Geometry& g) {
  if (g.dilation_h != 1 || g.R == 1) return Walk::kAny;
  if (g.transposed) return g.step_h == 2 ? Walk::kHalf : Walk::kAny;
  return g.step_h == 1 ? Walk::kNext : g.step_h == 2 ? Walk::kSecond : Walk::kAny;
}
// Where between two such units a window begins.
int offset_of(const Geometry& g, int unit) {
  return static_cast<int>(((-g.pad_w) % unit + unit) % unit);
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

ThreadsPlan payload_of(const Variant& v, int vectors) {
  const auto [unit, offset] = v.order == Order::kWindows ? kWindowShapes[v.shape] : WindowShape{};
  const int columns = v.order == Order::kLines ? kLineTaps[v.shape] : 0;
  return {v.order, v.walk, kTaps[v.taps], v.kept(), unit, offset, columns, vectors};
}

class Search : public PlanSearch {
 public:
  using PlanSearch::PlanSearch;

  ConvPlan best() {
    const Order thin = least_variant(g_).order;
    try_order(thin, walk_of(g_));
    if (has_vectors(p_)) try_order(Order::kChannels, walk_of(g_));
    if (g_.R == 1) {
      const int shape = g_.S <= kLineTaps[0] ? 0 : 1;
      if (has_lines(g_)) consider({Order::kLines, Walk::kAny, 0, 0, shape}, 1);
    } else {
      for (const int unit : {4, 2, 1}) {
        if (has_windows(p_, unit) && try_windows(unit)) break;
      }
    }
    // Where shared memory holds a tap's sums only, or a channel's filter.
    if (best_.threads == 0) try_order(thin, Walk::kAny);
    if (best_.threads == 0) consider(least_variant(g_), 1);
    return best_;
  }

 private:
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
      Tried<int64_t> tried;
      for (const int64_t most : {8, 16, 32, 64, 128, 256}) {
        // Groups have so many vectors each, or fewer, so that all of them are full.
        for (const int64_t count :
             {std::min(most, vectors), ceil_divide(vectors, ceil_divide(vectors, most))}) {
          if (tried.add(count)) consider(v, static_cast<int>(count));
        }
      }
    }
  }

  // Whether there is a kernel.
  bool try_windows(int unit) {
    Variant v{Order::kWindows, Walk::kNext, 0, 1, 0};
    const auto fits = [this](int taps) { return g_.R == taps && g_.S == taps; };
    while (kTaps[v.taps] < kBandTaps && !fits(kTaps[v.taps])) ++v.taps;
    const int offset = offset_of(g_, unit);
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
    ConvPlan plan{shape_of(p_, w, splits)};
    plan.splits = splits;
    plan.payload = payload_of(v, vectors);
    plan.works = count_work(v, w, splits);
    add(plan);
  }

  // Parts of a weight gradient's pixels, for so many blocks a multiprocessor.
  int64_t splits_of(const Work& w, int turns) const {
    const int64_t wanted = ceil_divide(int64_t{turns} * d_.sm_count, w.blocks);
    const int64_t most = ceil_divide(w.items * w.vectors, int64_t{kThreads} * kGradientItems);
    return std::clamp<int64_t>(std::min(wanted, most), 1, w.items);
  }

  WorkList count_work(const Variant& v, const Work& w, int64_t splits) const {
    const double width = width_of(v.order), kept = v.kept(), taps = kTaps[v.taps];
    const double across = columns_of(v.order, kTaps[v.taps], size_);
    const double S = static_cast<double>(g_.S);
    double turns = std::ceil(static_cast<double>(g_.R) / taps);
    const double size = static_cast<double>(size_);
    // The rows that go by in a turn, and the reads of each for a column of taps.
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
    // The last turn has the taps that exist.
    products *= static_cast<double>(g_.R) / (taps * std::ceil(static_cast<double>(g_.R) / taps));
    // Each channel that an output is summed over is a filter more.
    turns *= static_cast<double>(g_.sources);
    const double halved = v.walk == Walk::kHalf ? 0.5 : 1;
    const double read = kReadInstructions + (size_ == 2 ? read_width : 0);
    double column_weights = g_.of_weights ? 0 : taps;
    if (v.order == Order::kWindows) column_weights *= taps;
    if (v.order == Order::kLines) column_weights *= S / columns;
    double each = kItemInstructions +
                  columns * turns *
                      (kColumnInstructions + rows * reads * read + kept * products * halved +
                       column_weights * (is_planar(v.order) ? kReadInstructions : 1));
    const double stored = kept * across * width;
    if (!g_.of_weights) {
      each += stored * (v.order == Order::kLines ? kExchangeInstructions : kStoreInstructions);
    }
    // Neighbours in a warp read from places that are a thread's columns, or its channels, apart:
    // the first-level cache reads a line at a time.
    const double inner = static_cast<double>(is_planar(v.order) ? std::abs(g_.in[3]) : 1);
    const double apart = is_planar(v.order) ? across * inner : width;
    const double lines = std::clamp(32 * size * apart / hardware::kSharedBytesPerClock, 1.0, 32.0);
    double line_reads = columns * turns * rows * reads * lines;
    const double code = kColumnInstructions + rows * reads * read + kept * products * halved;
    double stored_bytes = 0;  // by sectors, of a warp
    if (!g_.of_weights) {
      const double unit = v.order == Order::kWindows ? store_unit(across) : width;
      const double step = v.order == Order::kWindows  ? across
                          : v.order == Order::kPlanes ? static_cast<double>(std::abs(g_.out[3]))
                                                      : 1;
      const double sectors =
          std::clamp(32 * size * std::max(step, unit) / hardware::kSectorBytes, 1.0, 32.0);
      line_reads += stored / unit * std::max(sectors / 4, 1.0);
      stored_bytes = stored / unit * sectors * hardware::kSectorBytes;
    }
    double waits = 1 + columns * turns, blocks = static_cast<double>(w.blocks), once = 0;
    if (g_.of_weights) {
      // The items of a thread, of its part of the filter.
      const double chunks = static_cast<double>(w.chunks_r * w.chunks_s);
      const double items = static_cast<double>(w.items * w.vectors);
      const double own = std::ceil(items / static_cast<double>(splits) / kThreads);
      const double gradients = kept * across / read_width;
      each = kItemInstructions + gradients * read + (each - kItemInstructions) / chunks;
      line_reads = own * (line_reads / chunks + gradients * lines);
      each *= own;
      waits = own * (1 + columns * turns / chunks);
      once = kSumInstructions * taps * gradient_columns(v.order, kTaps[v.taps], v.shape) * width;
      blocks *= static_cast<double>(splits);
    } else if (!is_planar(v.order)) {
      const double values = std::ceil(w.vectors * width * S * w.filter_rows / kThreads);
      once = values * kFilterInstructions;
      waits += values;
    }
    constexpr double kWarps = kThreads / 32;
    customconv::Work work;
    work.row = row_of(v);
    work.blocks = static_cast<float>(blocks);
    work.sms = static_cast<float>(d_.sm_count);
    work.resident = static_cast<float>(g_.of_weights ? gradient_blocks_of(kTaps[v.taps])
                                                     : blocks_of(v.order, v.kept()));
    work.busy =
        static_cast<float>(kWarps * busiest({(each + once) / hardware::kSchedulers, line_reads,
                                             stored_bytes / hardware::kL2BytesPerClock}));
    work.waits = static_cast<float>(1 + waits + fetch_waits(code, turns * columns));
    // A block that needs a part of a line fetches whole sectors.
    const double piece = w.vectors * width * size;
    const double waste = is_planar(v.order) ? 1 : std::max(1.0, hardware::kSectorBytes / piece);
    work.bytes = static_cast<float>(p_.least_bytes() * waste);
    WorkList works;
    works.add(work);
    if (splits > 1) works.add(adding_up(p_.w_count(), splits, d_));
    return works;
  }

  // Neighbouring columns of so many that are stored at once.
  double store_unit(double columns) const {
    for (const int unit : {8, 4, 2}) {
      if (unit <= columns && unit * size_ >= 4 && unit * size_ <= 16 &&
          is_whole(g_.out, {g_.N, g_.K, g_.P, g_.Q}, unit, 3)) {
        return unit;
      }
    }
    return 1;
  }

  uint16_t row_of(const Variant& v) const {
    constexpr int kRowOfOrder[] = {0, 1, 2, 3, 3};  // of planes, channels, elements, windows, lines
    const int order = kRowOfOrder[static_cast<int>(v.order)];
    return price_row(PriceKind::kDepthwiseThreads,
                     (order + (g_.of_weights ? 4 : 0)) * 2 + (size_ == 2 ? 0 : 1));
  }

  const Geometry g_ = geometry_of(p_);
  const int64_t size_ = element_size(p_.dtype);
};

// By the kernel, and by whether rows and columns change places, so that taps come in that order.
int64_t sum_order(const ConvProblem& p, const ConvPlan& plan) {
  const Geometry g = geometry_of(p);
  const bool swapped = g.R != p.R || std::abs(g.weight_r) != p.w_strides[2];
  return variant_of(plan.payload.as<ThreadsPlan>()).index() * 2 + (swapped ? 1 : 0);
}

LaunchShape shape(const ConvProblem& p, const DeviceProperties&, const ConvPlan& plan) {
  const auto way = plan.payload.as<ThreadsPlan>();
  const Geometry g = geometry_of(p);
  bool reads = way.walk == Walk::kAny || way.walk == walk_of(g);
  if (way.order == Order::kChannels) reads = reads && has_vectors(p);
  if (way.order == Order::kLines) reads = has_lines(g) && g.R == 1;
  if (way.order == Order::kWindows) {
    const bool whole = way.taps == kBandTaps || (g.R == way.taps && g.S == way.taps);
    reads = whole && has_windows(p, way.unit) && way.offset == offset_of(g, way.unit);
  }
  if (!reads) return {};
  return shape_of(p, work_of(g, variant_of(way), way.vectors, element_size(p.dtype)), plan.splits);
}

}  // namespace

extern const Family kind;
const Family kind{"threads",      can_implement, cheapest_of<Search>, shape, all_of<Search>,
                  /*fuses=*/true, sum_order};

}  // namespace customconv::depthwise::threads

namespace customconv {

template <>
Fields fields_of<PlanKind::depthwise_threads>() {
  using depthwise::threads::ThreadsPlan;
  return FieldList<ThreadsPlan>()
      .word("order", &ThreadsPlan::order, {"planes", "channels", "elements", "windows", "lines"})
      .word("walk", &ThreadsPlan::walk, {"next", "second", "half", "any"})
      .number("taps", &ThreadsPlan::taps)
      .number("rows", &ThreadsPlan::rows)
      .number("unit", &ThreadsPlan::unit)
      .number("offset", &ThreadsPlan::offset)
      .number("columns", &ThreadsPlan::columns)
      .size("vectors", &ThreadsPlan::vectors);
}

}  // namespace customconv
