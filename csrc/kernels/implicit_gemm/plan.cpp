// implicit_gemm: matrix products on the tensor cores, from input tiles that stay in shared memory.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/implicit_gemm/tile.h"

namespace customconv::implicit_gemm {

namespace {

// Whether strides are those of a dense layout, where they matter.
bool has_strides(const Shape4& sizes, const Shape4& strides, Layout layout) {
  const Shape4 dense = dense_strides(sizes, layout);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && strides[i] != dense[i]) return false;
  }
  return true;
}

constexpr double kMatrixEfficiency = 0.85;   // of the tensor cores' rate, while a tile is summed
constexpr double kTurnedEfficiency = 0.8;    // the same where threads turn what is multiplied
constexpr double kL2BytesPerClock = 26;      // a multiprocessor's share
constexpr double kGatherBytesPerClock = 1;   // where threads load and store every element
constexpr double kTurnBytesPerClock = 0.18;  // of a thread that turns what the copy engine brings
constexpr double kTurnTraffic = 2.5;         // what turning moves, for each byte
constexpr double kTurnStageClocks = 700;     // until pieces are turned, however small
constexpr double kStoreBytesPerClock = 16;
constexpr double kTileClocks = 1500;  // until the first products, and after the last
constexpr double kPlanarTileClocks = 2500;
constexpr double kCutSectorClocks = 3;  // for 32 bytes of output that a multiprocessor writes twice
constexpr double kSharedSectorClocks = 8;     // or that two of them share
constexpr double kSplitBytesPerClock = 1000;  // of the whole GPU, written and read
constexpr double kLaunchMs = 0.004;
constexpr double kBandwidthShare = 0.85;

constexpr int kMostBox = 256;
constexpr int64_t kWholeBytes = 640;  // of an image's channel: up to which images are not cut
constexpr int64_t kFarReach = 6;      // pixels of halo
constexpr int64_t kTooMany = kMostPositions + 1;
constexpr int64_t kMostRows = 32;  // of pixels in a tile of lines
constexpr int kFewChannels = 4;    // up to which channels and taps are one dimension

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A plan's variant: the kernel, the shape, the loader and flags.
enum Flag : int { kShapeShift = 4, kLoaderShift = 6, kFlat = 256, kApartH = 512, kApartW = 1024 };

constexpr int variant_of(int kernel, Shape shape, Loader loader, int flags) {
  return kernel | static_cast<int>(shape) << kShapeShift |
         static_cast<int>(loader) << kLoaderShift | flags;
}

int64_t round_up(int64_t value, int64_t unit) { return ceil_divide(value, unit) * unit; }

Axis make_axis(int64_t taps, int64_t stride, int64_t dilation, bool apart) {
  const int64_t period = apart ? taps : stride / std::gcd(stride, dilation);
  const int64_t planes = std::min(taps, period);
  const int64_t step = apart ? 0 : planes * dilation / stride;
  return {
      static_cast<int>(planes), static_cast<int>(step),
      static_cast<int>(planes < taps ? ceil_divide(taps, planes) - 1 : 0) * static_cast<int>(step)};
}

// Positions from one row of a run to the next: of the pixels that a row's taps reach. With stride 1
// the padding behind a row also stands before the next one.
int64_t run_period(const Axis& axis, int64_t stride, int64_t size, int64_t pad, int64_t outputs) {
  const int64_t apart = outputs + axis.reach;
  if (stride > 1 || axis.planes > 1) return apart;
  const int64_t behind = outputs + axis.reach - pad - size;
  const int64_t shared = size + std::max(pad, behind);
  return shared >= outputs ? std::min(shared, apart) : apart;
}

// Bytes that blocks of a line read past their plane's end; other stages or the staging follow
// there.
int past_the_end(const Tile& t) {
  if (t.shape == Shape::kSquares) return 0;
  const int last = t.kind().pixels + t.h.reach * t.pitch + t.w.reach;
  return std::max(0, last - t.plane_bytes() / kRowBytes) * kRowBytes;
}

Pieces boxed_pieces(const ConvProblem& p, const Tile& t, int count) {
  Pieces pieces{};
  pieces.count = count;
  const int64_t size = element_size(p.dtype);
  // A box starts at whole 16 bytes, up to one element less before the first that is wanted.
  const int64_t columns = (t.pitch - 1) * p.stride_w + 16 / size;
  pieces.row = static_cast<int>(round_up(columns * size, 16));
  pieces.channel = pieces.row * t.plane_rows;
  pieces.image = pieces.channel * count * static_cast<int>(kPieceBytes / size);
  pieces.bytes = static_cast<int>(round_up(int64_t{pieces.image} * t.images, 128));
  return pieces;
}

// Spans lie as far from each other, modulo 16 bytes, as in the tensor; between them is room for the
// bytes that complete 16 on both sides.
Pieces spanned_pieces(const ConvProblem& p, const Tile& t, int count) {
  Pieces pieces{};
  const int64_t size = element_size(p.dtype);
  const int64_t touched = ceil_divide(t.positions - 1, t.pitch) + 1;  // rows of the plane
  const int64_t late = std::max<int64_t>(0, (t.h.planes - 1) * p.dilation_h - p.pad_h);
  const int64_t rows = std::min(p.H, (touched - 1) * p.stride_h + 1 + late);
  const int64_t images = ceil_divide(t.positions - 1, int64_t{t.pitch} * t.plane_rows) + 1;
  const int64_t row = p.W * size, area = p.H * row;
  const int64_t box = round_up(rows * row, 16) + 16;
  const bool planes_follow = p.C == 1 || p.x_strides[1] == p.H * p.W;
  pieces.boxes = p.x_aligned && planes_follow && area % 16 == 0 &&
                 p.x_strides[0] * size % 16 == 0 && p.x_strides[0] > 0 &&
                 box <= kMostBox * kSpanUnit;
  pieces.whole = !pieces.boxes && planes_follow && area <= kWholeBytes;
  pieces.count = pieces.boxes || pieces.whole ? count : 1;
  const int64_t channels = pieces.count * kPieceBytes / size;
  int64_t channel = round_up(rows * row, 16) + 32 + p.x_strides[1] * size % 16;
  if (pieces.boxes) channel = box;
  if (pieces.whole) channel = area;
  int64_t image = round_up(channels * channel, 16) + 32 + p.x_strides[0] * size % 16;
  if (pieces.boxes) image = round_up(channels * channel, 128);
  const int64_t bytes = round_up(image * std::min(images, p.N) + 32, 128);
  pieces.row = static_cast<int>(std::min<int64_t>(row, INT32_MAX));
  pieces.channel = static_cast<int>(std::min<int64_t>(channel, INT32_MAX));
  pieces.image = static_cast<int>(std::min<int64_t>(image, INT32_MAX));
  pieces.bytes = static_cast<int>(std::min<int64_t>(bytes, INT32_MAX));
  return pieces;
}

// Shares the memory out between the stages of the planes, of the pieces that they are made of and
// of the weights; false where it is too small. A plane of many taps lasts long: two are enough.
bool choose_stages(const ConvProblem& p, int64_t room, Tile& t) {
  room -= staging(p, t) + kBarrierBytes + kOffsetBytes + past_the_end(t);
  const int64_t plane = t.plane_bytes(), weight = t.weight_bytes();
  const bool one_tap = t.h.reach == 0 && t.w.reach == 0;
  int64_t planes = 2, pieces = 0;
  if (is_turned(t.loader)) {
    // Of planes that do not last long as many at a time as leave room for two stages, and for four
    // taps of weights.
    const int64_t left = room - 2 * plane - 4 * weight;
    for (int count = one_tap ? kRowBytes / kPieceBytes : 1; count > 0; count /= 2) {
      t.pieces = t.loader == Loader::kTurnedBoxes ? boxed_pieces(p, t, count)
                                                  : spanned_pieces(p, t, count);
      if (2 * t.pieces.bytes <= left) break;
    }
    pieces = std::clamp<int64_t>(left / t.pieces.bytes, 2, kMostStages);
    room -= pieces * t.pieces.bytes;
  } else if (one_tap) {
    planes = std::clamp<int64_t>(room / (plane + weight), 2, kMostStages);
  }
  t.x_stages = static_cast<int>(planes);
  t.pieces.stages = static_cast<int>(pieces);
  t.w_stages = static_cast<int>(std::min<int64_t>((room - planes * plane) / weight, kMostStages));
  return room - planes * plane >= 2 * weight;
}

int shared_bytes(const ConvProblem& p, const Tile& t) {
  return t.x_stages * t.plane_bytes() + staging(p, t) + t.w_stages * t.weight_bytes() +
         t.pieces.stages * t.pieces.bytes + past_the_end(t) + kBarrierBytes + kOffsetBytes;
}

Tile make_tile(const ConvProblem& p, int variant, const int (&pixels)[3], int64_t splits) {
  Tile t{};
  t.kernel = variant % (1 << kShapeShift);
  t.shape = static_cast<Shape>(variant >> kShapeShift & 3);
  t.loader = static_cast<Loader>(variant >> kLoaderShift & 3);
  t.flat = (variant & kFlat) != 0;
  t.rows = pixels[0];
  t.columns = pixels[1];
  t.images = pixels[2];
  const int64_t R = t.flat ? 1 : p.R, S = t.flat ? 1 : p.S;
  t.h = make_axis(R, p.stride_h, p.dilation_h, (variant & kApartH) != 0);
  t.w = make_axis(S, p.stride_w, p.dilation_w, (variant & kApartW) != 0);
  const int64_t channels = t.flat ? p.C * p.R * p.S : p.C;
  t.chunks = static_cast<int>(ceil_divide(channels * element_size(p.dtype), kRowBytes));
  t.splits = static_cast<int>(splits);
  t.tiles_k = ceil_divide(p.K, t.kind().channels);
  int64_t positions = 0;
  if (t.shape == Shape::kRun) {
    t.pitch = static_cast<int>(run_period(t.w, p.stride_w, p.W, p.pad_w, p.Q));
    t.plane_rows = static_cast<int>(run_period(t.h, p.stride_h, p.H, p.pad_h, p.P));
    positions = t.kind().pixels + int64_t{t.h.reach} * t.pitch + t.w.reach;
    t.tiles_q = ceil_divide(((p.N - 1) * t.plane_rows + p.P - 1) * t.pitch + p.Q, t.kind().pixels);
    t.tiles_p = t.tiles_n = 1;
  } else {
    const int64_t pitch = int64_t{t.columns} + t.w.reach, rows = int64_t{t.rows} + t.h.reach;
    const double all = static_cast<double>(t.images * pitch) * static_cast<double>(rows);
    positions = all > kMostPositions ? kTooMany : t.images * pitch * rows;
    t.pitch = static_cast<int>(std::min<int64_t>(pitch, kTooMany));
    t.plane_rows = static_cast<int>(std::min<int64_t>(rows, kTooMany));
    t.tiles_q = ceil_divide(p.Q, t.columns);
    t.tiles_p = ceil_divide(p.P, t.rows);
    t.tiles_n = ceil_divide(p.N, t.images);
  }
  t.positions = static_cast<int>(std::min(positions, kTooMany));
  t.boxed_out = splits == 1 && output_is_boxed(p, t);
  return t;
}

// Boxes have limits.
bool is_legal(const ConvProblem& p, const Tile& t) {
  if (t.loader == Loader::kBoxes || t.loader == Loader::kTurnedBoxes) {
    return (t.pitch - 1) * p.stride_w + 16 <= kMostBox &&
           (t.plane_rows - 1) * p.stride_h + 1 <= kMostBox;
  }
  return true;
}

// Clocks that planes of pixels cost where their pieces do not begin and end with whole sectors of
// 32 bytes: those that a warp stores at a time, and those that other tiles go on with.
double cut_sectors(const ConvProblem& p, const Tile& t) {
  const int64_t size = element_size(p.dtype);
  const bool aligned = p.Q * size % 32 == 0 && t.columns * size % 32 == 0;
  const bool gaps = t.shape != Shape::kSquares && t.pitch != t.columns;
  const bool whole_rows = t.shape == Shape::kRun || t.columns >= p.Q;
  const double slices = static_cast<double>(t.kind().pixels * size) / 128;
  double clocks = aligned && !gaps ? 0 : 2 * slices * kCutSectorClocks;
  const double width = t.shape == Shape::kSquares ? 8 : t.columns;
  const double segments = t.kind().pixels / width;
  if (!whole_rows && (!aligned || width * static_cast<double>(size) < 32)) {
    clocks += 2 * segments * kSharedSectorClocks;
  }
  return clocks * t.kind().channels;
}

// Clocks that a multiprocessor takes to multiply a tile, to load it and to store it.
struct Clocks {
  double math, load, store;
};

Clocks count_clocks(const ConvProblem& p, const Tile& t) {
  const Kernel& kind = t.kind();
  const double size = static_cast<double>(element_size(p.dtype));
  const int64_t channels = t.flat ? p.C * p.R * p.S : p.C;
  const double products = std::ceil(static_cast<double>(channels) * size / kPieceBytes);
  const double taps = t.flat ? 1 : static_cast<double>(p.R * p.S);
  const int columns = kind.columns();
  const double positions = t.positions * static_cast<double>(t.h.planes * t.w.planes);
  const double input = positions * products * kPieceBytes;
  const double weights = taps * t.chunks * t.weight_bytes();
  const double results = static_cast<double>(kind.pixels) * kind.channels;

  Clocks clocks{};
  // Shared memory moves 128 bytes a clock: operands, what is loaded and what is turned.
  const double count = taps * products * kWarpgroups * kind.blocks();
  double moved = count * (kInstructionRows + columns) * kPieceBytes + weights + input;
  if (is_turned(t.loader)) moved += kTurnTraffic * input;
  const double efficiency = is_turned(t.loader) ? kTurnedEfficiency : kMatrixEfficiency;
  clocks.math = std::max(count * columns / 2, moved / 128) / efficiency;
  clocks.load = (input + weights) / kL2BytesPerClock;
  if (t.loader == Loader::kGathered) {
    clocks.load = std::max(clocks.load, positions * t.chunks * kRowBytes / kGatherBytesPerClock);
  } else if (is_turned(t.loader)) {
    const double stages =
        std::ceil(products / t.pieces.count) * static_cast<double>(t.h.planes * t.w.planes);
    const double rate = kTurnBytesPerClock * turners(kind, t.loader);
    clocks.load = std::max(clocks.load, stages * kTurnStageClocks + input / rate);
  }
  clocks.store = results * size / (t.boxed_out ? 64 : kStoreBytesPerClock);
  if (kind.planar) clocks.store += cut_sectors(p, t);
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
  if (t.positions > kMostPositions || !is_legal(p, t)) return false;
  if (!choose_stages(p, d.shared_bytes_block - 1024, t)) return false;
  choice.shared_bytes = shared_bytes(p, t);
  const Clocks clocks = count_clocks(p, t);
  // What is less than the most is not free: it competes for shared memory.
  const double sum = std::max(clocks.math, clocks.load) + 0.1 * std::min(clocks.math, clocks.load);
  const double item =
      sum / t.splits + clocks.store + (t.kind().planar ? kPlanarTileClocks : kTileClocks);
  const double turns = std::ceil(static_cast<double>(t.tiles() * t.splits) / d.sm_count);
  double ms = turns * item / (d.clock_ghz * 1e6);
  const double split_bytes = 2.0 * static_cast<double>(partial_bytes(t));
  if (t.splits > 1) ms += split_bytes / kSplitBytesPerClock / (d.clock_ghz * 1e6) + kLaunchMs;
  const double bytes_ms = 1e-6 * p.least_bytes() / (kBandwidthShare * d.bandwidth_gb_s);
  choice.ms = std::max(ms, bytes_ms) + kLaunchMs;
  if (t.flat || !weight_is_packed(p)) choice.ms += kLaunchMs;
  return true;
}

class Search {
 public:
  // Keeps every choice in `all`, where that is given.
  Search(const ConvProblem& p, const DeviceProperties& d, std::vector<Choice>* all = nullptr)
      : p_(p), d_(d), all_(all) {}

  Choice best() {
    const bool boxed = input_is_boxed(p_);
    const bool channels_last = has_strides(p_.y_sizes(), p_.y_strides, Layout::kNhwc);
    planar_ = !channels_last || (!boxed && has_strides(p_.y_sizes(), p_.y_strides, Layout::kNchw));
    if (p_.C <= kFewChannels) try_kernels(Loader::kGathered, kFlat);
    if (!planar_) {
      try_planes(boxed ? Loader::kBoxes : Loader::kGathered);
    } else {
      if (input_is_boxed_planar(p_)) try_planes(Loader::kTurnedBoxes);
      if (input_is_spanned(p_)) try_planes(Loader::kTurnedSpans);
      if (best_.ms == 0) try_planes(Loader::kGathered);
    }
    // Boxes have the narrower limits.
    if (best_.ms == 0) try_kernels(Loader::kGathered, kApartH | kApartW);
    return best_;
  }

 private:
  // Where a halo may cost more than a plane for each tap.
  static bool reaches_far(int64_t taps, int64_t dilation) {
    return (taps - 1) * dilation > kFarReach;
  }

  void try_planes(Loader loader) {
    const bool far_h = reaches_far(p_.R, p_.dilation_h), far_w = reaches_far(p_.S, p_.dilation_w);
    try_kernels(loader, 0);
    if (far_h) try_kernels(loader, kApartH);
    if (far_w) try_kernels(loader, kApartW);
    if (best_.ms == 0 || (far_h && far_w)) try_kernels(loader, kApartH | kApartW);
  }

  void try_kernels(Loader loader, int flags) {
    for (int kernel = 0; kernel < kKernelCount; ++kernel) {
      const Kernel& kind = kKernels[kernel];
      // Twice as wide a tile as there are channels is never better than the next one.
      const int narrowest = kind.planar ? 64 : 32;
      if (kind.planar != planar_) continue;
      if (kind.channels > narrowest && p_.K <= kind.channels / 2) continue;
      if (loader == Loader::kTurnedSpans) {
        try_run(kernel, flags);
      } else {
        try_squares(kernel, loader, flags);
        try_lines(kernel, loader, flags);
      }
    }
  }

  void try_squares(int kernel, Loader loader, int flags) {
    const Kernel& kind = kKernels[kernel];
    const int variant = variant_of(kernel, Shape::kSquares, loader, flags);
    const int blocks = kind.pixels / kind.block;
    for (int across = 1; across <= blocks; across *= 2) {
      for (int down = 1; across * down <= blocks; down *= 2) {
        try_tile(variant, {down * kind.block / 8, across * 8, blocks / (across * down)});
      }
    }
  }

  // Whole rows of pixels with their halo, as many as there is room for.
  void try_lines(int kernel, Loader loader, int flags) {
    const int variant = variant_of(kernel, Shape::kLines, loader, flags);
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

  void try_run(int kernel, int flags) {
    const double row = static_cast<double>(p_.Q + p_.W + 2 * p_.pad_w);
    const double rows = static_cast<double>(p_.P + p_.H + 2 * p_.pad_h);
    if (row * rows * static_cast<double>(p_.N) > INT32_MAX / 2) return;
    const int variant = variant_of(kernel, Shape::kRun, Loader::kTurnedSpans, flags);
    try_tile(variant, {static_cast<int>(p_.P), static_cast<int>(p_.Q), 1});
  }

  void try_tile(int variant, const int (&pixels)[3]) {
    try_splits(variant, pixels, 1);
    const Tile t = make_tile(p_, variant, pixels, 1);
    // Splits where the tiles alone leave multiprocessors idle.
    const int64_t most =
        std::min<int64_t>(t.steps(), d_.sm_count / std::max<int64_t>(t.tiles(), 1));
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
  bool planar_ = false;
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
  if (packed_channels(p, false) * p.R * p.S * p.K > INT32_MAX ||
      packed_channels(p, true) * p.K > INT32_MAX) {
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
  plan.block = threads_of(t.kind(), t.loader);
  plan.wide_index = needs_wide_index(p);
  plan.shared_bytes = choice.shared_bytes;
  plan.grid[0] = std::min<int64_t>(t.tiles() * t.splits, d.sm_count);
  int64_t packed = 0;
  if (t.flat || !weight_is_packed(p)) {
    packed = packed_channels(p, t.flat) * (t.flat ? 1 : p.R * p.S) * p.K * element_size(p.dtype);
  }
  plan.workspace_bytes = ceil_divide(packed, 256) * 256 + partial_bytes(t);
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
    return has_strides(p.x_sizes(), p.x_strides, layout) &&
           has_strides(p.y_sizes(), p.y_strides, layout);
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

int staging(const ConvProblem& p, const Tile& t) {
  const Kernel& kind = t.kind();
  const int warps = 4 * kWarpgroups;
  if (t.boxed_out) return kWarpgroups * t.slabs(element_size(p.dtype)) * kSlabBytes;
  // As staging_bytes has it, of a warp's sixteen pixels or channels.
  if (kind.planar) return warps * 16 * (128 + 16);
  return element_size(p.dtype) == 2 ? warps * 16 * (kind.channels * 2 + 16) : 0;
}

bool output_is_boxed(const ConvProblem& p, const Tile& t) {
  const int64_t size = element_size(p.dtype);
  // A box is a square, or a whole block of a line without a halo.
  const bool boxes = t.shape == Shape::kSquares ||
                     (t.rows == 1 && t.w.reach == 0 && t.columns % kInstructionRows == 0);
  return !t.kind().planar && boxes && p.K * size % 16 == 0 &&
         t.kind().channels * size % kRowBytes == 0;
}

bool weight_is_packed(const ConvProblem& p) {
  const int64_t unit = 16 / element_size(p.dtype);
  return p.C % unit == 0 && (p.C == 1 || p.w_strides[1] == 1) &&
         (p.S == 1 || p.w_strides[3] == p.C) && (p.R == 1 || p.w_strides[2] == p.C * p.S) &&
         (p.K == 1 || p.w_strides[0] == p.C * p.S * p.R) && p.w_aligned;
}

bool input_is_boxed(const ConvProblem& p) {
  const int64_t unit = 16 / element_size(p.dtype);
  const auto legal = [&](int64_t size, int64_t stride) {
    return size == 1 || (stride > 0 && stride % unit == 0);
  };
  return p.x_aligned && (p.C == 1 || p.x_strides[1] == 1) && legal(p.N, p.x_strides[0]) &&
         legal(p.H, p.x_strides[2]) && legal(p.W, p.x_strides[3]) && p.stride_h <= 8 &&
         p.stride_w <= 8;
}

bool input_is_boxed_planar(const ConvProblem& p) {
  const int64_t unit = 16 / element_size(p.dtype);
  const auto legal = [&](int64_t size, int64_t stride) {
    return size == 1 || (stride > 0 && stride % unit == 0);
  };
  return p.x_aligned && (p.W == 1 || p.x_strides[3] == 1) && legal(p.N, p.x_strides[0]) &&
         legal(p.C, p.x_strides[1]) && legal(p.H, p.x_strides[2]) && p.stride_h <= 8;
}

bool input_is_spanned(const ConvProblem& p) {
  return (p.W == 1 || p.x_strides[3] == 1) && (p.H == 1 || p.x_strides[2] == p.W);
}

extern const Family family;
const Family family{"implicit_gemm", can_implement, propose, variants};

}  // namespace customconv::implicit_gemm
