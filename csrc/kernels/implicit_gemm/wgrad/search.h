// How the planners of weight gradients search. A plan is a variant, the shape of its tiles, and a
// number of splits. The search weighs some shapes of each variant, then all shapes of the few
// variants that came out best. It passes over what cannot be faster than the cheapest plan so far:
// first by a shape's products, then by a tile's work, however it is split, and last by a bound for
// each split.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

#include "kernels/implicit_gemm/wgrad/splits.h"
#include "kernels/implicit_gemm/wgrad/works.h"
#include "plan/hardware.h"
#include "plan/plan.h"
#include "plan/price.h"

namespace customconv::implicit_gemm::wgrad {

constexpr int kLeastStages = 2;
constexpr int64_t kMostSums = INT32_MAX / 2;  // also of what does not exist

// What a plan of these kernels launches, `p` being the problem as they compute it.
template <typename Decided>
LaunchShape shape_as(const ConvProblem& p, const ConvPlan& plan) {
  const auto way = plan.payload.as<Decided>();
  if (!is_variant(p, way)) return {};
  const auto tile = make_tile(p, way, plan.splits);
  return tile.exists() ? shape_of(p, tile) : LaunchShape{};
}

// Widths of tiles, each once, the narrowest first.
class Widths {
 public:
  void add(int64_t width) {
    int* const at = std::lower_bound(widths_.data(), widths_.data() + count_, width);
    if (at != end() && *at == width) return;
    std::copy_backward(at, widths_.data() + count_, widths_.data() + count_ + 1);
    *at = static_cast<int>(width);
    ++count_;
  }
  const int* begin() const { return widths_.data(); }
  const int* end() const { return widths_.data() + count_; }

 private:
  std::array<int, 32> widths_{};
  size_t count_ = 0;
};

// A tile's rows, columns and images.
struct Shape {
  int pixels[3];
  double all;  // pixels of all such tiles, also those that do not exist
};

// Tiles of so many rows and columns: of one image, and of more where `fits` says so.
inline void add_shapes(const ConvProblem& p, int64_t rows, int64_t columns, int64_t least,
                       int64_t fits, std::vector<Shape>& shapes) {
  const auto covered = [](int64_t size, int64_t own) {
    return static_cast<double>(ceil_divide(size, own) * own);
  };
  const double image = covered(p.P, rows) * covered(p.Q, columns);
  for (int64_t images = least; images <= fits; images *= 2) {
    shapes.push_back({{static_cast<int>(rows), static_cast<int>(columns), static_cast<int>(images)},
                      image * covered(p.N, images)});
  }
}

// In an order in which the first are often good: those of little waste, and of many pixels.
inline void sort_shapes(std::vector<Shape>& shapes) {
  const auto size = [](const Shape& s) { return s.pixels[0] * s.pixels[1] * s.pixels[2]; };
  std::sort(shapes.begin(), shapes.end(), [&](const Shape& a, const Shape& b) {
    return a.all < b.all || (a.all == b.all && size(a) > size(b));
  });
}

// A variant is a plan, `Decided`, without a tile or splits. `Own` has `shapes_of(variant)`, to be
// tried; `count(tile)`; `split(tile, counted)`, which counts how the tile is split; and
// `weigh_splits(plan, tile, counted, weigh)`, which calls `weigh(plan, tile, counted)` with each
// way to split it.
template <typename Own, typename Tile, typename Decided>
class TileSearch {
 protected:
  struct Choice {
    Tile tile;
    Decided plan;
    double ms = std::numeric_limits<double>::infinity();
    int way = 0;  // to add up sums, below kWays
  };

  // `enough_ms`: a plan of no more ends the search.
  TileSearch(const ConvProblem& p, const DeviceProperties& d, std::vector<ConvPlan>* all,
             double enough_ms)
      : p_(p), d_(d), all_(all), prices_(prices_of(d)), enough_ms_(enough_ms) {}

  bool found() const { return best_.ms < std::numeric_limits<double>::infinity(); }

  // Lists the plans of all variants if they were asked for; else searches for the cheapest.
  void try_variants(const std::vector<Decided>& variants) {
    if (all_ != nullptr) {
      for (const Decided& variant : variants) list(variant);
      return;
    }
    struct Sampled {
      Decided variant;
      double ms;
    };
    std::vector<Sampled> sampled;
    sampled.reserve(variants.size());
    for (const Decided& variant : variants) {
      const double ms = try_shapes(variant, kSampled);
      if (best_.ms <= enough_ms_) return;
      if (ms < std::numeric_limits<double>::infinity()) sampled.push_back({variant, ms});
    }
    std::sort(sampled.begin(), sampled.end(),
              [](const Sampled& a, const Sampled& b) { return a.ms < b.ms; });
    for (size_t i = 0; i < std::min(kSearched, sampled.size()); ++i) {
      if (sampled[i].ms > kFar * best_.ms) break;
      try_shapes(sampled[i].variant, kAllShapes);
    }
  }

  ConvPlan plan_of(const Choice& choice) {
    const Tile& t = choice.tile;
    ConvPlan plan{shape_of(p_, t)};
    plan.splits = t.splits;
    plan.payload = choice.plan;
    Counted c = own().count(t);
    own().split(t, c);
    plan.works = count_works(d_, c);
    plan.predicted_ms = choice.ms;
    return plan;
  }

  // Splits of tiles whose clusters have a part of each of their blocks: no sum has more pixels.
  template <typename Weigh>
  void weigh_clusters(Decided plan, Tile t, Counted c, int64_t summed, const Weigh& weigh) {
    wgrad::weigh_splits(c.tiles, t.pixels(), c.blocks, d_.sm_count, summed,
                        [&](int64_t splits, bool clustered) {
                          if (clustered && !t.holds_sums()) return;
                          t.splits = splits;
                          t.clustered = plan.clustered = clustered;
                          own().split(t, c);
                          weigh(plan, t, c);
                        });
  }
  static void split_by_cluster(const Tile& t, Counted& c) {
    c.splits = t.splits;
    c.stores_parts = !t.clustered;
    c.cluster = t.clustered ? t.splits : 1;
  }

  const ConvProblem p_;
  const DeviceProperties& d_;
  std::vector<ConvPlan>* const all_;
  Choice best_;

 private:
  static constexpr size_t kSampled = 6, kAllShapes = SIZE_MAX;  // of a variant
  static constexpr size_t kSearched = 6;                        // variants, at most
  static constexpr double kFar = 1.5;    // variants beyond so many times the best are not searched
  static constexpr double kNear = 0.97;  // what can save no more than the rest is not weighed
  static constexpr int kListed = 4;      // plans of a variant, for each way to add up sums
  static constexpr int kWays = 8;        // clusters of 1, 2, 4 or 8, which store results or parts

  Own& own() { return static_cast<Own&>(*this); }

  // The least clocks that a thread block takes to store its sums, and those of a launch that
  // stores.
  struct LeastStore {
    double block, launch;
  };
  LeastStore least_store(const Counted& c) const {
    const Price* const stores = prices_ + price_row(PriceKind::kWgradStore, c.first_store());
    LeastStore least{c.sums * 4 / stores[0].store, stores[0].wait};
    for (int i = 1; i < kStoreRows; ++i) {
      least.block = std::min<double>(least.block, c.sums * 4 / stores[i].store);
      least.launch = std::min<double>(least.launch, stores[i].wait);
    }
    return least;
  }

  // The least milliseconds of a plan whose multiprocessors take so many clocks.
  double least_ms(const Counted& c, double clocks) const {
    const double ms = clocks / (d_.clock_ghz * 1e6);
    const double bytes_ms = 1e-6 * c.bytes / (prices_[c.row].bandwidth * d_.bandwidth_gb_s);
    return std::max(ms, bytes_ms) + hardware::kLaunchMs;
  }

  // Weighs about so many shapes of a variant. No plan of theirs takes fewer milliseconds than it
  // returns.
  double try_shapes(const Decided& variant, size_t most) {
    const std::vector<Shape>& shapes = own().shapes_of(variant);
    const size_t step = std::max<size_t>(shapes.size() / most, 1);
    double cheapest = std::numeric_limits<double>::infinity();
    double of_pixel = 0;  // clocks, the same for all tiles of a variant
    LeastStore store{};   // too
    Counted c;
    for (size_t i = 0; i < shapes.size(); i += step) {
      const Shape& shape = shapes[i];
      if (of_pixel > 0 && is_far(least_ms(c, shape.all * of_pixel + store.block + store.launch)))
        continue;
      Decided plan = variant;
      const Tile tile = make(shape, plan);
      if (tile.stages == 0) {
        i -= step - 1;  // the next shape stands in
        continue;
      }
      c = own().count(tile);
      const Price& price = prices_[c.row];
      const double share = static_cast<double>(c.blocks) / d_.sm_count;
      const double waits = c.waits * price.wait;
      const double one = c.busy / price.rate + waits, first = c.alone / price.rate + waits;
      const double tiles = static_cast<double>(c.tiles) * share;
      of_pixel = c.products / price.rate * share;
      store = least_store(c);
      const double least =
          least_ms(c, std::max(tiles * std::min(one, first), first) + store.block + store.launch);
      cheapest = std::min(cheapest, least);
      if (is_far(least)) continue;
      own().weigh_splits(plan, tile, c, [&](const auto& split, const Tile& t, const auto& own_c) {
        const auto of_block = static_cast<double>(ceil_divide(c.tiles, own_c.splits));
        const double turns = std::ceil(share * static_cast<double>(own_c.splits));
        const double turn = (of_block - 1) * one + first + store.block;
        if (is_far(least_ms(c, turns * turn + store.launch))) return;
        const double ms = customconv::price(count_works(d_, own_c), d_, prices_);
        if (ms < best_.ms) best_ = {t, split, ms};
      });
    }
    return cheapest;
  }

  bool is_far(double least) const { return least >= kNear * best_.ms; }

  // Fills in a plan's tile and stages; 0 of these where there is no such plan.
  Tile make(const Shape& shape, Decided& plan) const {
    std::copy(std::begin(shape.pixels), std::end(shape.pixels), plan.tile);
    Tile t = make_tile(p_, plan, 1);
    choose_stages(d_.shared_bytes_block - 1024, t);
    const bool fits = t.stages >= kLeastStages && blocks_of(p_, t) <= kMostSums / t.sums();
    plan.stages = t.stages = fits ? t.stages : 0;
    return t;
  }

  // Lists the cheapest plans of a variant.
  void list(const Decided& variant) {
    std::vector<Choice> choices;
    for (const Shape& shape : own().shapes_of(variant)) {
      Decided plan = variant;
      const Tile tile = make(shape, plan);
      if (tile.stages == 0) continue;
      own().weigh_splits(plan, tile, own().count(tile),
                         [&](const Decided& split, const Tile& t, const Counted& c) {
                           const double ms = customconv::price(count_works(d_, c), d_, prices_);
                           const int way = c.cluster_log() * 2 + (c.stores_parts ? 1 : 0);
                           choices.push_back({t, split, ms, way});
                         });
    }
    std::sort(choices.begin(), choices.end(),
              [](const Choice& a, const Choice& b) { return a.ms < b.ms; });
    if (!choices.empty() && choices[0].ms < best_.ms) best_ = choices[0];
    int listed[kWays] = {};
    for (const Choice& choice : choices) {
      if (listed[choice.way]++ < kListed) all_->push_back(plan_of(choice));
    }
  }

  const PriceTable prices_;
  const double enough_ms_;
};

}  // namespace customconv::implicit_gemm::wgrad
