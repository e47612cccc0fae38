// implicit_gemm: matrix products on the tensor cores, from input tiles that stay in shared memory.
#include "kernels/implicit_gemm/sm90/plan.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/implicit_gemm/payload.h"
#include "kernels/implicit_gemm/price.h"
#include "kernels/implicit_gemm/tile.h"
#include "kernels/implicit_gemm/wgrad/wgrad.h"
#include "plan/fields.h"
#include "plan/hardware.h"
#include "plan/price.h"
#include "plan/search.h"

namespace customconv::implicit_gemm {

namespace {

constexpr int kLeastShared = 96 << 10;    // bytes of a block's memory
constexpr int kMostExchange = 64 << 10;   // bytes of a cluster's exchange: it leaves fewer stages
constexpr int kMostTurns = 3;             // of splits
constexpr int64_t kFarReach = 6;          // pixels of halo
constexpr int64_t kMostWoven = 32 << 20;  // bytes of a phase that is stored apart
constexpr int64_t kMostRows = 32;         // of pixels in a tile of lines
constexpr int kFewChannels = 4;           // up to which channels and taps are one dimension
constexpr int kLeastChannels = 32;        // of output, of the smallest tile
constexpr int kLeastWarpChannels = 64;    // of that of rows, where warps multiply

struct Choice {
  BoxesRowsPlan plan;
  Tile tile;
  WorkList works;
  double ms;
};

// Fills in the stages and the price; false where the tile does not fit.
bool fill_in(const Forward& p, const DeviceProperties& d, Choice& choice) {
  Tile& t = choice.tile;
  // A plane that fits has no sizes that overflow in what follows.
  if (!is_legal(p, t)) return false;
  if (!choose_stages(p, d.shared_bytes_block - 1024, t)) return false;
  choice.plan.stages[0] = t.x_stages;
  choice.plan.stages[1] = t.w_stages;
  choice.works = count_work(p, d, t);
  choice.ms = customconv::price(choice.works, d);
  return true;
}

// Whether the copy engine can read boxes of pixels, all their channels side by side.
bool input_is_boxed(const Forward& p) {
  return sm90::input_is_legal(p) && p.stride_h <= 8 && p.stride_w <= 8;
}

// Whether the copy engine can read slabs of planes of pixels, each image a row.
bool planes_are_boxed(const ConvProblem& p) {
  const int64_t size = element_size(p.dtype);
  // TF32's operands take channels in another order, of whole pieces.
  const bool channels = p.dtype != DType::kFloat32 || p.C * size % kPieceBytes == 0;
  return p.is_pointwise() && p.H == 1 && p.x_aligned && p.W * size % 16 == 0 && channels &&
         p.N * p.C <= INT32_MAX && strides_match(p.x_sizes(), p.x_strides, Layout::kNchw);
}

// Whether pixels may be fetched so, of whatever tile.
bool can_fetch(const Forward& p, Fetch fetch) {
  switch (fetch) {
    case Fetch::kShared:
      return input_is_boxed(p) && (p.K == 1 || p.y_strides[1] == 1);
    case Fetch::kTaps:
    case Fetch::kOddTaps:
      return p.stride_w == 1 && p.dilation_w == 1;
    case Fetch::kFlat:
      return p.C <= kFewChannels && round_up(p.C * p.R * p.S, kPieceBytes) <= kMostFlat;
    case Fetch::kBoxedPieces:
      return planes_are_boxed(p);
    default:
      return true;
  }
}

class Search {
 public:
  // `by_warps`: with the kernels that are not only Hopper's. Keeps every choice in `all`, where
  // that is given. A choice of no more than `enough_ms` ends the search.
  Search(const Forward& p, const DeviceProperties& d, bool by_warps, double enough_ms,
         std::vector<Choice>* all = nullptr)
      : p_(p), d_(d), by_warps_(by_warps), enough_ms_(enough_ms), all_(all) {}

  Choice best() {
    if (p_.woven * element_size(p_.dtype) > kMostWoven) return best_;
    const bool one_tap = p_.R == 1 && p_.S == 1;
    if (can_fetch(p_, Fetch::kShared)) {
      // The main loop of sm90 is faster for single taps and for strides.
      const bool left = !by_warps_ && (one_tap || p_.stride_h > 1 || p_.stride_w > 1);
      if (!left) try_planes(Fetch::kShared);
      if ((left || best_.ms > 0) && p_.C > kFewChannels) return best_;
    }
    if (can_fetch(p_, Fetch::kFlat)) try_kernels({Fetch::kFlat});
    if (!by_warps_ && can_fetch(p_, Fetch::kBoxedPieces)) {
      try_kernels({Fetch::kBoxedPieces});
      if (best_.ms > 0) return best_;
    }
    // The main loop of sm90 packs pixels that are not in planes.
    if (!by_warps_ && p_.W > 1 && p_.x_strides[3] != 1) return best_;
    const bool pairs = can_fetch(p_, Fetch::kTaps);
    if (pairs && !one_tap) {
      try_planes(Fetch::kTaps);
      try_planes(Fetch::kOddTaps);
    }
    if (!by_warps_) return best_;
    if (one_tap && (p_.stride_w == 1 || p_.dtype == DType::kFloat32)) {
      try_kernels({Fetch::kPieces});
    } else if (!pairs) {
      try_planes(Fetch::kElements);
    }
    // A plane for each tap has no more pixels than the tile.
    if (best_.ms == 0) try_kernels(apart(Fetch::kPieces, true, true));
    return best_;
  }

 private:
  // Where a halo may cost more than a plane for each tap. On Hopper, the main loop of sm90 then
  // costs less.
  static bool reaches_far(int64_t taps, int64_t dilation) {
    return (taps - 1) * dilation > kFarReach;
  }

  static BoxesRowsPlan apart(Fetch fetch, bool h, bool w) {
    BoxesRowsPlan plan{fetch};
    plan.apart_h = h;
    plan.apart_w = w;
    return plan;
  }

  void try_planes(Fetch fetch) {
    const bool far_h = reaches_far(p_.R, p_.dilation_h), far_w = reaches_far(p_.S, p_.dilation_w);
    try_kernels({fetch});
    if (!by_warps_) return;
    if (far_h) try_kernels(apart(fetch, true, false));
    if (fetch != Fetch::kShared) return;
    if (far_w) try_kernels(apart(fetch, false, true));
    if (best_.ms == 0 || (far_h && far_w)) try_kernels(apart(fetch, true, true));
  }

  void try_kernels(BoxesRowsPlan plan) {
    const Fetch fetch = plan.fetch;
    plan.by_warps = by_warps_;
    for (plan.kernel = 0; plan.kernel < kKernelCount; ++plan.kernel) {
      if (is_too_wide(plan.kernel, fetch)) continue;
      const Kernel& kind = kKernels[plan.kernel];
      if (by_warps_ ? !is_by_warps(kind, fetch) : !is_by_warpgroups(kind, fetch)) continue;
      if (fetch == Fetch::kShared) {
        try_squares(plan);
        try_boxed_lines(plan);
      } else {
        try_run(plan);
        if (!is_compact(fetch) || plan.apart_h || plan.apart_w) try_row_lines(plan);
      }
    }
  }

  // Twice as wide a tile as there are channels is never better than the next one.
  bool is_too_wide(int kernel, Fetch fetch) const {
    const bool rows_by_warps = by_warps_ && fetch != Fetch::kShared;
    const int narrowest = rows_by_warps ? kLeastWarpChannels : kLeastChannels;
    const int channels = kKernels[kernel].channels;
    return channels > narrowest && p_.K <= channels / 2;
  }

  void try_squares(BoxesRowsPlan plan) {
    plan.shape = Shape::kSquares;
    const int blocks = kKernels[plan.kernel].blocks();
    for (int across = 1; across <= blocks; across *= 2) {
      for (int down = 1; across * down <= blocks; down *= 2) {
        try_tile(plan, down * 8, across * 8, blocks / (across * down));
      }
    }
  }

  // Whole rows of pixels with their halo, as many as there is room for.
  void try_boxed_lines(BoxesRowsPlan plan) {
    plan.shape = Shape::kLines;
    const int64_t pixels = kKernels[plan.kernel].pixels;
    const int64_t reach = make_tile(p_, with_tile(plan, 1, 1), 1).w.reach;
    Tried<int64_t> tried;
    for (int64_t rows = 1; rows <= std::min<int64_t>(kMostRows, p_.P); ++rows) {
      // As wide as so many rows may be; then as the image's width divides evenly.
      const int64_t most = std::min((pixels + reach) / rows - reach, p_.Q);
      if (most < 4 && rows > 1) break;
      if (most < 1) return;
      for (const int64_t columns : {ceil_divide(p_.Q, ceil_divide(p_.Q, most)), most}) {
        if (!tried.add(columns)) continue;
        const int64_t fits = std::min((pixels - columns) / (columns + reach) + 1, p_.P);
        try_tile(plan, fits, columns);
      }
    }
  }

  // Parts of rows, one below the other.
  void try_row_lines(BoxesRowsPlan plan) {
    plan.shape = Shape::kLines;
    constexpr int64_t kUnit = 8;  // pixels: what keeps copies aligned
    const int64_t pixels = kKernels[plan.kernel].pixels;
    int64_t last = 0;
    for (int64_t rows = 1; rows <= std::min<int64_t>(kMostRows, p_.P); rows *= 2) {
      const int64_t most = std::min(pixels / rows / kUnit * kUnit, round_up(p_.Q, kUnit));
      if (most < kUnit) break;
      const int64_t even = round_up(ceil_divide(p_.Q, ceil_divide(p_.Q, most)), kUnit);
      for (const int64_t columns : {even, most}) {
        if (columns == last) continue;
        last = columns;
        const int64_t fits = std::min(pixels / columns, p_.P);
        const bool legal = is_legal(p_, make_tile(p_, with_tile(plan, fits, columns), 1));
        try_tile(plan, legal ? fits : rows, columns);
      }
    }
  }

  void try_run(BoxesRowsPlan plan) {
    const auto row = static_cast<double>(p_.Q + 1);
    const double rows = static_cast<double>(p_.P) * static_cast<double>(p_.stride_h) +
                        static_cast<double>(p_.R) * static_cast<double>(p_.dilation_h);
    if (std::max(row, rows) * rows * static_cast<double>(p_.N) > INT32_MAX / 4) return;
    plan.shape = Shape::kRun;
    try_tile(plan, p_.P, p_.Q);
  }

  static BoxesRowsPlan with_tile(BoxesRowsPlan plan, int64_t rows, int64_t columns,
                                 int images = 1) {
    plan.tile[0] = static_cast<int>(rows);
    plan.tile[1] = static_cast<int>(columns);
    plan.tile[2] = images;
    return plan;
  }

  void try_tile(const BoxesRowsPlan& way, int64_t rows, int64_t columns, int images = 1) {
    BoxesRowsPlan plan = with_tile(way, rows, columns, images);
    const bool is_over = best_.ms > 0 && best_.ms <= enough_ms_;
    if (is_over || is_slower(plan)) return;
    const Tile t = make_tile(p_, plan, 1);
    const WorkList whole = weigh(plan, t);
    // Splits where the tiles alone leave multiprocessors idle, also in the last of a few turns.
    const int64_t most =
        std::min<int64_t>(t.steps(), kMostTurns * d_.sm_count / std::max<int64_t>(t.tiles(), 1));
    const auto try_splits = [&](int64_t splits) {
      if (is_slower(whole, t, splits, Store::kSplits)) return;
      weigh(plan, make_tile(p_, plan, splits));
    };
    for (int64_t splits = 2; splits < most; splits = splits < 4 ? splits + 1 : splits * 3 / 2) {
      try_splits(splits);
    }
    if (most > 1) try_splits(most);
    if (by_warps_) return;
    // Clusters start whole, and do one tile.
    plan.clustered = true;
    for (int64_t splits = 2; splits <= std::min<int64_t>(kMostClustered, t.steps()); splits *= 2) {
      if (t.tiles() * splits > d_.sm_count) break;
      if (is_slower(whole, t, splits, Store::kCluster)) continue;
      const Tile clustered = make_tile(p_, plan, splits);
      if (t.tiles() * splits > blocks_at_once(d_, clustered)) break;
      if (exchange_bytes(clustered) > kMostExchange) break;
      weigh(plan, clustered);
    }
  }

  // Whether a tile takes longer than the best plan if it is split, by the work of the whole tile.
  // Not known, and false, where the whole tile does not fit.
  bool is_slower(const WorkList& whole, const Tile& tile, int64_t splits, Store store) const {
    if (all_ != nullptr || best_.ms == 0 || whole.empty()) return false;
    Tile t = tile;
    t.splits = static_cast<int>(splits);
    t.clustered = store == Store::kCluster;
    Work part = *whole.begin();
    part.store_row = store_row(p_, store);
    part.blocks = static_cast<float>(t.tiles() * splits);
    part.sms = static_cast<float>(blocks_at_once(d_, t));
    part.busy /= static_cast<float>(splits);
    part.waits /= static_cast<float>(splits);
    part.stored = static_cast<float>(stored_bytes(p_, t, store));
    WorkList works;
    works.add(part);
    if (store == Store::kSplits) works.add(adding(t));
    std::for_each(whole.begin() + 1, whole.end(), [&](const Work& other) { works.add(other); });
    return customconv::price(works, d_, best_.ms) >= best_.ms;
  }

  // Whether the products of all tiles, shared out evenly, take longer than the best plan. False
  // where all plans are listed.
  bool is_slower(const BoxesRowsPlan& plan) const {
    if (all_ != nullptr || best_.ms == 0) return false;
    Tile t{};
    t.kernel = plan.kernel;
    t.fetch = plan.fetch;
    t.by_warps = by_warps_;
    const auto& pixels = plan.tile;
    const double tiles =
        plan.shape == Shape::kRun
            ? static_cast<double>(p_.N * p_.P * p_.Q) / t.kind().pixels
            : static_cast<double>(ceil_divide(p_.N, pixels[2]) * ceil_divide(p_.P, pixels[0]) *
                                  ceil_divide(p_.Q, pixels[1]));
    const double channels = static_cast<double>(p_.group_C() * p_.R * p_.S);
    const double products = tiles * static_cast<double>(ceil_divide(p_.K, t.kind().channels)) *
                            t.kind().blocks() * channels *
                            static_cast<double>(element_size(p_.dtype)) / kPieceBytes;
    const double rate = prices_of(d_)[loop_row(t, p_.dtype == DType::kFloat32 ? 1 : 0)].rate;
    const double clocks = products * instruction_clocks(p_, d_, t) / rate / d_.sm_count;
    return clocks / (d_.clock_ghz * 1e6) + hardware::kLaunchMs >= best_.ms;
  }

  // Weighs a tile, and returns its work: none if the tile does not fit.
  WorkList weigh(const BoxesRowsPlan& plan, const Tile& tile) {
    Choice choice{plan, tile, {}, 0};
    if (tile.tiles() * tile.splits > INT32_MAX / 2) return {};
    if (!fill_in(p_, d_, choice)) return {};
    if (best_.ms == 0 || choice.ms < best_.ms) best_ = choice;
    if (all_ != nullptr) all_->push_back(choice);
    return choice.works;
  }

  const Forward& p_;
  const DeviceProperties& d_;
  bool by_warps_;
  double enough_ms_;
  std::vector<Choice>* all_;
  Choice best_{};
};

// 3xTF32 may be off by 2^-21 of a product, a multiply-add by 2^-24 (docs/how/float32.md). Long
// sums hide that.
constexpr int64_t kLeastStrictTerms = 8;

// The fewest products that are summed for a result, where the image's edges cut off none: in an
// input gradient those of the phase that meets the fewest taps.
int64_t least_terms(const ConvProblem& p) {
  const auto least_taps = [&p](int64_t taps, int64_t stride, int64_t dilation) {
    if (p.pass != Pass::kDgrad) return taps;
    return std::max<int64_t>(1, taps / (stride / std::gcd(stride, dilation)));
  };
  if (p.pass == Pass::kWgrad) return p.N * p.P * p.Q;
  return (p.pass == Pass::kFprop ? p.group_C() : p.group_K()) *
         least_taps(p.R, p.stride_h, p.dilation_h) * least_taps(p.S, p.stride_w, p.dilation_w);
}

// Whether an image's rows follow each other, as planes or as pixels with all channels: of a dense
// tensor, or of rows of it.
bool rows_follow(const Shape4& sizes, const Shape4& strides) {
  const auto follow = [&](int64_t pixel) {
    return (sizes[3] == 1 || strides[3] == pixel) &&
           (sizes[2] == 1 || strides[2] == sizes[3] * pixel);
  };
  const bool planes = follow(1) && (sizes[1] == 1 || strides[1] >= sizes[2] * sizes[3]);
  const bool pixels = follow(sizes[1]) && (sizes[1] == 1 || strides[1] == 1);
  return planes || pixels;
}

const char* can_implement(const ConvProblem& asked, const DeviceProperties& d) {
  if (d.capability_major < 8) return "it needs compute capability 8.0";
  if (d.shared_bytes_block < kLeastShared) return "it needs 96 KiB of shared memory";
  if (asked.dtype == DType::kFloat64) return "there are no such tensor cores for float64";
  if (asked.is_strict_float32()) {
    if (!d.has_hopper_kernels()) return "TF32 is not allowed";
    if (least_terms(asked) < kLeastStrictTerms) {
      return "multiply-adds are closer in sums of fewer than 8 products";
    }
  }
  if (asked.pass == Pass::kWgrad) {
    if (asked.is_strict_float32() && sm90::can_exchange(asked)) return nullptr;
    return wgrad::can_implement(asked, d);
  }
  const bool strided = asked.pass == Pass::kDgrad && (asked.stride_h > 1 || asked.stride_w > 1);
  if (strided && !d.has_hopper_kernels()) return "its strided input gradients need Hopper";
  const bool joined = count_phases(asked) > kMostPhases;
  if (joined && !can_join_phases(asked)) {
    return "a strided input gradient has more than four phases, and groups, dilation or many "
           "channels";
  }
  const Forward p = joined ? join_phases(asked) : as_forward(asked);
  if (p.groups > 1) {
    // Chunks of channels and tiles are of one group.
    const bool chunks = p.group_C() * element_size(p.dtype) % kRowBytes == 0;
    if (!chunks) return "a group's input channels are not whole 128 bytes";
    if (p.group_K() % kLeastChannels != 0) {
      return "a group's output channels are no multiple of 32";
    }
    if (!d.has_hopper_kernels() && p.group_K() % kLeastWarpChannels != 0) {
      return "a group's output channels are no multiple of 64";
    }
  }
  if (!has_int32_coordinates(asked) || !has_int32_coordinates(p))
    return "image coordinates pass 2^31";
  const bool forward = asked.pass == Pass::kFprop;
  const bool follow = forward ? rows_follow(asked.y_sizes(), asked.y_strides)
                              : rows_follow(asked.x_sizes(), asked.x_strides);
  if (!follow) return "rows of what it computes do not follow each other";
  if (p.N > INT32_MAX || p.K > INT32_MAX / 2) return "a dimension passes 2^31";
  if (round_up(p.group_C(), kPieceBytes) * p.taps_h * p.taps_w * round_up(p.K, 128) > INT32_MAX) {
    return "the weight passes 2^31 elements";
  }
  const double squares = static_cast<double>(p.N) * static_cast<double>(ceil_divide(p.P, 8)) *
                         static_cast<double>(ceil_divide(p.Q, 8));
  if (squares * static_cast<double>(ceil_divide(p.K, 32)) * p.phases > INT32_MAX / 2) {
    return "the tiles pass 2^30";
  }
  return nullptr;
}

// `p` is as one row if it can be.
ConvPlan plan_of(const Forward& p, const DeviceProperties& d, const Choice& choice) {
  const Tile& t = choice.tile;
  ConvPlan plan{shape_of(p, t)};
  plan.blocks = std::min(plan.blocks, blocks_at_once(d, t));
  plan.splits = t.splits;
  plan.payload = choice.plan;
  plan.works = choice.works;
  plan.predicted_ms = choice.ms;
  return plan;
}

// Whether the kernels of boxes and rows may compute it: they know of no phases, and no halves.
bool is_searched(const ConvProblem& asked) {
  return !asked.is_strict_float32() && count_phases(asked) <= kMostPhases &&
         !as_forward(asked).has_phases();
}

ConvPlan propose(const ConvProblem& asked, const DeviceProperties& d, const Wanted& wanted) {
  ConvPlan best;
  if (asked.pass == Pass::kWgrad) {
    const auto weigh = [&best](const ConvPlan& plan) {
      if (plan.threads == 0) return;
      if (best.threads == 0 || plan.predicted_ms < best.predicted_ms) best = plan;
    };
    if (wgrad::can_implement(asked, d) == nullptr) weigh(wgrad::propose(asked, d, wanted));
    if (asked.is_strict_float32() && sm90::can_exchange(asked)) weigh(sm90::best_plan(asked, d));
    return best;
  }
  const auto search = [&](bool by_warps) {
    if (!is_searched(asked)) return;
    const Forward p = as_one_row(as_forward(asked));
    const Choice choice = Search(p, d, by_warps, wanted.enough_ms).best();
    if (choice.ms > 0) best = plan_of(p, d, choice);
  };
  if (d.has_hopper_kernels()) {
    search(/*by_warps=*/false);
    if (best.threads > 0 && best.predicted_ms <= wanted.enough_ms) return best;
    const ConvPlan plan = sm90::best_plan(asked, d, nullptr, wanted);
    double other_ms = best.predicted_ms;
    // Only kernels of that main loop leave statistics, or do the epilogue of an input gradient.
    if (asked.has_statistics && sm90::statistics_parts(asked, plan) > 0) {
      other_ms += statistics_ms(asked, d);
    }
    if (plan.fuses) other_ms += epilogue_ms(asked, d);
    if (plan.threads > 0 && (best.threads == 0 || plan.predicted_ms < other_ms)) best = plan;
  }
  if (best.threads == 0) search(/*by_warps=*/true);
  return best;
}

std::vector<ConvPlan> variants(const ConvProblem& asked, const DeviceProperties& d) {
  std::vector<ConvPlan> plans;
  if (asked.pass == Pass::kWgrad) {
    if (wgrad::can_implement(asked, d) == nullptr) plans = wgrad::variants(asked, d);
    if (asked.is_strict_float32() && sm90::can_exchange(asked)) sm90::best_plan(asked, d, &plans);
    return plans;
  }
  if (is_searched(asked)) {
    const Forward p = as_one_row(as_forward(asked));
    std::vector<Choice> choices;
    if (d.has_hopper_kernels()) Search(p, d, false, /*enough_ms=*/0, &choices).best();
    Search(p, d, true, /*enough_ms=*/0, &choices).best();
    plans.reserve(choices.size());
    for (const Choice& choice : choices) plans.push_back(plan_of(p, d, choice));
  }
  if (d.has_hopper_kernels()) sm90::best_plan(asked, d, &plans);
  return plans;
}

// By what pixels are fetched with and how taps are apart. Tiles count only where their kernels have
// an epilogue, in which compilers may join a product and a sum.
int64_t sum_order(const ConvProblem& p, const ConvPlan& plan) {
  if (p.pass == Pass::kWgrad) return 0;  // its sums run over the batch
  const bool has_epilogue = p.epilogue_passes > 0 || p.has_statistics;
  if (plan.payload.kind() == PlanKind::implicit_gemm_main_loop) {
    return sm90::sum_order(p, plan, has_epilogue);
  }
  const auto way = plan.payload.as<BoxesRowsPlan>();
  const int tile = has_epilogue ? 1 + way.kernel * 4 + static_cast<int>(way.shape) : 0;
  return (tile * kFetchCount + static_cast<int>(way.fetch)) * 8 +
         (way.apart_h * 4 + way.apart_w * 2 + way.by_warps);
}

LaunchShape shape(const ConvProblem& asked, const DeviceProperties&, const ConvPlan& plan) {
  if (plan.payload.kind() == PlanKind::implicit_gemm_main_loop) return sm90::shape(asked, plan);
  if (asked.pass == Pass::kWgrad) return wgrad::shape(asked, plan);
  if (plan.payload.kind() != PlanKind::implicit_gemm_boxes_rows || !is_searched(asked)) return {};
  const auto way = plan.payload.as<BoxesRowsPlan>();
  const Forward p = as_one_row(as_forward(asked));
  const bool one_tap = (p.R == 1 || way.apart_h) && (p.S == 1 || way.apart_w);
  if (!can_fetch(p, way.fetch) || (is_compact(way.fetch) && !one_tap)) return {};
  const Tile tile = make_tile(p, way, plan.splits);
  return is_legal(p, tile) ? shape_of(p, tile) : LaunchShape{};
}

}  // namespace

extern const Family family;
const Family family{"implicit_gemm",
                    can_implement,
                    propose,
                    shape,
                    variants,
                    /*fuses=*/true,
                    sum_order,
                    /*all_orders=*/nullptr,
                    sm90::statistics_parts};

}  // namespace customconv::implicit_gemm

namespace customconv {

template <>
Fields fields_of<PlanKind::implicit_gemm_boxes_rows>() {
  using implicit_gemm::BoxesRowsPlan;
  return FieldList<BoxesRowsPlan>()
      .word("fetch", &BoxesRowsPlan::fetch,
            {"shared", "pieces", "taps", "odd-taps", "elements", "flat", "boxed-pieces"})
      .word("kernel", &BoxesRowsPlan::kernel, words_of(implicit_gemm::kKernels))
      .word("shape", &BoxesRowsPlan::shape, {"squares", "lines", "run"})
      .flag("apart_h", &BoxesRowsPlan::apart_h)
      .flag("apart_w", &BoxesRowsPlan::apart_w)
      .flag("by_warps", &BoxesRowsPlan::by_warps)
      .flag("clustered", &BoxesRowsPlan::clustered)
      .size("tile", &BoxesRowsPlan::tile)
      .size("stages", &BoxesRowsPlan::stages);
}

}  // namespace customconv
