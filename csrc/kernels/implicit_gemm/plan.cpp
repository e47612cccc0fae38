// implicit_gemm: matrix products on the tensor cores, from input tiles that stay in shared memory.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/implicit_gemm/sm90/tile.h"
#include "kernels/implicit_gemm/tile.h"
#include "kernels/implicit_gemm/wgrad/wgrad.h"

namespace customconv::implicit_gemm {

namespace {

constexpr double kMatrixEfficiency = 0.87;  // of the tensor cores' rate, while a tile is summed
constexpr double kFetchedEfficiency = 0.8;  // the same where threads fetch pixels
constexpr double kWarpEfficiency = 0.45;    // the same where warps multiply
constexpr double kFetchedWarpEfficiency = 0.62;
constexpr double kL2BytesPerClock = 70;        // to a multiprocessor
constexpr double kCopyClocks = 40;             // for each copy of a warp, 16 bytes for each thread
constexpr double kSmallCopies = 1.1;           // a clock, of single threads, where they are smaller
constexpr double kSmallPieces = 1.6;           // the same of single taps, of 32 bits
constexpr double kElementBytesPerClock = 1.6;  // where elements are copied through registers
constexpr double kShiftedBytesPerClock = 2.5;  // where vectors are put together
constexpr double kBoxedRowClocks = 12;         // of the copy engine, for each row of a channel
constexpr double kWeightClocks = 1000;         // until a stage of weights is there
constexpr double kPackLatencyMs = 0.001;       // of a kernel that packs a matrix,
constexpr double kPackMs = 0.0025;             // which takes no less
constexpr double kPackBytesPerClock = 430;     // of the whole GPU, read
constexpr double kStoreBytesPerClock = 20;
constexpr double kBoxedBytesPerClock = 48;    // by the copy engine, where all slabs have room
constexpr double kPieceOfPlaneClocks = 5;     // to store up to 128 bytes of a plane of pixels
constexpr double kPieceOfPageClocks = 24;     // where a plane is a page, and a tile a row
constexpr double kMoreRows = 0.2;             // times that, whenever a tile has twice as many rows
constexpr double kAcrossImages = 1.05;        // times that, where a tile goes on in other images
constexpr double kTileClocks = 730;           // until the first products, and after the last
constexpr double kGroupClocks = 160;          // what a group of products of rows costs on top
constexpr double kClusterBytesPerClock = 15;  // that a block writes to the others' shared memory
constexpr double kClusterMs = 0.00033;        // for each of its blocks
constexpr double kClusterShare = 0.91;        // of the multiprocessors, that larger clusters reach
constexpr double kSplitBytesPerClock = 3700;  // of the whole GPU, written and read
constexpr double kLaunchMs = 0.006;
constexpr double kNextMs = 0.0047;  // of a kernel that begins while the one in front of it ends
constexpr double kBandwidthShare = 0.85;

constexpr int kLeastShared = 96 << 10;    // bytes of a block's memory
constexpr int kMostExchange = 64 << 10;   // bytes of a cluster's exchange: it leaves fewer stages
constexpr int kMostTurns = 3;             // of splits
constexpr int64_t kFarReach = 6;          // pixels of halo
constexpr int64_t kMostWoven = 32 << 20;  // bytes of a phase that is stored apart
constexpr int64_t kMostRows = 32;         // of pixels in a tile of lines
constexpr int kFewChannels = 4;           // up to which channels and taps are one dimension
constexpr int kLeastChannels = 32;        // of output, of the smallest tile
constexpr int kLeastWarpChannels = 64;    // of that of rows, where warps multiply

// Clocks that a multiprocessor takes to multiply a tile, to load it and to store it.
struct Clocks {
  double math, load, store;
};

// Bytes that the threads of a warpgroup fetch for an instruction.
double fetched_bytes(const ConvProblem& p, const Tile& t) {
  switch (t.fetch) {
    case Fetch::kShared:
      return kInstructionRows * kPieceBytes;
    case Fetch::kPieces:
    case Fetch::kBoxedPieces:
      return 2048;
    case Fetch::kTaps:
      return p.dtype == DType::kFloat32 ? 2600 : 1800;
    case Fetch::kOddTaps:
      return 2500;
    default:
      return p.dtype == DType::kFloat32 ? 4096 : 6144;
  }
}

// The same where warps multiply: of weights, each loads all for its own pixels.
double warp_bytes(const ConvProblem& p, const Tile& t) {
  const double warps = 4.0 * warpgroups(t.kind(), t.fetch) / t.kind().blocks();
  const double pixels =
      t.fetch == Fetch::kShared ? kInstructionRows * kPieceBytes : fetched_bytes(p, t);
  return warps * t.kind().channels * kPieceBytes + pixels;
}

// Clocks of the tensor cores for an instruction's products.
double instruction_clocks(const ConvProblem& p, const DeviceProperties& d, const Tile& t) {
  const double size = static_cast<double>(element_size(p.dtype));
  const double flop = 2.0 * kInstructionRows * t.kind().channels * kPieceBytes / size;
  return flop * d.sm_count * d.clock_ghz * 1e9 / d.matrix_flops(p.dtype, p.tf32);
}

double matrix_efficiency(const Tile& t) {
  const bool boxes = t.fetch == Fetch::kShared;
  if (t.by_warps) return boxes ? kWarpEfficiency : kFetchedWarpEfficiency;
  return boxes ? kMatrixEfficiency : kFetchedEfficiency;
}

// Thread blocks that run at a time.
int64_t blocks_at_once(const DeviceProperties& d, const Tile& t) {
  const double share = t.cluster() > 2 ? kClusterShare : 1;
  const auto clusters = static_cast<int64_t>(share * d.sm_count / t.cluster());
  return std::max<int64_t>(clusters, 1) * t.cluster();
}

// Clocks to store a tile's results, or its sums where they are split.
double store_clocks(const Forward& p, const Tile& t) {
  const bool boxes = t.fetch == Fetch::kShared;
  const double size = static_cast<double>(element_size(p.dtype));
  const double results = static_cast<double>(t.kind().pixels) * t.kind().channels;
  const bool at_once = staging(p, t) >= results * size;
  double clocks =
      results * size / (t.boxed_out && at_once ? kBoxedBytesPerClock : kStoreBytesPerClock);
  if (!boxes && !t.boxed_out && stores_planes(p)) {
    const double slab = kRowBytes / size;
    const double width = t.shape == Shape::kLines ? std::min<double>(t.columns, slab) : slab;
    const double page = kPieceOfPageClocks * (1 + kMoreRows * std::log2(t.rows));
    clocks = results / width * (t.planes_first ? page : kPieceOfPlaneClocks);
  }
  if (t.clustered) {
    clocks = clocks / t.splits + results * 4 / kClusterBytesPerClock;
  } else if (t.splits > 1) {
    clocks = results * 4 / kStoreBytesPerClock;
  }
  return clocks;
}

Clocks count_clocks(const Forward& p, const DeviceProperties& d, const Tile& t) {
  const Kernel& kind = t.kind();
  const bool boxes = t.fetch == Fetch::kShared;
  const double size = static_cast<double>(element_size(p.dtype));
  const double planes = t.h.planes * t.w.planes;
  const double flat = t.row.interleaved ? 1 : static_cast<double>(p.C);
  const double channels = t.is_flat() ? flat : t.pieces * static_cast<double>(kPieceBytes) / size;
  // A box takes as long as if all of its 128 bytes of channels existed.
  const double position_bytes =
      boxes ? t.chunks() * static_cast<double>(kRowBytes) : channels * size;
  const double input = t.positions * planes * position_bytes;
  const double taps = t.is_flat() ? 1 : static_cast<double>(p.R * p.S);
  const double products = taps * t.pieces;
  const double weights = products * kind.channels * kPieceBytes;

  Clocks clocks{};
  // Shared memory moves 128 bytes a clock: operands and what is loaded.
  const double count = products * kind.blocks();
  const double operands =
      t.by_warps ? warp_bytes(p, t) : kind.channels * kPieceBytes + fetched_bytes(p, t);
  const double moved = count * operands + weights + input;
  const double products_clocks = count * instruction_clocks(p, d, t) / matrix_efficiency(t);
  if (t.by_warps) {  // a warp waits for its operands
    clocks.math = products_clocks + moved / 128;
  } else {
    clocks.math = std::max(products_clocks, moved / 128 / matrix_efficiency(t));
  }
  clocks.load = (input + weights) / kL2BytesPerClock;
  if (!boxes) clocks.math += products / group_products(t.fetch) * kGroupClocks;
  if (t.row.boxes > 0) {
    const double rows = planes * t.plane_rows * t.row.boxes * channels;
    clocks.load = std::max(clocks.load, rows * kBoxedRowClocks);
  } else if (is_copied(t.fetch)) {
    double copies =
        input / t.row.vector / (is_compact(t.fetch) && size == 4 ? kSmallPieces : kSmallCopies);
    if (t.row.vector == 16) copies = input / (32 * 16) * kCopyClocks;
    if (t.row.shifted) copies = input / kShiftedBytesPerClock;
    if (t.row.vector == 2) copies = input / kElementBytesPerClock;
    clocks.load = std::max(clocks.load, copies);
  }
  if (t.by_warps) {
    const double copied = weights + (boxes ? input : 0);
    clocks.load = std::max(clocks.load, copied / (32 * 16) * kCopyClocks);
  }
  if (!t.by_warps) {  // with few stages of weights, products wait for them
    const double groups = products / (boxes ? kRowBytes / kPieceBytes : group_products(t.fetch));
    clocks.load = std::max(clocks.load, groups * kWeightClocks / t.w_stages);
  }
  clocks.store = store_clocks(p, t);
  return clocks;
}

struct Choice {
  Tile tile;
  int variant;
  int shared_bytes;
  double ms;
};

// Fills in the stages and the price; false where the tile does not fit.
bool price(const Forward& p, const DeviceProperties& d, Choice& choice) {
  Tile& t = choice.tile;
  // A plane that fits has no sizes that overflow in what follows.
  if (!is_legal(p, t)) return false;
  if (!choose_stages(p, d.shared_bytes_block - 1024, t)) return false;
  choice.shared_bytes = shared_bytes(p, t);
  const bool across = t.shape == Shape::kRun && !is_compact(t.fetch) && run_images(p, t) > 1;
  const Clocks clocks = count_clocks(p, d, t);
  // What is less than the most is not free: it competes for shared memory.
  const double sum = std::max(clocks.math, clocks.load) + 0.1 * std::min(clocks.math, clocks.load);
  const double item = (across ? kAcrossImages : 1) * sum / t.splits + clocks.store + kTileClocks;
  const auto turns = static_cast<double>(ceil_divide(t.tiles() * t.splits, blocks_at_once(d, t)));
  double ms = turns * item / (d.clock_ghz * 1e6);
  const double split_bytes = 2.0 * static_cast<double>(partial_bytes(t));
  if (t.clustered) ms += t.splits * kClusterMs;
  if (split_bytes > 0) ms += split_bytes / kSplitBytesPerClock / (d.clock_ghz * 1e6) + kNextMs;
  const double bytes_ms = 1e-6 * p.least_bytes() / (kBandwidthShare * d.bandwidth_gb_s);
  choice.ms = std::sqrt(std::hypot(ms * ms, bytes_ms * bytes_ms)) + kLaunchMs;
  if (p.woven > 0) choice.ms += kNextMs + 1e-6 * weave_bytes(p) / (0.75 * d.bandwidth_gb_s);
  const PackedWeight weight = packed_weight(p, t);
  if (!weight.in_place) {
    const double bytes =
        static_cast<double>(weight.rows * weight.row) * static_cast<double>(element_size(p.dtype));
    const double pack_ms = kPackLatencyMs + bytes / kPackBytesPerClock / (d.clock_ghz * 1e6);
    choice.ms += has_matrix(t.fetch) ? std::max(pack_ms, kPackMs) : kNextMs;
  }
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

class Search {
 public:
  // `by_warps`: with the kernels that are not only Hopper's. Keeps every choice in `all`, where
  // that is given.
  Search(const Forward& p, const DeviceProperties& d, bool by_warps,
         std::vector<Choice>* all = nullptr)
      : p_(p), d_(d), by_warps_(by_warps), all_(all) {}

  Choice best() {
    if (p_.woven * element_size(p_.dtype) > kMostWoven) return best_;
    const bool one_tap = p_.R == 1 && p_.S == 1;
    if (input_is_boxed(p_) && (p_.K == 1 || p_.y_strides[1] == 1)) {
      // The main loop of sm90 is faster for single taps and for strides.
      const bool left = !by_warps_ && (one_tap || p_.stride_h > 1 || p_.stride_w > 1);
      if (!left) try_planes(Fetch::kShared);
      if ((left || best_.ms > 0) && p_.C > kFewChannels) return best_;
    }
    const int64_t flat = p_.C <= kFewChannels ? p_.C * p_.R * p_.S : kTooMany;
    if (round_up(flat, kPieceBytes) <= kMostFlat) try_kernels(Fetch::kFlat, 0);
    if (!by_warps_ && planes_are_boxed(p_)) {
      try_kernels(Fetch::kBoxedPieces, 0);
      if (best_.ms > 0) return best_;
    }
    // The main loop of sm90 packs pixels that are not in planes.
    if (!by_warps_ && p_.W > 1 && p_.x_strides[3] != 1) return best_;
    const bool pairs = p_.stride_w == 1 && p_.dilation_w == 1;
    if (pairs && !one_tap) {
      try_planes(Fetch::kTaps);
      try_planes(Fetch::kOddTaps);
    }
    if (!by_warps_) return best_;
    if (one_tap && (p_.stride_w == 1 || p_.dtype == DType::kFloat32)) {
      try_kernels(Fetch::kPieces, 0);
    } else if (!pairs) {
      try_planes(Fetch::kElements);
    }
    // Of each tap no more pixels than the tile has.
    if (best_.ms == 0) try_kernels(Fetch::kPieces, kApartH | kApartW);
    return best_;
  }

 private:
  // Where a halo may cost more than a plane for each tap.
  static bool reaches_far(int64_t taps, int64_t dilation) {
    return (taps - 1) * dilation > kFarReach;
  }

  void try_planes(Fetch fetch) {
    const bool far_h = reaches_far(p_.R, p_.dilation_h), far_w = reaches_far(p_.S, p_.dilation_w);
    try_kernels(fetch, 0);
    if (far_h) try_kernels(fetch, kApartH);
    if (fetch != Fetch::kShared) return;
    if (far_w) try_kernels(fetch, kApartW);
    if (best_.ms == 0 || (far_h && far_w)) try_kernels(fetch, kApartH | kApartW);
  }

  void try_kernels(Fetch fetch, int flags) {
    for (int kernel = 0; kernel < kKernelCount; ++kernel) {
      if (is_too_wide(kernel, fetch)) continue;
      if (by_warps_ && !is_by_warps(kKernels[kernel], fetch)) continue;
      if (fetch == Fetch::kShared) {
        try_squares(kernel, flags);
        try_boxed_lines(kernel, flags);
      } else {
        try_run(kernel, fetch, flags);
        if (!is_compact(fetch) || flags != 0) try_row_lines(kernel, fetch, flags);
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

  int variant_of(int kernel, Shape shape, Fetch fetch, int flags) const {
    return implicit_gemm::variant_of(kernel, shape, fetch, flags | (by_warps_ ? kByWarps : 0));
  }

  void try_squares(int kernel, int flags) {
    const int variant = variant_of(kernel, Shape::kSquares, Fetch::kShared, flags);
    const int blocks = kKernels[kernel].pixels / kInstructionRows;
    for (int across = 1; across <= blocks; across *= 2) {
      for (int down = 1; across * down <= blocks; down *= 2) {
        try_tile(variant, {down * 8, across * 8, blocks / (across * down)});
      }
    }
  }

  // Whole rows of pixels with their halo, as many as there is room for.
  void try_boxed_lines(int kernel, int flags) {
    const int variant = variant_of(kernel, Shape::kLines, Fetch::kShared, flags);
    const int64_t pixels = kKernels[kernel].pixels;
    const int64_t reach = make_tile(p_, variant, {1, 1, 1}, 1).w.reach;
    int64_t last = 0;
    for (int64_t rows = 1; rows <= std::min<int64_t>(kMostRows, p_.P); ++rows) {
      // As wide as so many rows may be; then as the image's width divides evenly.
      const int64_t most = std::min((pixels + reach) / rows - reach, p_.Q);
      if (most < 4 && rows > 1) break;
      if (most < 1) return;
      for (const int64_t columns : {ceil_divide(p_.Q, ceil_divide(p_.Q, most)), most}) {
        if (columns == last) continue;
        last = columns;
        const int64_t fits = std::min((pixels - columns) / (columns + reach) + 1, p_.P);
        try_tile(variant, {static_cast<int>(fits), static_cast<int>(columns), 1});
      }
    }
  }

  // Parts of rows, one below the other.
  void try_row_lines(int kernel, Fetch fetch, int flags) {
    const int variant = variant_of(kernel, Shape::kLines, fetch, flags);
    constexpr int64_t kUnit = 8;  // pixels: what keeps copies aligned
    const int64_t pixels = kKernels[kernel].pixels;
    int64_t last = 0;
    for (int64_t rows = 1; rows <= std::min<int64_t>(kMostRows, p_.P); rows *= 2) {
      const int64_t most = std::min(pixels / rows / kUnit * kUnit, round_up(p_.Q, kUnit));
      if (most < kUnit) break;
      const int64_t even = round_up(ceil_divide(p_.Q, ceil_divide(p_.Q, most)), kUnit);
      for (const int64_t columns : {even, most}) {
        if (columns == last) continue;
        last = columns;
        int tile[3] = {static_cast<int>(std::min(pixels / columns, p_.P)),
                       static_cast<int>(columns), 1};
        if (!is_legal(p_, make_tile(p_, variant, tile, 1))) tile[0] = static_cast<int>(rows);
        try_tile(variant, tile);
      }
    }
  }

  void try_run(int kernel, Fetch fetch, int flags) {
    const auto row = static_cast<double>(p_.Q + 1);
    const double rows = static_cast<double>(p_.P) * static_cast<double>(p_.stride_h) +
                        static_cast<double>(p_.R) * static_cast<double>(p_.dilation_h);
    if (std::max(row, rows) * rows * static_cast<double>(p_.N) > INT32_MAX / 4) return;
    const int variant = variant_of(kernel, Shape::kRun, fetch, flags);
    try_tile(variant, {static_cast<int>(p_.P), static_cast<int>(p_.Q), 1});
  }

  void try_tile(int variant, const int (&pixels)[3]) {
    weigh(variant, pixels, 1);
    const Tile t = make_tile(p_, variant, pixels, 1);
    // Splits where the tiles alone leave multiprocessors idle, also in the last of a few turns.
    const int64_t most =
        std::min<int64_t>(t.steps(), kMostTurns * d_.sm_count / std::max<int64_t>(t.tiles(), 1));
    for (int64_t splits = 2; splits <= most; splits = splits < 4 ? splits + 1 : splits * 3 / 2) {
      weigh(variant, pixels, splits);
    }
    if (most > 1) weigh(variant, pixels, most);
    if (by_warps_) return;
    // Clusters start whole, and do one tile.
    for (int64_t splits = 2; splits <= std::min<int64_t>(kMostClustered, t.steps()); splits *= 2) {
      const Tile clustered = make_tile(p_, variant | kClustered, pixels, splits);
      if (t.tiles() * splits > blocks_at_once(d_, clustered)) break;
      if (exchange_bytes(clustered) > kMostExchange) break;
      weigh(variant | kClustered, pixels, splits);
    }
  }

  void weigh(int variant, const int (&pixels)[3], int64_t splits) {
    Choice choice{make_tile(p_, variant, pixels, splits), variant, 0, 0};
    if (choice.tile.tiles() * splits > INT32_MAX / 2) return;
    if (!price(p_, d_, choice)) return;
    if (best_.ms == 0 || choice.ms < best_.ms) best_ = choice;
    if (all_ != nullptr) all_->push_back(choice);
  }

  const Forward& p_;
  const DeviceProperties& d_;
  bool by_warps_;
  std::vector<Choice>* all_;
  Choice best_{};
};

const char* can_implement(const ConvProblem& asked, const DeviceProperties& d) {
  if (d.capability_major < 8) return "it needs compute capability 8.0";
  if (d.shared_bytes_block < kLeastShared) return "it needs 96 KiB of shared memory";
  if (asked.dtype == DType::kFloat64) return "there are no such tensor cores for float64";
  if (asked.dtype == DType::kFloat32 && !asked.tf32) return "TF32 is not allowed";
  if (asked.pass == Pass::kWgrad) return wgrad::can_implement(asked, d);
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
  const Layout layout = forward ? dense_layout(asked.y_sizes(), asked.y_strides)
                                : dense_layout(asked.x_sizes(), asked.x_strides);
  if (layout == Layout::kOther) return "what it computes is not dense";
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
  ConvPlan plan;
  plan.variant = kKernels[t.kernel].name;
  plan.variant_index = choice.variant;
  plan.tile[0] = t.rows;
  plan.tile[1] = t.columns;
  plan.tile[2] = t.images;
  plan.splits = t.splits;
  plan.block = threads_of(t.kind(), t.fetch);
  plan.wide_index = needs_wide_index(p);
  plan.shared_bytes = choice.shared_bytes;
  plan.grid[0] = std::min<int64_t>(t.tiles() * t.splits, blocks_at_once(d, t));
  const PackedWeight weight = packed_weight(p, t);
  const int64_t packed = weight.in_place ? 0 : weight.rows * weight.row * element_size(p.dtype);
  plan.workspace_bytes = round_up(packed, 256) + p.woven * element_size(p.dtype) + partial_bytes(t);
  plan.predicted_ms = choice.ms;
  return plan;
}

// Whether the kernels of boxes and rows may compute it: they know of no phases.
bool is_searched(const ConvProblem& asked) {
  return count_phases(asked) <= kMostPhases && !as_forward(asked).has_phases();
}

ConvPlan propose(const ConvProblem& asked, const DeviceProperties& d) {
  if (asked.pass == Pass::kWgrad) return wgrad::propose(asked, d);
  ConvPlan best;
  best.grid[0] = 0;  // while no tile fits
  const auto search = [&](bool by_warps) {
    if (!is_searched(asked)) return;
    const Forward p = as_one_row(as_forward(asked));
    const Choice choice = Search(p, d, by_warps).best();
    if (choice.ms > 0) best = plan_of(p, d, choice);
  };
  if (d.has_hopper_kernels()) {
    search(/*by_warps=*/false);
    const ConvPlan plan = sm90::best_plan(asked, d);
    if (plan.block > 0 && (best.grid[0] == 0 || plan.predicted_ms < best.predicted_ms)) {
      best = plan;
    }
  }
  if (best.grid[0] == 0) search(/*by_warps=*/true);
  return best;
}

std::vector<ConvPlan> variants(const ConvProblem& asked, const DeviceProperties& d) {
  if (asked.pass == Pass::kWgrad) return wgrad::variants(asked, d);
  std::vector<ConvPlan> plans;
  if (is_searched(asked)) {
    const Forward p = as_one_row(as_forward(asked));
    std::vector<Choice> choices;
    if (d.has_hopper_kernels()) Search(p, d, false, &choices).best();
    Search(p, d, true, &choices).best();
    plans.reserve(choices.size());
    for (const Choice& choice : choices) plans.push_back(plan_of(p, d, choice));
  }
  if (d.has_hopper_kernels()) sm90::best_plan(asked, d, &plans);
  return plans;
}

// By what pixels are fetched with and how taps are apart. Tiles count only where their kernels have
// an epilogue, in which compilers may join a product and a sum.
int64_t sum_order(const ConvProblem& p, const ConvPlan& plan) {
  const bool has_epilogue = p.epilogue_passes > 0;
  if (sm90::is_plan(plan)) return sm90::sum_order(plan, has_epilogue);
  return has_epilogue ? plan.variant_index : plan.variant_index >> kFetchShift << kFetchShift;
}

}  // namespace

extern const Family family;
const Family family{"implicit_gemm", can_implement, propose, variants, /*fuses=*/true, sum_order};

}  // namespace customconv::implicit_gemm
