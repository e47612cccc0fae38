// bands: filters of one input channel a group as banded matrices, on tensor cores.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "kernels/common/parts.h"
#include "kernels/depthwise/bands/geometry.h"
#include "plan/fields.h"
#include "plan/hardware.h"
#include "plan/price.h"
#include "plan/search.h"

namespace customconv::depthwise::bands {

namespace {

// What a price is counted from: instructions of a warp, as the kernels have them.
constexpr double kCopyInstructions = 20;      // for each unit that a thread brings or stores
constexpr double kElementInstructions = 30;   // where units are single elements
constexpr double kChannelInstructions = 160;  // the same, of eight channels of eight pixels
constexpr double kFilterInstructions = 30;    // for each tap and zero: two divisions, its address
constexpr double kItemInstructions = 200;  // beside its products: where it is, whether it is finite
constexpr double kAhead = 4;               // units of a thread that are on their way together

constexpr int kLeastTaps = 25;  // fewer are faster on CUDA cores
constexpr int kMostImages = 16;
// For a weight gradient: pieces of a tile, and blocks for each multiprocessor.
constexpr int kMostGradientPieces = 512;
constexpr int kGradientTurns[] = {1, 2, 4, 8};
constexpr int kMostGradientChannels = 8;
constexpr int64_t kMostWorkspace = 64 << 20;

bool is_planar(const Geometry& g) {
  return (g.in[3] == 1 || g.W == 1) && (g.out[3] == 1 || g.Q == 1);
}
// Whether neighbouring channels are read and written as vectors of so many.
bool has_vectors(const Geometry& g, int64_t channels) {
  const auto whole = [channels](const Shape5& strides, const Shape5& sizes) {
    for (const size_t i : {0, 2, 3}) {
      if (sizes[i] > 1 && strides[i] % channels != 0) return false;
    }
    return strides[1] == 1;
  };
  return g.C % channels == 0 && g.in_aligned && g.out_aligned &&
         whole(g.in, {g.N, g.C, g.H, g.W}) && whole(g.out, {g.N, g.C, g.P, g.Q});
}

// Planes of single elements can be of any strides.
Source source_of(const Geometry& g) {
  return !is_planar(g) && has_vectors(g, 4) ? Source::kVectors : Source::kPlanes;
}

bool has_near_pixels(const Geometry& g) {
  const auto near = [](const Shape5& strides) {
    return std::max(std::abs(strides[2]), std::abs(strides[3])) <= INT32_MAX;
  };
  return near(g.in) && near(g.out);
}

template <typename W>
bool fits(const W& w, const DeviceProperties& d) {
  return w.shared_bytes <= d.shared_bytes_block &&
         w.tiles.channels * w.tiles.of_a_channel() <= INT32_MAX;
}

int widest_unit(const Geometry& g) { return unit_of(g.in, {g.N, g.C, g.H, g.W}, g.in_aligned); }

// Rows of taps of a warp that leave the fewest beyond the filter.
int gradient_taps(int64_t rows, int pairs) {
  int best = 0;
  int64_t least = INT64_MAX;
  for (const int taps : kGradientTaps) {
    const int64_t all = ceil_divide(rows, taps) * taps;
    if (!has_gradient(pairs, taps) || all > least) continue;
    best = taps;
    least = all;
  }
  return best;
}

// Whether the smallest tile fits.
bool fits_shared(const Geometry& g, bool of_weights, const DeviceProperties& d) {
  const Source source = source_of(g);
  const int channels = source == Source::kPlanes ? 1 : 4;
  const int unit = source == Source::kPlanes ? widest_unit(g) : 1;
  const int64_t shift = shift_of(g, unit);
  if (of_weights) {
    const int pairs = gradient_pairs(g.S, shift), taps = gradient_taps(g.R, pairs);
    return fits(
        gradient_work_of(g, {source, pairs, taps, kPieceColumns, channels, unit, {1, 1, 1}}), d);
  }
  return fits(work_of(g, {source, section_blocks(g.S, shift), channels, unit, {1, 1, 1}}), d);
}

const char* can_implement(const ConvProblem& p, const DeviceProperties& d) {
  if (p.dtype != DType::kFloat16 && p.dtype != DType::kBFloat16) {
    return "its products are of float16 and bfloat16";
  }
  if (p.group_C() != 1 || p.group_K() != 1) return "a group has more than one channel";
  if (p.stride_h != 1 || p.stride_w != 1) return "it has a stride";
  if (p.R * p.S < kLeastTaps) return "the filter has fewer than 25 taps";
  if (p.dilation_h != 1 || p.dilation_w != 1) return "it is dilated";
  if (d.capability_major < 8) return "its instructions begin with compute capability 8.0";
  if (p.w_count() > INT32_MAX) return "the weight passes 2^31 elements";
  if (!has_int32_coordinates(p)) return "image coordinates pass 2^31";
  const Geometry g = geometry_of(p);
  if (!has_near_pixels(g)) return "an image's rows are more than 2^31 elements apart";
  if (!fits_shared(g, p.pass == Pass::kWgrad, d)) {
    return "the filter does not fit shared memory, or there are too many tiles";
  }
  return nullptr;
}

class Search : public PlanSearch {
 public:
  using PlanSearch::PlanSearch;

  ConvPlan best() {
    if (source_of(g_) == Source::kPlanes) {
      int64_t last = INT64_MAX;
      // Smaller units may leave bands fewer blocks.
      const int most = widest_unit(g_);
      for (int unit = most; unit == most || unit > 1; unit /= 2) {
        const int64_t all = band_blocks(unit);
        for (const int channels : {1, 8}) {
          if (all < last && g_.C % channels == 0) try_source(Source::kPlanes, channels, unit);
        }
        last = all;
      }
    } else {
      for (const int channels : {4, 8, 16}) {
        if (has_vectors(g_, channels)) try_source(Source::kVectors, channels, 1);
      }
    }
    return best_;
  }

 private:
  int64_t band_blocks(int unit) const {
    const int64_t shift = shift_of(g_, unit);
    return p_.pass == Pass::kWgrad ? gradient_sections(g_.S, shift) * gradient_pairs(g_.S, shift)
                                   : section_count(g_.S, shift) * section_blocks(g_.S, shift);
  }

  void try_source(Source source, int channels, int unit) {
    if (p_.pass != Pass::kWgrad) {
      try_variant(source, channels, unit);
    } else if (channels <= kMostGradientChannels) {
      try_gradient(source, channels, unit);
    }
  }

  void try_variant(Source source, int channels, int unit) {
    const BandsPlan v{source, section_blocks(g_.S, shift_of(g_, unit)), channels, unit};
    const int64_t rows = ceil_divide(g_.P, kPieceRows), columns = ceil_divide(g_.Q, kPieceColumns);
    each_share(rows, [&](int64_t tile_rows) {
      each_share(columns, [&](int64_t tile_columns) {
        for (int64_t images = 1; images <= kMostImages; images *= 2) {
          consider(v, {tile_rows, tile_columns, images});
          if (images >= g_.N || tile_rows < rows || tile_columns < columns) break;
        }
      });
    });
  }

  // Sizes that cut a dimension into shares that are all but the same.
  template <typename Use>
  static void each_share(int64_t size, Use use) {
    int64_t last = 0;
    for (const int64_t most : {1, 2, 4, 8, 16, 32, 64}) {
      const int64_t share = ceil_divide(size, ceil_divide(size, most));
      if (share != last) use(share);
      last = share;
    }
  }

  template <typename Plan>
  static Plan with_tile(Plan plan, const Tile& tile) {
    plan.tile[0] = static_cast<int>(tile.rows);
    plan.tile[1] = static_cast<int>(tile.columns);
    plan.tile[2] = static_cast<int>(tile.images);
    return plan;
  }

  void consider(const BandsPlan& way, const Tile& tile) {
    if (tile.rows * tile.columns * tile.images > kMostWarps * kItemPieces) return;
    BandsPlan v = with_tile(way, tile);
    const Work w = work_of(g_, v);
    if (!fits(w, d_)) return;
    // Blocks go through tiles of their channels, about as many blocks as run at once, or more.
    const int64_t tiles = w.tiles.of_a_channel(), slots = d_.sm_count * resident_blocks(v, w);
    int64_t last = 0;
    for (const int64_t turns : {1, 2, 4}) {
      const int64_t wanted = std::clamp<int64_t>(turns * slots / w.tiles.channels, 1, tiles);
      const int64_t shares = ceil_divide(tiles, ceil_divide(tiles, wanted));
      if (shares == last) continue;
      last = shares;
      v.shares = static_cast<int>(shares);
      ConvPlan plan{shape_of(w, v)};
      plan.payload = v;
      plan.works.add(count_work(v, tile, w, shares));
      add(plan);
    }
  }

  // Blocks that share a multiprocessor.
  int64_t resident_blocks(const BandsPlan& v, const Work& w) const {
    const int64_t kilobyte = 1 << 10;  // that the system takes of each
    const int64_t by_shared = (d_.shared_bytes_block + kilobyte) / (w.shared_bytes + kilobyte);
    const int64_t by_registers = shared_by(v.blocks) * kMostWarps * 32 / w.threads;
    return std::clamp<int64_t>(std::min(by_shared, by_registers), 1, 32);
  }

  void try_gradient(Source source, int channels, int unit) {
    const int pairs = gradient_pairs(g_.S, shift_of(g_, unit));
    const auto over = [this](int64_t size) { return ceil_divide(g_.P, size) * size; };
    const bool sevens = over(kPieceRows) <= over(kPieceColumns);
    for (const int times : {1, 2, 4}) {
      const int height = times * (sevens ? kPieceRows : kPieceColumns);
      if (times > 1 && height >= 2 * g_.P) break;
      const BandGradientsPlan v{source, pairs, gradient_taps(g_.R, pairs), height, channels, unit};
      const int64_t rows = ceil_divide(g_.P, height), columns = ceil_divide(g_.Q, kPieceColumns);
      each_share(rows, [&](int64_t tile_rows) {
        each_share(columns, [&](int64_t tile_columns) {
          for (int64_t images = 1; images <= kMostImages; images *= 2) {
            consider_gradient(v, {tile_rows, tile_columns, images});
            if (images >= g_.N || tile_rows < rows || tile_columns < columns) break;
          }
        });
      });
    }
  }

  void consider_gradient(const BandGradientsPlan& way, const Tile& tile) {
    if (tile.rows * tile.columns * tile.images > kMostGradientPieces) return;
    const BandGradientsPlan v = with_tile(way, tile);
    const GradientWork w = gradient_work_of(g_, v);
    if (!fits(w, d_)) return;
    int64_t last = 0;
    for (const int turns : kGradientTurns) {
      const int64_t wanted = ceil_divide(int64_t{turns} * d_.sm_count, w.tiles.channels);
      const int64_t tiles = w.tiles.of_a_channel();
      // As many as leave none without a tile.
      const int64_t splits =
          ceil_divide(tiles, ceil_divide(tiles, std::clamp<int64_t>(wanted, 1, tiles)));
      ConvPlan plan{shape_of(p_, w, splits)};
      if (splits == last || (splits > 1 && plan.workspace_bytes > kMostWorkspace)) continue;
      last = splits;
      plan.splits = splits;
      plan.payload = v;
      plan.works = count_gradient_work(v, tile, w, splits);
      add(plan);
    }
  }

  // Whether threads need not wait for what they copy.
  template <typename V>
  static bool copies_ahead(const V& v) {
    return v.source == Source::kPlanes && v.unit > 1;
  }

  // How often threads wait that bring so many columns of each channel.
  template <typename V>
  static double bring_waits(const V& v, double columns, double threads) {
    if (copies_ahead(v)) return 0;
    const double units = columns / v.unit * v.channels;
    if (v.source == Source::kPlanes) return std::ceil(units / threads / kAhead);
    return std::ceil(units / kPieceColumns / vector_of(v.channels) / threads);
  }

  // Bytes of sectors for each byte that is needed of them.
  template <typename V>
  double sectors(const V& v) const {
    return v.source == Source::kVectors ? 16.0 / v.channels : is_planar(g_) ? 1 : 16;
  }

  WorkList count_gradient_work(const BandGradientsPlan& v, const Tile& tile, const GradientWork& w,
                               int64_t splits) const {
    const double channels = v.channels, pairs = v.pairs, height = static_cast<double>(v.height);
    const double items = static_cast<double>(w.items), units = static_cast<double>(w.units);
    const double images = static_cast<double>(tile.images);
    const double tiles = static_cast<double>(w.tiles.of_a_channel());
    const double own = std::ceil(tiles / static_cast<double>(splits));
    // For a tile.
    const double products = items * units * height * v.taps * pairs;
    const double wavefronts =
        items * units *
        ((height + v.taps - 1) * 4 * pairs * w.x.wavefronts + height * 2 * w.dy.wavefronts);
    const double x_columns = static_cast<double>(w.x.rows * w.x.blocks * kPieceColumns) * images;
    const double dy_columns = static_cast<double>(w.dy.rows * w.dy.blocks * kPieceColumns) * images;
    const double unit = v.unit;
    const double copy = v.unit > 1 ? kCopyInstructions : kElementInstructions;
    const double copies =
        v.source == Source::kVectors
            ? (x_columns + dy_columns) / kPieceColumns / 32 * kChannelInstructions * channels / 8
            : (x_columns / unit + dy_columns / std::min(unit, 4.0)) / 32 * copy * channels;
    const double add = units * v.taps * (4 * pairs + 24.0 * std::ceil(pairs / 2));  // to totals
    const double turns = std::ceil(units / kMostWarps);
    const double multiply =
        items * units * (60 + height * (v.taps * pairs + pairs + 6)) + (turns > 1 ? add : 0);
    const double shared = static_cast<double>(w.shared_bytes + 1024);
    const double resident =
        std::clamp(std::floor((static_cast<double>(d_.shared_bytes_block) + 1024) / shared), 1.0,
                   static_cast<double>(gradients_shared_by(v.pairs, v.channels)));
    const double busy = busiest({products * hardware::kWarpProductClocks, wavefronts,
                                 (copies + multiply) / hardware::kSchedulers});
    customconv::Work work;
    work.row = price_row(PriceKind::kDepthwiseBands, 1);
    work.blocks = static_cast<float>(w.tiles.channels * splits);
    work.sms = static_cast<float>(d_.sm_count);
    work.resident = static_cast<float>(resident);
    work.busy = static_cast<float>(own * busy + 2 * add / hardware::kSchedulers);
    const double warp_items = turns * std::ceil(items / static_cast<double>(w.slices));
    const double totals = v.taps * turns;  // rows that a warp adds to them
    work.waits =
        static_cast<float>(2 +
                           own * (1 + bring_waits(v, x_columns + dy_columns, kMostWarps * 32) +
                                  warp_items * height / hardware::kStepsOfWait) +
                           totals * (turns > 1 ? own : 1));
    work.bytes = static_cast<float>(p_.least_bytes() * sectors(v));
    WorkList works;
    works.add(work);
    works.add(adding_up(p_.w_count(), splits, d_));
    return works;
  }

  customconv::Work count_work(const BandsPlan& v, const Tile& tile, const Work& w,
                              int64_t shares) const {
    const double R = static_cast<double>(g_.R), sections = static_cast<double>(w.sections);
    const double blocks = v.blocks, channels = v.channels;
    const double items = static_cast<double>(w.items) * channels;
    const double images = static_cast<double>(tile.images);
    const double tiles = static_cast<double>(w.tiles.of_a_channel());
    const double own = std::ceil(tiles / static_cast<double>(shares));  // tiles of a block
    // For a row of the filter and an item.
    const double row_products = kPieceRows * blocks / 2;
    const double row_wavefronts = 2 * blocks * w.in.wavefronts + blocks;
    const double loads = sections * (R + kPieceRows - 1);
    // For a tile.
    const double products = items * sections * R * row_products;
    const double wavefronts = items * loads * row_wavefronts;
    const double lines = static_cast<double>(w.in_rows * w.in.blocks * kPieceColumns) * images;
    const double results =
        static_cast<double>(tile.rows * tile.columns * kPieceRows * kPieceColumns) * images;
    const double unit = v.unit;
    const double copy = v.unit > 1 ? kCopyInstructions : kElementInstructions;
    const double copies =
        v.source == Source::kVectors
            ? (lines + results) / kPieceColumns / 32 * kChannelInstructions * channels / 8
            : (lines / unit + results / std::min(unit, 4.0)) / 32 * copy * channels;
    const double filter = static_cast<double>(w.filter) / 4 * channels / 32 * kFilterInstructions;
    const double multiply =
        items * (kItemInstructions + loads * (2.5 * blocks + kPieceRows * std::ceil(blocks / 2)));
    const double busy = busiest({products * hardware::kWarpProductClocks, wavefronts,
                                 (copies + multiply) / hardware::kSchedulers});
    const double rounds = std::ceil(channels / static_cast<double>(w.channels_at_once));
    customconv::Work work;
    work.row = price_row(PriceKind::kDepthwiseBands, 0);
    work.blocks = static_cast<float>(w.tiles.channels * shares);
    work.sms = static_cast<float>(d_.sm_count);
    work.resident = static_cast<float>(resident_blocks(v, w));
    work.busy = static_cast<float>(own * busy + filter / hardware::kSchedulers);
    const double values = static_cast<double>(w.filter) / 4 * channels / w.threads;
    work.waits = static_cast<float>(2 + std::ceil(values / kAhead) +
                                    own * (1 + bring_waits(v, lines, w.threads) +
                                           rounds * sections * R / hardware::kStepsOfWait));
    work.bytes = static_cast<float>(p_.least_bytes() * sectors(v));
    return work;
  }

  const Geometry g_ = geometry_of(p_);
};

int64_t sum_order(const ConvProblem& p, const ConvPlan& plan) {
  if (p.pass == Pass::kWgrad) return 0;  // its sums run over the batch
  const auto v = plan.payload.as<BandsPlan>();
  const int64_t shift = work_of(geometry_of(p), v).shift;
  const int64_t order = (v.blocks * 2 + static_cast<int>(v.source)) * 32 + v.channels;
  return (order * 16 + v.unit) * 16 + shift;
}

LaunchShape shape(const ConvProblem& p, const DeviceProperties&, const ConvPlan& plan) {
  const bool of_weights = plan.payload.kind() == PlanKind::depthwise_band_gradients;
  if (of_weights != (p.pass == Pass::kWgrad)) return {};
  const Geometry g = geometry_of(p);
  const auto reads = [&g](const auto& v) {
    return v.source == Source::kVectors ? has_vectors(g, v.channels) : v.unit <= widest_unit(g);
  };
  if (!of_weights) {
    const auto v = plan.payload.as<BandsPlan>();
    const bool fits = v.blocks == section_blocks(g.S, shift_of(g, v.unit));
    return reads(v) && fits ? shape_of(work_of(g, v), v) : LaunchShape{};
  }
  const auto v = plan.payload.as<BandGradientsPlan>();
  const bool fits = v.pairs == gradient_pairs(g.S, shift_of(g, v.unit));
  return reads(v) && fits ? shape_of(p, gradient_work_of(g, v), plan.splits) : LaunchShape{};
}

}  // namespace

extern const Family kind;
const Family kind{"bands",        can_implement, cheapest_of<Search>, shape, all_of<Search>,
                  /*fuses=*/true, sum_order};

}  // namespace customconv::depthwise::bands

namespace customconv {

template <>
Fields fields_of<PlanKind::depthwise_bands>() {
  using depthwise::bands::BandsPlan;
  return FieldList<BandsPlan>()
      .word("source", &BandsPlan::source, {"planes", "vectors"})
      .number("blocks", &BandsPlan::blocks)
      .number("channels", &BandsPlan::channels)
      .number("unit", &BandsPlan::unit)
      .size("tile", &BandsPlan::tile)
      .size("shares", &BandsPlan::shares);
}

template <>
Fields fields_of<PlanKind::depthwise_band_gradients>() {
  using depthwise::bands::BandGradientsPlan;
  return FieldList<BandGradientsPlan>()
      .word("source", &BandGradientsPlan::source, {"planes", "vectors"})
      .number("pairs", &BandGradientsPlan::pairs)
      .number("taps", &BandGradientsPlan::taps)
      .number("height", &BandGradientsPlan::height)
      .number("channels", &BandGradientsPlan::channels)
      .number("unit", &BandGradientsPlan::unit)
      .size("tile", &BandGradientsPlan::tile);
}

}  // namespace customconv
