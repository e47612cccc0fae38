// implicit_gemm: matrix products on the tensor cores, from input tiles that stay in shared memory.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/implicit_gemm/tile.h"

namespace customconv::implicit_gemm {

namespace {

constexpr double kMatrixEfficiency = 0.85;   // of the tensor cores' rate, while a tile is summed
constexpr double kFetchedEfficiency = 0.7;   // the same where threads fetch pixels
constexpr double kL2BytesPerClock = 26;      // a multiprocessor's share
constexpr double kCopyClocks = 12;           // for each copy of a warp, 16 bytes for each thread
constexpr double kSmallBytesPerClock = 6;    // where they are smaller
constexpr double kElementBytesPerClock = 2;  // where elements are copied through registers
constexpr double kStoreBytesPerClock = 16;
constexpr double kPieceOfPlaneClocks = 8;  // to store up to 128 bytes of a plane of pixels
constexpr double kPieceOfPageClocks = 25;  // the same where a plane is a page of memory
constexpr double kTileClocks = 1500;  // until the first products, and after the last
constexpr double kGroupClocks = 40;      // what a group of products of rows costs on top
constexpr double kSplitBytesPerClock = 1000;  // of the whole GPU, written and read
constexpr double kLaunchMs = 0.004;
constexpr double kBandwidthShare = 0.85;

constexpr int kMostTurns = 3;  // of splits
constexpr int kMostBox = 256;
constexpr int64_t kMostImage = 2048;  // pixels, that are copied whole
constexpr int64_t kPageBytes = 2 << 20;
constexpr int64_t kFarReach = 6;  // pixels of halo
constexpr int64_t kTooMany = 1 << 20;
constexpr int64_t kMostRows = 32;  // of pixels in a tile of lines
constexpr int kFewChannels = 4;    // up to which channels and taps are one dimension

// A plan's variant: the kernel, the shape, how pixels are fetched, and flags.
enum Flag : int { kShapeShift = 4, kFetchShift = 6, kApartH = 512, kApartW = 1024 };

constexpr int variant_of(int kernel, Shape shape, Fetch fetch, int flags) {
  return kernel | static_cast<int>(shape) << kShapeShift | static_cast<int>(fetch) << kFetchShift |
         flags;
}

int64_t round_up(int64_t value, int64_t unit) { return ceil_divide(value, unit) * unit; }

// Of boxes: what a stride skips is not loaded.
Axis boxed_axis(int64_t taps, int64_t stride, int64_t dilation, bool apart) {
  const int64_t period = apart ? taps : stride / std::gcd(stride, dilation);
  const int64_t planes = std::min(taps, period);
  const int64_t step = apart ? 0 : planes * dilation / stride;
  return {
      static_cast<int>(planes), static_cast<int>(step),
      static_cast<int>(planes < taps ? ceil_divide(taps, planes) - 1 : 0) * static_cast<int>(step)};
}

// Of rows: every pixel between the first tap and the last.
Axis row_axis(int64_t taps, int64_t dilation, bool apart) {
  if (apart) return {static_cast<int>(taps), 0, 0};
  const int64_t reach = std::min((taps - 1) * dilation, kTooMany);
  return {1, static_cast<int>(std::min(dilation, kTooMany)), static_cast<int>(reach)};
}

// Bytes that rows can be copied at a time: they must be aligned wherever a row or a tile begins.
int vector_of(const ConvProblem& p, bool compact, int64_t columns, bool apart) {
  const int64_t size = element_size(p.dtype);
  if (!p.x_aligned || (p.W > 1 && p.x_strides[3] != 1) || apart) return static_cast<int>(size);
  for (int vector = 16; vector > size; vector /= 2) {
    const int64_t pixels = vector / size;
    const auto fits = [&](int64_t count, int64_t stride) {
      return count == 1 || stride % pixels == 0;
    };
    const bool strides = fits(p.N, p.x_strides[0]) && fits(p.C, p.x_strides[1]) &&
                         fits(p.H, p.x_strides[2]);
    const bool whole = compact ? p.stride_w == 1 && p.pad_w == 0 && p.Q % pixels == 0
                               : columns >= p.Q || columns * p.stride_w % pixels == 0;
    if (strides && whole && p.W % pixels == 0) return vector;
  }
  return static_cast<int>(size);
}

int slack_of(const ConvProblem& p, int vector) {
  const int64_t pixels = vector / element_size(p.dtype);
  return static_cast<int>(((-p.pad_w) % pixels + pixels) % pixels);
}

// Fills in a tile of boxes.
void lay_out_boxes(const ConvProblem& p, bool apart_h, bool apart_w, Tile& t) {
  t.h = boxed_axis(p.R, p.stride_h, p.dilation_h, apart_h);
  t.w = boxed_axis(p.S, p.stride_w, p.dilation_w, apart_w);
  const int64_t pitch = int64_t{t.columns} + t.w.reach, rows = int64_t{t.rows} + t.h.reach;
  const double all = static_cast<double>(t.images * pitch) * static_cast<double>(rows);
  t.positions = static_cast<int>(all > kMostPositions ? kTooMany : t.images * pitch * rows);
  t.pitch = static_cast<int>(std::min(pitch, kTooMany));
  t.plane_rows = static_cast<int>(std::min(rows, kTooMany));
  t.chunk = kRowBytes / kPieceBytes;
  if (t.positions < kTooMany) t.stage_bytes = static_cast<int>(round_up(t.positions * kRowBytes, 1024));
}

// Rows of output that a tile of a run takes part in, and images, wherever it begins.
int64_t run_outputs(const ConvProblem& p, const Tile& t) {
  const int64_t pairs = t.kind().pixels / 2;
  const int64_t latest = t.row.pairs - std::gcd(pairs, int64_t{t.row.pairs});
  return std::min((latest + pairs - 1) / t.row.pairs + 1, p.N * p.P);
}
int64_t run_images(const ConvProblem& p, const Tile& t) {
  return std::min((p.P + run_outputs(p, t) - 2) / p.P + 1, p.N);
}

// Rows of a plane that it needs.
int64_t run_rows(const ConvProblem& p, const Tile& t) {
  const int64_t rows = run_outputs(p, t), more_images = run_images(p, t) - 1;
  const int64_t gap = std::max<int64_t>(t.row.period - p.P * t.row.per_output, 0);
  return (rows - 1) * t.row.per_output + t.h.reach + 1 + more_images * gap;
}

// Fills in a tile of images.
void lay_out_images(const ConvProblem& p, Tile& t) {
  const int64_t size = element_size(p.dtype);
  t.h = {1, static_cast<int>(p.dilation_h), static_cast<int>((p.R - 1) * p.dilation_h)};
  t.w = {1, static_cast<int>(p.dilation_w), static_cast<int>((p.S - 1) * p.dilation_w)};
  t.row.vector = static_cast<int>(size);
  t.row.pairs = static_cast<int>((p.P * p.Q + 1) / 2);
  t.row.channel_bytes = static_cast<int>(p.H * p.W * size);
  t.positions = static_cast<int>(t.images * p.H * p.W);
  t.chunk = t.fetch == Fetch::kImagePieces ? std::min(t.pieces, kRowBytes / kPieceBytes) : 1;
  const int64_t image = t.chunk * kPieceBytes / size * t.row.channel_bytes;
  t.stage_bytes = static_cast<int>(round_up(t.images * image, 1024));
}

// Fills in a tile of rows.
void lay_out_rows(const ConvProblem& p, bool apart_h, bool apart_w, Tile& t) {
  const int64_t size = element_size(p.dtype);
  const bool run = t.shape == Shape::kRun;
  t.h = row_axis(p.R, p.dilation_h, apart_h);
  t.w = row_axis(p.S, p.dilation_w, apart_w);
  Rows& row = t.row;
  row.compact = t.fetch == Fetch::kPieces;
  row.vector = vector_of(p, row.compact, t.columns, row.compact ? apart_h || apart_w : apart_w);
  row.slack = row.compact ? 0 : slack_of(p, row.vector);
  row.pairs = (t.columns + 1) / 2;
  // Several pieces make up for few taps.
  t.chunk = row.compact ? std::min(t.pieces, kRowBytes / kPieceBytes) : 1;
  if (t.is_flat()) t.chunk = t.pieces;
  const bool reaches = t.h.reach > 0;
  row.per_output = reaches ? static_cast<int>(p.stride_h) : 1;
  row.row_step = reaches ? 1 : static_cast<int>(p.stride_h);
  const double period = static_cast<double>(p.P - 1) * row.per_output + t.h.reach + 1;
  row.period = period < INT32_MAX ? static_cast<int>(period) : INT32_MAX;
  double positions = t.kind().pixels;
  if (!row.compact) {
    const double pitch = (row.pairs * 2.0 - 1) * static_cast<double>(p.stride_w) + t.w.reach + 1 +
                         row.slack;
    const double rows = run ? static_cast<double>(run_rows(p, t))
                            : (t.rows - 1.0) * row.per_output + t.h.reach + 1;
    if (pitch * rows > kTooMany / 2) {
      t.positions = kTooMany;
      return;
    }
    t.pitch = static_cast<int>(
        round_up(static_cast<int64_t>(pitch), std::max<int64_t>(row.vector / size, 2)));
    t.plane_rows = static_cast<int>(rows);
    positions = t.pitch * rows;
  }
  t.positions = static_cast<int>(positions);
  // Lanes that fetch from several channels at a time then find them in different banks.
  const int64_t unit = 8 * size;
  row.channel_bytes = static_cast<int>(round_up(t.positions * size - unit, 2 * unit) + unit);
  const int64_t channels = t.is_flat() ? p.C : t.chunk * kPieceBytes / size;
  t.stage_bytes = static_cast<int>(round_up(channels * row.channel_bytes, 1024));
}

// Whether the copy engine can store the output.
bool stores_boxes(const ConvProblem& p, const Tile& t) {
  const int64_t size = element_size(p.dtype), unit = 16 / size;
  if (t.fetch == Fetch::kShared) {
    // A box is a square, or a whole block of a line without a halo.
    const bool boxes = t.shape == Shape::kSquares ||
                       (t.rows == 1 && t.w.reach == 0 && t.columns % kInstructionRows == 0);
    return boxes && p.K % unit == 0 && t.kind().channels * size % kRowBytes == 0;
  }
  // A box is whole slabs of a row, or of an image, which in a run is a row.
  const int64_t slab = kRowBytes / size;
  if (!stores_planes(p) || t.shape == Shape::kImages) return false;
  if (t.shape == Shape::kRun) {
    const int64_t image = p.P * p.Q;
    return p.Q % 2 == 0 && (image % slab == 0 || (p.N == 1 && image % unit == 0));
  }
  return p.Q % unit == 0 && t.columns % slab == 0;
}

Tile make_tile(const ConvProblem& p, int variant, const int (&pixels)[3], int64_t splits) {
  Tile t{};
  t.kernel = variant % (1 << kShapeShift);
  t.shape = static_cast<Shape>(variant >> kShapeShift & 3);
  t.fetch = static_cast<Fetch>(variant >> kFetchShift & 7);
  t.rows = pixels[0];
  t.columns = pixels[1];
  t.images = pixels[2];
  const int64_t channels = t.is_flat() ? p.C * p.R * p.S : p.C;
  t.pieces = static_cast<int>(ceil_divide(channels * element_size(p.dtype), kPieceBytes));
  t.splits = static_cast<int>(splits);
  const bool apart_h = (variant & kApartH) != 0, apart_w = (variant & kApartW) != 0;
  if (t.fetch == Fetch::kShared) {
    lay_out_boxes(p, apart_h, apart_w, t);
  } else if (is_of_images(t.fetch)) {
    lay_out_images(p, t);
  } else {
    lay_out_rows(p, apart_h, apart_w, t);
  }
  const int64_t size = element_size(p.dtype);
  t.tiles_k = ceil_divide(p.K, t.kind().channels);
  if (t.shape == Shape::kRun) {
    t.tiles_q = ceil_divide(p.N * p.P * t.row.pairs, t.kind().pixels / 2);
    t.tiles_p = t.tiles_n = 1;
  } else if (t.shape == Shape::kImages) {
    t.tiles_q = t.tiles_p = 1;
    t.tiles_n = ceil_divide(p.N, t.images);
  } else {
    t.tiles_q = ceil_divide(p.Q, t.columns);
    t.tiles_p = ceil_divide(p.P, t.rows);
    t.tiles_n = ceil_divide(p.N, t.images);
  }
  t.boxed_out = splits == 1 && stores_boxes(p, t);
  // Planes so large that each is a page of memory: few of them at a time.
  t.planes_first = t.fetch != Fetch::kShared && t.shape == Shape::kLines && stores_planes(p) &&
                   p.P * p.Q * size >= kPageBytes / 2;
  return t;
}

// Bytes that blocks of a line of boxes read past their plane's end; other stages or the staging
// follow there.
int past_the_end(const Tile& t) {
  if (t.fetch != Fetch::kShared || t.shape == Shape::kSquares) return 0;
  const int last = t.kind().pixels + t.h.reach * t.pitch + t.w.reach;
  return std::max(0, last - t.stage_bytes / kRowBytes) * kRowBytes;
}

// What is not stages.
int64_t fixed_bytes(const ConvProblem& p, const Tile& t) {
  return staging(p, t) + kBarrierBytes + (t.fetch == Fetch::kShared ? 0 : kCopiesBytes) +
         (t.is_flat() ? kFlatBytes : 0) +
         past_the_end(t);
}

// Shares the memory out between the stages of the input and of the weights; false where it is too
// small. What many taps read lasts long: two stages are enough.
bool choose_stages(const ConvProblem& p, int64_t room, Tile& t) {
  room -= fixed_bytes(p, t);
  const int64_t input = t.stage_bytes, weight = t.weight_bytes();
  const bool one_tap = t.h.reach == 0 && t.w.reach == 0;
  int64_t stages = 2;
  if (t.fetch != Fetch::kShared) {
    stages = std::clamp<int64_t>((room - 4 * weight) / input, 2, one_tap ? kMostStages : 4);
  } else if (one_tap) {
    stages = std::clamp<int64_t>(room / (input + weight), 2, kMostStages);
  }
  t.x_stages = static_cast<int>(stages);
  t.w_stages = static_cast<int>(std::min<int64_t>((room - stages * input) / weight, kMostStages));
  return room - stages * input >= 2 * weight;
}

int shared_bytes(const ConvProblem& p, const Tile& t) {
  return t.x_stages * t.stage_bytes + t.w_stages * t.weight_bytes() +
         static_cast<int>(fixed_bytes(p, t));
}

bool is_legal(const ConvProblem& p, const Tile& t) {
  if (t.fetch == Fetch::kShared) {
    return t.positions <= kMostPositions && (t.pitch - 1) * p.stride_w + 1 <= kMostBox &&
           (t.plane_rows - 1) * p.stride_h + 1 <= kMostBox;
  }
  if (t.positions >= kTooMany) return false;
  if (is_of_images(t.fetch)) return true;
  const int64_t vectors = t.positions * element_size(p.dtype) / t.row.vector;
  if (t.fetch == Fetch::kTaps || t.fetch == Fetch::kOddTaps) {
    if ((t.fetch == Fetch::kOddTaps) != (t.row.slack % 2 != 0)) return false;
  }
  return vectors <= kMostCopies;
}

// Clocks that a multiprocessor takes to multiply a tile, to load it and to store it.
struct Clocks {
  double math, load, store;
};

// Bytes that the threads of a warpgroup fetch for an instruction.
double fetched_bytes(const ConvProblem& p, const Tile& t) {
  switch (t.fetch) {
    case Fetch::kShared:
      return kInstructionRows * kPieceBytes;
    case Fetch::kImages:
    case Fetch::kImagePieces:  // with conflicts
      return p.dtype == DType::kFloat32 ? 4096 : 8192;
    case Fetch::kPieces:
      return 2048;
    case Fetch::kTaps:
    case Fetch::kOddTaps:
      return t.fetch == Fetch::kTaps ? 1800 : 2500;
    default:
      return p.dtype == DType::kFloat32 ? 4096 : 6144;
  }
}

Clocks count_clocks(const ConvProblem& p, const Tile& t) {
  const Kernel& kind = t.kind();
  const bool boxes = t.fetch == Fetch::kShared;
  const double size = static_cast<double>(element_size(p.dtype));
  const double taps = t.is_flat() ? 1 : static_cast<double>(p.R * p.S);
  const double planes = t.h.planes * t.w.planes;
  const double channels =
      t.is_flat() ? static_cast<double>(p.C) : t.pieces * static_cast<double>(kPieceBytes) / size;
  const double input = t.positions * planes * channels * size;
  const double products = taps * t.pieces;
  const double weights = products * kind.channels * kPieceBytes;
  const double results = static_cast<double>(kind.pixels) * kind.channels;

  Clocks clocks{};
  // Shared memory moves 128 bytes a clock: operands and what is loaded.
  const double count = products * kind.blocks();
  const double moved =
      count * (kind.channels * kPieceBytes + fetched_bytes(p, t)) + weights + input;
  clocks.math = std::max(count * kind.channels / 2, moved / 128) /
                (boxes ? kMatrixEfficiency : kFetchedEfficiency);
  clocks.load = (input + weights) / kL2BytesPerClock;
  if (is_of_images(t.fetch)) {
    clocks.math += products / 2 * kGroupClocks;
  } else if (!boxes) {
    clocks.math += products / group_products(t.fetch) * kGroupClocks;
    double copies = input / kSmallBytesPerClock;
    if (t.row.vector == 16) copies = input / (32 * 16) * kCopyClocks;
    if (t.row.vector == 2) copies = input / kElementBytesPerClock;
    clocks.load = std::max(clocks.load, copies);
  }
  clocks.store = results * size / (t.boxed_out ? 64 : kStoreBytesPerClock);
  if (!boxes && !t.boxed_out && stores_planes(p)) {
    const double slab = kRowBytes / size;
    const double width = t.shape == Shape::kLines ? std::min<double>(t.columns, slab) : slab;
    clocks.store = results / width * (t.planes_first ? kPieceOfPageClocks : kPieceOfPlaneClocks);
  }
  if (t.splits > 1) clocks.store = results * 4 / kStoreBytesPerClock;
  return clocks;
}

struct Choice {
  Tile tile;
  int variant;
  int shared_bytes;
  double ms;
};

// Fills in the stages and the price; false where the tile does not fit.
bool price(const ConvProblem& p, const DeviceProperties& d, Choice& choice) {
  Tile& t = choice.tile;
  // A plane that fits has no sizes that overflow in what follows.
  if (!is_legal(p, t)) return false;
  if (!choose_stages(p, d.shared_bytes_block - 1024, t)) return false;
  choice.shared_bytes = shared_bytes(p, t);
  const Clocks clocks = count_clocks(p, t);
  // What is less than the most is not free: it competes for shared memory.
  const double sum = std::max(clocks.math, clocks.load) + 0.1 * std::min(clocks.math, clocks.load);
  const double item = sum / t.splits + clocks.store + kTileClocks;
  const double turns = std::ceil(static_cast<double>(t.tiles() * t.splits) / d.sm_count);
  double ms = turns * item / (d.clock_ghz * 1e6);
  const double split_bytes = 2.0 * static_cast<double>(partial_bytes(t));
  if (t.splits > 1) ms += split_bytes / kSplitBytesPerClock / (d.clock_ghz * 1e6) + kLaunchMs;
  const double bytes_ms = 1e-6 * p.least_bytes() / (kBandwidthShare * d.bandwidth_gb_s);
  choice.ms = std::max(ms, bytes_ms) + kLaunchMs;
  if (!packed_weight(p, t).in_place) choice.ms += kLaunchMs;
  return true;
}

// Whether the copy engine can read boxes of pixels, all their channels side by side.
bool input_is_boxed(const ConvProblem& p) {
  const int64_t unit = 16 / element_size(p.dtype);
  const auto legal = [&](int64_t size, int64_t stride) {
    return size == 1 || (stride > 0 && stride % unit == 0);
  };
  return p.x_aligned && (p.C == 1 || p.x_strides[1] == 1) && legal(p.N, p.x_strides[0]) &&
         legal(p.H, p.x_strides[2]) && legal(p.W, p.x_strides[3]) && p.stride_h <= 8 &&
         p.stride_w <= 8;
}

// Whether small images can be copied whole, some pieces of channels at a time.
bool images_follow(const ConvProblem& p) {
  const int64_t size = element_size(p.dtype);
  return p.P * p.Q <= kKernels[0].pixels && p.H * p.W <= kMostImage &&
         strides_match(p.x_sizes(), p.x_strides, Layout::kNchw) && p.x_aligned &&
         p.C * size % kPieceBytes == 0 && p.R <= 32 && p.S <= 32;
}

class Search {
 public:
  // Keeps every choice in `all`, where that is given.
  Search(const ConvProblem& p, const DeviceProperties& d, std::vector<Choice>* all = nullptr)
      : p_(p), d_(d), all_(all) {}

  Choice best() {
    if (input_is_boxed(p_) && strides_match(p_.y_sizes(), p_.y_strides, Layout::kNhwc)) {
      try_planes(Fetch::kShared);
      if (best_.ms > 0 && p_.C > kFewChannels) return best_;
    }
    const int64_t flat = p_.C <= kFewChannels ? p_.C * p_.R * p_.S : kTooMany;
    if (round_up(flat, kPieceBytes) <= kMostFlat) try_kernels(Fetch::kFlat, 0);
    const bool one_tap = p_.R == 1 && p_.S == 1;
    if (images_follow(p_)) {
      try_images(Fetch::kImages);
      if (one_tap && p_.pad_h == 0 && p_.pad_w == 0) try_images(Fetch::kImagePieces);
    }
    if (one_tap && (p_.stride_w == 1 || p_.dtype == DType::kFloat32)) {
      try_kernels(Fetch::kPieces, 0);
    } else if (p_.stride_w == 1 && p_.dilation_w == 1) {
      try_planes(Fetch::kTaps);
      try_planes(Fetch::kOddTaps);
    } else {
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
      if (is_too_wide(kernel)) continue;
      if (fetch == Fetch::kShared) {
        try_squares(kernel, flags);
        try_boxed_lines(kernel, flags);
      } else {
        try_run(kernel, fetch, flags);
        if (fetch != Fetch::kPieces || flags != 0) try_row_lines(kernel, fetch, flags);
      }
    }
  }

  // Twice as wide a tile as there are channels is never better than the next one.
  bool is_too_wide(int kernel) const {
    const int channels = kKernels[kernel].channels;
    return channels > 32 && p_.K <= channels / 2;
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

  void try_images(Fetch fetch) {
    for (int kernel = 0; kernel < kKernelCount; ++kernel) {
      const int64_t images = kKernels[kernel].pixels / round_up(p_.P * p_.Q, 2);
      if (images == 0 || is_too_wide(kernel)) continue;
      try_tile(variant_of(kernel, Shape::kImages, fetch, 0),
               {static_cast<int>(1), static_cast<int>(p_.P * p_.Q),
                static_cast<int>(std::min(images, p_.N))});
    }
  }

  void try_run(int kernel, Fetch fetch, int flags) {
    const auto row = static_cast<double>(p_.Q + 1);
    const double rows = static_cast<double>(p_.P) * static_cast<double>(p_.stride_h) +
                        static_cast<double>(p_.R) * static_cast<double>(p_.dilation_h);
    if (std::max(row, rows) * rows * static_cast<double>(p_.N) > INT32_MAX / 4) return;
    if (row * rows * static_cast<double>(p_.N) > INT32_MAX / 4) return;
    const int variant = variant_of(kernel, Shape::kRun, fetch, flags);
    try_tile(variant, {static_cast<int>(p_.P), static_cast<int>(p_.Q), 1});
  }

  void try_tile(int variant, const int (&pixels)[3]) {
    try_splits(variant, pixels, 1);
    const Tile t = make_tile(p_, variant, pixels, 1);
    // Splits where the tiles alone leave multiprocessors idle, also in the last of a few turns.
    const int64_t most =
        std::min<int64_t>(t.steps(), kMostTurns * d_.sm_count / std::max<int64_t>(t.tiles(), 1));
    for (int64_t splits = 2; splits <= most; splits = splits < 4 ? splits + 1 : splits * 3 / 2) {
      try_splits(variant, pixels, splits);
    }
    if (most > 1) try_splits(variant, pixels, most);
  }

  void try_splits(int variant, const int (&pixels)[3], int64_t splits) {
    Choice choice{make_tile(p_, variant, pixels, splits), variant, 0, 0};
    if (choice.tile.tiles() * splits > INT32_MAX / 2) return;
    if (!price(p_, d_, choice)) return;
    if (best_.ms == 0 || choice.ms < best_.ms) best_ = choice;
    if (all_ != nullptr) all_->push_back(choice);
  }

  const ConvProblem& p_;
  const DeviceProperties& d_;
  std::vector<Choice>* all_;
  Choice best_{};
};

const char* can_implement(const ConvProblem& p, const DeviceProperties& d) {
  if (d.capability_major != 9 || d.capability_minor != 0) {
    return "it is made for compute capability 9.0";
  }
  if (!d.built_for_90a) return "customconv was built without 9.0a";
  if (p.pass != Pass::kFprop) return "it computes the forward pass";
  if (p.groups != 1) return "it computes one group";
  if (p.dtype == DType::kFloat64) return "there are no such tensor cores for float64";
  if (p.dtype == DType::kFloat32 && !p.tf32) return "TF32 is not allowed";
  if (!has_int32_coordinates(p)) return "image coordinates pass 2^31";
  if (dense_layout(p.y_sizes(), p.y_strides) == Layout::kOther) return "the output is not dense";
  if (p.N > INT32_MAX || p.K > INT32_MAX / 2) return "a dimension passes 2^31";
  if (round_up(p.C, kPieceBytes) * p.R * p.S * round_up(p.K, 128) > INT32_MAX) {
    return "the weight passes 2^31 elements";
  }
  const double squares = static_cast<double>(p.N) * static_cast<double>(ceil_divide(p.P, 8)) *
                         static_cast<double>(ceil_divide(p.Q, 8));
  if (squares * static_cast<double>(ceil_divide(p.K, 32)) > INT32_MAX / 2) {
    return "the tiles pass 2^30";
  }
  return nullptr;
}

// `p` is as one row if it can be.
ConvPlan plan_of(const ConvProblem& p, const DeviceProperties& d, const Choice& choice) {
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
  plan.grid[0] = std::min<int64_t>(t.tiles() * t.splits, d.sm_count);
  const PackedWeight weight = packed_weight(p, t);
  const int64_t packed =
      weight.in_place ? 0 : weight.rows * weight.row * element_size(p.dtype);
  plan.workspace_bytes = round_up(packed, 256) + partial_bytes(t);
  plan.predicted_ms = choice.ms;
  return plan;
}

ConvPlan propose(const ConvProblem& asked, const DeviceProperties& d) {
  const ConvProblem p = as_one_row(asked);
  return plan_of(p, d, Search(p, d).best());
}

std::vector<ConvPlan> variants(const ConvProblem& asked, const DeviceProperties& d) {
  const ConvProblem p = as_one_row(asked);
  std::vector<Choice> choices;
  Search(p, d, &choices).best();
  std::vector<ConvPlan> plans;
  for (const Choice& choice : choices) plans.push_back(plan_of(p, d, choice));
  return plans;
}

}  // namespace

ConvProblem as_one_row(ConvProblem p) {
  if (!p.is_pointwise()) return p;
  const auto are = [&](Layout layout) {
    return strides_match(p.x_sizes(), p.x_strides, layout) &&
           strides_match(p.y_sizes(), p.y_strides, layout);
  };
  if (are(Layout::kNhwc) && p.N * p.H * p.W <= INT32_MAX) {
    p.W *= p.N * p.H;
    p.N = p.H = 1;
    p.x_strides = {p.W * p.C, 1, p.W * p.C, p.C};
    p.y_strides = {p.W * p.K, 1, p.W * p.K, p.K};
  } else if (are(Layout::kNchw) && p.H * p.W <= INT32_MAX) {
    p.W *= p.H;
    p.H = 1;
    p.x_strides = {p.W * p.C, p.W, p.W, 1};
    p.y_strides = {p.W * p.K, p.W, p.W, 1};
  }
  p.P = p.H;
  p.Q = p.W;
  return p;
}

Tile tile_of(const ConvProblem& p, const ConvPlan& plan) {
  Tile t = make_tile(p, plan.variant_index, plan.tile, plan.splits);
  choose_stages(p, plan.shared_bytes, t);
  return t;
}

PackedWeight packed_weight(const ConvProblem& p, const Tile& t) {
  const int64_t size = element_size(p.dtype), unit = 16 / size;
  if (!has_matrix(t.fetch)) {
    const int64_t taps = t.is_flat() ? 1 : p.R * p.S;
    return {t.tiles_k * t.kind().channels, t.pieces * taps * kPieceBytes / size, false};
  }
  const bool in_place =
      p.C % unit == 0 && (p.C == 1 || p.w_strides[1] == 1) &&
      (p.S == 1 || p.w_strides[3] == p.C) && (p.R == 1 || p.w_strides[2] == p.C * p.S) &&
      (p.K == 1 || p.w_strides[0] == p.C * p.S * p.R) && p.w_aligned;
  return {p.K * p.R * p.S, round_up(p.C, unit), in_place};
}

int staging(const ConvProblem& p, const Tile& t) {
  const int size = static_cast<int>(element_size(p.dtype));
  const int channels = t.kind().channels, groups = warpgroups(t.kind(), t.fetch);
  if (t.fetch != Fetch::kShared && stores_planes(p)) {
    const int slabs = kInstructionRows * size / kRowBytes * channels / slab_channels(channels);
    return t.splits > 1 ? 0 : groups * std::min(slabs, kMostPlanarSlabs) * kSlabBytes;
  }
  if (t.boxed_out) {
    const int slabs = t.kind().blocks() / groups * channels * size / kRowBytes;
    return groups * std::min(slabs, kMostSlabs) * kSlabBytes;
  }
  // Channels-last, 16 bits: each warp's sixteen pixels.
  return size == 2 ? 4 * groups * 16 * (channels * 2 + 16) : 0;
}

bool stores_planes(const ConvProblem& p) {
  return dense_layout(p.y_sizes(), p.y_strides) == Layout::kNchw;
}

extern const Family family;
const Family family{"implicit_gemm", can_implement, propose, variants};

}  // namespace customconv::implicit_gemm
