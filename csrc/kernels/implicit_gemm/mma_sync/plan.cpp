#include "kernels/implicit_gemm/mma_sync/plan.h"

#include <algorithm>

#include "kernels/implicit_gemm/mma_sync/payload.h"
#include "kernels/implicit_gemm/mma_sync/price.h"
#include "plan/fields.h"
#include "plan/search.h"

namespace customconv::implicit_gemm::mma_sync {

namespace {

constexpr int kMostTurns = 3;             // of splits
constexpr int64_t kFarReach = 6;          // pixels of halo
constexpr int64_t kMostStride = 8;        // of boxes
constexpr int64_t kMostWoven = 32 << 20;  // bytes of a phase that is stored apart
constexpr int64_t kMostRows = 32;         // of pixels in a tile of lines
constexpr int kFewChannels = 4;           // up to which channels and taps are one dimension

// Whether the kernels may compute it: they know of no phases, and no halves.
bool may_compute(const ConvProblem& asked) {
  return !asked.is_strict_float32() && count_phases(asked) <= kMostPhases &&
         !as_forward(asked).has_phases();
}

// Whether pixels may be fetched so, of whatever tile.
bool can_fetch(const Forward& p, Fetch fetch) {
  switch (fetch) {
    case Fetch::kShared:
      return input_is_legal(p) && p.stride_h <= kMostStride && p.stride_w <= kMostStride &&
             (p.K == 1 || p.y_strides[1] == 1);
    case Fetch::kTaps:
    case Fetch::kOddTaps:
      return p.stride_w == 1 && p.dilation_w == 1;
    case Fetch::kFlat:
      return p.C <= kFewChannels && round_up(p.C * p.R * p.S, kPieceBytes) <= kMostFlat;
    default:
      return true;
  }
}

class Search : public PlanSearch {
 public:
  Search(const ConvProblem& asked, const DeviceProperties& d, std::vector<ConvPlan>* all,
         const Wanted& wanted)
      : PlanSearch(asked, d, all, wanted), f_(as_one_row(as_forward(asked))) {}

  ConvPlan best() {
    if (f_.woven * element_size(f_.dtype) > kMostWoven) return best_;
    const bool one_tap = f_.R == 1 && f_.S == 1;
    if (can_fetch(f_, Fetch::kShared)) {
      try_planes(Fetch::kShared);
      if (best_.threads > 0 && f_.C > kFewChannels) return best_;
    }
    if (can_fetch(f_, Fetch::kFlat)) try_kernels({Fetch::kFlat});
    const bool pairs = can_fetch(f_, Fetch::kTaps);
    if (pairs && !one_tap) {
      try_planes(Fetch::kTaps);
      try_planes(Fetch::kOddTaps);
    }
    if (one_tap && (f_.stride_w == 1 || f_.dtype == DType::kFloat32)) {
      try_kernels({Fetch::kPieces});
    } else if (!pairs) {
      try_planes(Fetch::kElements);
    }
    // A plane for each tap has no more pixels than the tile.
    if (best_.threads == 0) try_kernels(apart(Fetch::kPieces, true, true));
    return best_;
  }

 private:
  // Where a halo may cost more than a plane for each tap.
  static bool reaches_far(int64_t taps, int64_t dilation) {
    return (taps - 1) * dilation > kFarReach;
  }

  static MmaSyncPlan apart(Fetch fetch, bool h, bool w) {
    MmaSyncPlan plan{fetch};
    plan.apart_h = h;
    plan.apart_w = w;
    return plan;
  }

  void try_planes(Fetch fetch) {
    const bool far_h = reaches_far(f_.R, f_.dilation_h), far_w = reaches_far(f_.S, f_.dilation_w);
    try_kernels({fetch});
    if (far_h) try_kernels(apart(fetch, true, false));
    if (fetch != Fetch::kShared) return;
    if (far_w) try_kernels(apart(fetch, false, true));
    if (best_.threads == 0 || (far_h && far_w)) try_kernels(apart(fetch, true, true));
  }

  void try_kernels(MmaSyncPlan plan) {
    const Fetch fetch = plan.fetch;
    for (plan.kernel = 0; plan.kernel < kKernelCount; ++plan.kernel) {
      if (is_too_wide(plan.kernel, fetch) || !has_kernel(kKernels[plan.kernel], fetch)) continue;
      if (fetch == Fetch::kShared) {
        try_squares(plan);
        try_boxed_lines(plan);
      } else {
        try_run(plan);
        if (fetch != Fetch::kPieces || plan.apart_h || plan.apart_w) try_row_lines(plan);
      }
    }
  }

  // Twice as wide a tile as there are channels is never better than the next one.
  bool is_too_wide(int kernel, Fetch fetch) const {
    const int narrowest = fetch == Fetch::kShared ? 32 : 64;
    const int channels = kKernels[kernel].channels;
    return channels > narrowest && f_.K <= channels / 2;
  }

  void try_squares(MmaSyncPlan plan) {
    plan.shape = Shape::kSquares;
    const int blocks = kKernels[plan.kernel].blocks();
    for (int across = 1; across <= blocks; across *= 2) {
      for (int down = 1; across * down <= blocks; down *= 2) {
        try_tile(plan, down * 8, across * 8, blocks / (across * down));
      }
    }
  }

  // Whole rows of pixels with their halo, as many as there is room for.
  void try_boxed_lines(MmaSyncPlan plan) {
    plan.shape = Shape::kLines;
    const int64_t pixels = kKernels[plan.kernel].pixels;
    const int64_t reach = make_tile(f_, with_tile(plan, 1, 1), 1).w.reach;
    Tried<int64_t> tried;
    for (int64_t rows = 1; rows <= std::min<int64_t>(kMostRows, f_.P); ++rows) {
      // As wide as so many rows may be; then as the image's width divides evenly.
      const int64_t most = std::min((pixels + reach) / rows - reach, f_.Q);
      if (most < 4 && rows > 1) break;
      if (most < 1) return;
      for (const int64_t columns : {ceil_divide(f_.Q, ceil_divide(f_.Q, most)), most}) {
        if (!tried.add(columns)) continue;
        const int64_t fits = std::min((pixels - columns) / (columns + reach) + 1, f_.P);
        try_tile(plan, fits, columns);
      }
    }
  }

  // Parts of rows, one below the other.
  void try_row_lines(MmaSyncPlan plan) {
    plan.shape = Shape::kLines;
    constexpr int64_t kUnit = 8;  // pixels: what keeps copies aligned
    const int64_t pixels = kKernels[plan.kernel].pixels;
    int64_t last = 0;
    for (int64_t rows = 1; rows <= std::min<int64_t>(kMostRows, f_.P); rows *= 2) {
      const int64_t most = std::min(pixels / rows / kUnit * kUnit, round_up(f_.Q, kUnit));
      if (most < kUnit) break;
      const int64_t even = round_up(ceil_divide(f_.Q, ceil_divide(f_.Q, most)), kUnit);
      for (const int64_t columns : {even, most}) {
        if (columns == last) continue;
        last = columns;
        const int64_t fits = std::min(pixels / columns, f_.P);
        const bool legal = is_legal(f_, make_tile(f_, with_tile(plan, fits, columns), 1));
        try_tile(plan, legal ? fits : rows, columns);
      }
    }
  }

  void try_run(MmaSyncPlan plan) {
    const auto row = static_cast<double>(f_.Q + 1);
    const double rows = static_cast<double>(f_.P) * static_cast<double>(f_.stride_h) +
                        static_cast<double>(f_.R) * static_cast<double>(f_.dilation_h);
    if (std::max(row, rows) * rows * static_cast<double>(f_.N) > INT32_MAX / 4) return;
    plan.shape = Shape::kRun;
    try_tile(plan, f_.P, f_.Q);
  }

  static MmaSyncPlan with_tile(MmaSyncPlan plan, int64_t rows, int64_t columns, int images = 1) {
    plan.tile[0] = static_cast<int>(rows);
    plan.tile[1] = static_cast<int>(columns);
    plan.tile[2] = images;
    return plan;
  }

  void try_tile(const MmaSyncPlan& way, int64_t rows, int64_t columns, int images = 1) {
    const MmaSyncPlan plan = with_tile(way, rows, columns, images);
    if (is_over() || has_slow_products(plan)) return;
    const Tile t = make_tile(f_, plan, 1);
    const WorkList whole = weigh(plan, t);
    // Splits where the tiles alone leave multiprocessors idle, also in the last of a few turns.
    const int64_t most =
        std::min<int64_t>(t.steps(), kMostTurns * d_.sm_count / std::max<int64_t>(t.tiles(), 1));
    const auto try_splits = [&](int64_t splits) {
      if (may_pay(whole, t, splits)) weigh(plan, make_tile(f_, plan, splits));
    };
    for (int64_t splits = 2; splits < most; splits = splits < 4 ? splits + 1 : splits * 3 / 2) {
      try_splits(splits);
    }
    if (most > 1) try_splits(most);
  }

  // Whether a tile may be wanted if it is split, by the work of the whole tile. Not known, and
  // true, where the whole tile does not fit.
  bool may_pay(const WorkList& whole, Tile t, int64_t splits) const {
    if (whole.empty()) return true;
    t.splits = static_cast<int>(splits);
    Work part = *whole.begin();
    part.store_row = split_store_row(f_);
    part.blocks = static_cast<float>(t.tiles() * splits);
    part.busy /= static_cast<float>(splits);
    part.waits /= static_cast<float>(splits);
    part.stored = static_cast<float>(split_stored_bytes(t));
    ConvPlan plan;
    plan.works.add(part);
    plan.works.add(adding(t));
    std::for_each(whole.begin() + 1, whole.end(), [&](const Work& w) { plan.works.add(w); });
    return is_wanted(plan);
  }

  // Whether the products of all tiles, shared out evenly, take too long.
  bool has_slow_products(const MmaSyncPlan& plan) const {
    Tile t{};
    t.kernel = plan.kernel;
    t.fetch = plan.fetch;
    const auto& pixels = plan.tile;
    const double tiles =
        plan.shape == Shape::kRun
            ? static_cast<double>(f_.N * f_.P * f_.Q) / t.kind().pixels
            : static_cast<double>(ceil_divide(f_.N, pixels[2]) * ceil_divide(f_.P, pixels[0]) *
                                  ceil_divide(f_.Q, pixels[1]));
    const double channels = static_cast<double>(f_.group_C() * f_.R * f_.S);
    const double products = tiles * static_cast<double>(ceil_divide(f_.K, t.kind().channels)) *
                            t.kind().blocks() * channels *
                            static_cast<double>(element_size(f_.dtype)) / kPieceBytes;
    return is_slow(loop_row(f_, t), d_.sm_count,
                   products * product_clocks(f_, d_, t) / d_.sm_count);
  }

  // Weighs a tile, and returns its work: none if the tile does not fit.
  WorkList weigh(MmaSyncPlan way, Tile t) {
    constexpr int kReserved = 1024;  // bytes of shared memory
    if (t.tiles() * t.splits > INT32_MAX / 2) return {};
    // A plane that fits has no sizes that overflow in what follows.
    if (!is_legal(f_, t) || !choose_stages(f_, d_.shared_bytes_block - kReserved, t)) return {};
    way.stages[0] = t.x_stages;
    way.stages[1] = t.w_stages;
    ConvPlan plan{shape_of(f_, t)};
    plan.blocks = std::min<int64_t>(plan.blocks, d_.sm_count);
    plan.splits = t.splits;
    plan.payload = way;
    plan.works = count_work(f_, d_, t);
    add(plan);
    return plan.works;
  }

  const Forward f_;
};

}  // namespace

ConvPlan best_plan(const ConvProblem& asked, const DeviceProperties& d, std::vector<ConvPlan>* all,
                   const Wanted& wanted) {
  return may_compute(asked) ? Search(asked, d, all, wanted).best() : ConvPlan{};
}

int64_t sum_order(const ConvPlan& plan, bool has_epilogue) {
  const auto way = plan.payload.as<MmaSyncPlan>();
  const int tile = has_epilogue ? 1 + way.kernel * 4 + static_cast<int>(way.shape) : 0;
  return (tile * kFetchCount + static_cast<int>(way.fetch)) * 4 + way.apart_h * 2 + way.apart_w;
}

LaunchShape shape(const ConvProblem& asked, const ConvPlan& plan) {
  if (!may_compute(asked)) return {};
  const auto way = plan.payload.as<MmaSyncPlan>();
  const Forward p = as_one_row(as_forward(asked));
  const bool one_tap = (p.R == 1 || way.apart_h) && (p.S == 1 || way.apart_w);
  if (!has_kernel(kKernels[way.kernel], way.fetch) || !can_fetch(p, way.fetch)) return {};
  if (way.fetch == Fetch::kPieces && !one_tap) return {};
  const Tile tile = make_tile(p, way, plan.splits);
  return is_legal(p, tile) ? shape_of(p, tile) : LaunchShape{};
}

}  // namespace customconv::implicit_gemm::mma_sync

namespace customconv {

template <>
Fields fields_of<PlanKind::implicit_gemm_mma_sync>() {
  using implicit_gemm::mma_sync::MmaSyncPlan;
  return FieldList<MmaSyncPlan>()
      .word("fetch", &MmaSyncPlan::fetch,
            {"shared", "pieces", "taps", "odd-taps", "elements", "flat"})
      .word("kernel", &MmaSyncPlan::kernel, words_of(implicit_gemm::mma_sync::kKernels))
      .word("shape", &MmaSyncPlan::shape, {"squares", "lines", "run"})
      .flag("apart_h", &MmaSyncPlan::apart_h)
      .flag("apart_w", &MmaSyncPlan::apart_w)
      .size("tile", &MmaSyncPlan::tile)
      .size("stages", &MmaSyncPlan::stages);
}

}  // namespace customconv
