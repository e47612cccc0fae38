// implicit_gemm: matrix products on the tensor cores, from input tiles that stay in shared memory.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "kernels/implicit_gemm/tile.h"

namespace customconv::implicit_gemm {

namespace {

constexpr double kMatrixEfficiency = 0.85;    // of the tensor cores' rate, while a tile is summed
constexpr double kL2BytesPerClock = 26;       // a multiprocessor's share
constexpr double kGatherBytesPerClock = 0.7;  // where threads load and store every element
constexpr double kStoreBytesPerClock = 16;
constexpr double kTileClocks = 1500;          // until the first products, and after the last
constexpr double kSplitBytesPerClock = 1000;  // of the whole GPU, written and read
constexpr double kLaunchMs = 0.004;
constexpr double kBandwidthShare = 0.85;

constexpr int kBarrierBytes = 512;
constexpr int kMostBox = 256;
constexpr int64_t kFarReach = 6;    // pixels of halo
constexpr int64_t kMostParts = 16;  // that a row of pixels is cut into
constexpr int kFewChannels = 4;     // up to which channels and taps are one dimension

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

enum Flag : int { kLines = 8, kGathered = 16, kFlat = 32, kApartH = 64, kApartW = 128 };

Axis make_axis(int64_t taps, int64_t stride, int64_t dilation, bool apart) {
  const int64_t period = apart ? taps : stride / std::gcd(stride, dilation);
  const int64_t planes = std::min(taps, period);
  const int64_t step = apart ? 0 : planes * dilation / stride;
  return {
      static_cast<int>(planes), static_cast<int>(step),
      static_cast<int>(planes < taps ? ceil_divide(taps, planes) - 1 : 0) * static_cast<int>(step)};
}

// Bytes that blocks of a line read past their plane's end; other stages or the staging follow
// there.
int past_the_end(const Tile& t) {
  if (!t.lines) return 0;
  const int last = t.blocks() * kBlockPixels + t.h.reach * t.pitch + t.w.reach;
  return std::max(0, last - t.plane_bytes() / kRowBytes) * kRowBytes;
}

// Shares the memory out between the stages of the planes and those of the weights; false where it
// is too small. A plane of many taps lasts long: two are enough.
bool choose_stages(const ConvProblem& p, int64_t room, Tile& t) {
  room -= staging(p, t) + kBarrierBytes + past_the_end(t);
  const int64_t plane = t.plane_bytes(), weight = t.weight_bytes();
  const bool one_tap = t.h.reach == 0 && t.w.reach == 0;
  int64_t planes = 2;
  if (one_tap) planes = std::clamp<int64_t>(room / (plane + weight), 2, kMostStages);
  t.x_stages = static_cast<int>(planes);
  t.w_stages = static_cast<int>(std::min<int64_t>((room - planes * plane) / weight, kMostStages));
  return t.w_stages >= 2;
}

int shared_bytes(const ConvProblem& p, const Tile& t) {
  return t.x_stages * t.plane_bytes() + staging(p, t) + t.w_stages * t.weight_bytes() +
         past_the_end(t) + kBarrierBytes;
}

Tile make_tile(const ConvProblem& p, int variant, const int (&pixels)[3], int64_t splits) {
  Tile t{};
  t.kernel = variant % 8;
  t.lines = (variant & kLines) != 0;
  t.gathered = (variant & kGathered) != 0;
  t.flat = (variant & kFlat) != 0;
  t.rows = pixels[0];
  t.columns = pixels[1];
  t.images = pixels[2];
  const int64_t R = t.flat ? 1 : p.R, S = t.flat ? 1 : p.S;
  t.h = make_axis(R, p.stride_h, p.dilation_h, (variant & kApartH) != 0);
  t.w = make_axis(S, p.stride_w, p.dilation_w, (variant & kApartW) != 0);
  t.pitch = t.columns + t.w.reach;
  t.plane_rows = t.rows + t.h.reach;
  t.splits = static_cast<int>(splits);
  const int64_t channels = t.flat ? p.C * p.R * p.S : p.C;
  t.chunks = static_cast<int>(ceil_divide(channels * element_size(p.dtype), kRowBytes));
  t.tiles_k = ceil_divide(p.K, kKernels[t.kernel].columns);
  t.tiles_q = ceil_divide(p.Q, t.columns);
  t.tiles_p = ceil_divide(p.P, t.rows);
  t.tiles_n = ceil_divide(p.N, t.images);
  t.boxed_out = splits == 1 && output_is_boxed(p, t);
  return t;
}

bool fits_box(const ConvProblem& p, const Tile& t) {
  return (t.pitch - 1) * p.stride_w + 1 <= kMostBox &&
         (t.plane_rows - 1) * p.stride_h + 1 <= kMostBox;
}

struct Choice {
  Tile tile;
  int variant;
  int shared_bytes;
  double ms;
};

// Fills in the stages of the weights and the price; false where the tile does not fit.
bool price(const ConvProblem& p, const DeviceProperties& d, Choice& choice) {
  Tile& t = choice.tile;
  const int columns = kKernels[t.kernel].columns;
  if (!choose_stages(p, d.shared_bytes_block - 1024, t)) return false;
  if (!t.gathered && !fits_box(p, t)) return false;
  choice.shared_bytes = shared_bytes(p, t);

  const double size = static_cast<double>(element_size(p.dtype));
  const int64_t channels = t.flat ? p.C * p.R * p.S : p.C;
  const double products = std::ceil(static_cast<double>(channels) * size / 32);
  const double taps = t.flat ? 1 : static_cast<double>(p.R * p.S);
  const double product_clocks = std::max(columns / 2, (kBlockPixels * 32 + columns * 32) / 128);
  const double math = taps * products * t.blocks() * product_clocks / kMatrixEfficiency;
  const double positions = t.images * t.plane_rows * t.pitch;
  const double planes = t.h.planes * t.w.planes;
  const double input = positions * planes * static_cast<double>(channels) * size;
  const double weights = taps * t.chunks * t.weight_bytes();
  const double pixels = t.blocks() * kBlockPixels;
  const double gathered = positions * planes * t.chunks * kRowBytes / kGatherBytesPerClock;
  const double load = t.gathered ? std::max(gathered, weights / kL2BytesPerClock)
                                 : (input + weights) / kL2BytesPerClock;
  double store = pixels * columns * size / (t.boxed_out ? 64 : kStoreBytesPerClock);
  if (t.splits > 1) store = pixels * columns * 4 / kStoreBytesPerClock;
  const double items = static_cast<double>(t.tiles() * t.splits);
  // What is less than the most is not free: it competes for shared memory.
  const double sum = std::max(math, load) + 0.1 * std::min(math, load);
  const double item = sum / t.splits + store + kTileClocks;
  const double turns = std::ceil(items / d.sm_count);
  double clocks = turns * item;
  double ms = clocks / (d.clock_ghz * 1e6);
  const double split_bytes = 2.0 * static_cast<double>(partial_bytes(t));
  if (t.splits > 1) ms += split_bytes / kSplitBytesPerClock / (d.clock_ghz * 1e6) + kLaunchMs;
  const double bytes_ms = 1e-6 * p.least_bytes() / (kBandwidthShare * d.bandwidth_gb_s);
  choice.ms = std::max(ms, bytes_ms) + kLaunchMs;
  if (t.flat || !weight_is_packed(p)) choice.ms += kLaunchMs;
  return true;
}

class Search {
 public:
  Search(const ConvProblem& p, const DeviceProperties& d) : p_(p), d_(d) {
    boxed_ = input_is_boxed(p);
  }

  Choice best() {
    for (int kernel = 0; kernel < kKernelCount; ++kernel) {
      // Twice as wide a tile as there are channels is never better than the next one.
      if (kernel_is_wide(kernel)) continue;
      const int loader = boxed_ ? 0 : kGathered;
      if (p_.C <= kFewChannels) try_shapes(kernel | kGathered | kFlat);
      try_shapes(kernel | loader);
      if (reaches_far(p_.R, p_.dilation_h)) try_shapes(kernel | loader | kApartH);
      if (reaches_far(p_.S, p_.dilation_w)) try_shapes(kernel | loader | kApartW);
      if (best_.ms == 0 || (reaches_far(p_.R, p_.dilation_h) && reaches_far(p_.S, p_.dilation_w))) {
        try_shapes(kernel | loader | kApartH | kApartW);
      }
    }
    // Boxes have the narrower limits.
    if (best_.ms == 0) {
      for (int kernel = 0; kernel < kKernelCount; ++kernel) {
        try_shapes(kernel | kGathered | kApartH | kApartW);
      }
    }
    return best_;
  }

 private:
  // Where a halo may cost more than a plane for each tap.
  static bool reaches_far(int64_t taps, int64_t dilation) {
    return (taps - 1) * dilation > kFarReach;
  }

  bool kernel_is_wide(int kernel) const {
    const int columns = kKernels[kernel].columns;
    return columns > 32 && p_.K <= columns / 2;
  }

  void try_shapes(int variant) {
    const int blocks = kKernels[variant % 8].blocks * kWarpgroups;
    for (int across = 1; across <= blocks; across *= 2) {
      for (int down = 1; across * down <= blocks; down *= 2) {
        try_tile(variant, {down * 8, across * 8, blocks / (across * down)});
      }
    }
    // Lines: whole rows of pixels with their halo, as many as there is room for.
    const int pixels = blocks * kBlockPixels;
    const Tile one = make_tile(p_, variant, {1, 1, 1}, 1);
    int64_t last = 0;
    try_lines(variant, pixels, pixels - one.w.reach, one);
    for (int64_t parts = ceil_divide(p_.Q, pixels); parts <= kMostParts; ++parts) {
      const int64_t columns = ceil_divide(p_.Q, parts);
      if (columns == last) continue;
      if (columns < 4 && last > 0) break;
      last = columns;
      try_lines(variant, pixels, columns, one);
    }
  }

  void try_lines(int variant, int64_t pixels, int64_t columns, const Tile& one) {
    if (columns < 1 || columns > pixels) return;
    const int64_t pitch = columns + one.w.reach;
    const int64_t rows = std::min<int64_t>((pixels - columns) / pitch + 1, p_.P);
    try_tile(variant | kLines, {static_cast<int>(rows), static_cast<int>(columns), 1});
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
  }

  const ConvProblem& p_;
  const DeviceProperties& d_;
  bool boxed_;
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

ConvPlan propose(const ConvProblem& asked, const DeviceProperties& d) {
  const ConvProblem p = as_one_row(asked);
  const Choice choice = Search(p, d).best();
  const Tile& t = choice.tile;
  ConvPlan plan;
  plan.variant = kKernels[t.kernel].name;
  plan.variant_index = choice.variant;
  plan.tile[0] = t.rows;
  plan.tile[1] = t.columns;
  plan.tile[2] = t.images;
  plan.splits = t.splits;
  plan.block = kThreads;
  plan.wide_index = needs_wide_index(asked);
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

}  // namespace

ConvProblem as_one_row(ConvProblem p) {
  const bool dense = p.x_strides == dense_strides(p.x_sizes(), Layout::kNhwc) &&
                     p.y_strides == dense_strides(p.y_sizes(), Layout::kNhwc);
  const int64_t pixels = p.N * p.H * p.W;
  if (!p.is_pointwise() || !dense || pixels > INT32_MAX) return p;
  p.N = p.H = p.P = 1;
  p.W = p.Q = pixels;
  p.x_strides = dense_strides(p.x_sizes(), Layout::kNhwc);
  p.y_strides = dense_strides(p.y_sizes(), Layout::kNhwc);
  return p;
}

Tile tile_of(const ConvProblem& p, const ConvPlan& plan) {
  Tile t = make_tile(p, plan.variant_index, plan.tile, plan.splits);
  choose_stages(p, plan.shared_bytes, t);
  return t;
}

int staging(const ConvProblem& p, const Tile& t) {
  const int columns = kKernels[t.kernel].columns;
  if (t.boxed_out) return kWarpgroups * t.slabs(element_size(p.dtype)) * kSlabBytes;
  if (element_size(p.dtype) == 4) return 0;
  return 4 * kWarpgroups * std::max(columns * 48, 16 * (columns * 2 + 16));
}

bool output_is_boxed(const ConvProblem& p, const Tile& t) {
  const int64_t size = element_size(p.dtype);
  // A box is a square, or a whole block of a line without a halo.
  const bool boxes = !t.lines || (t.rows == 1 && t.w.reach == 0 && t.columns % kBlockPixels == 0);
  return boxes && p.K * size % 16 == 0 && kKernels[t.kernel].columns * size % kRowBytes == 0 &&
         dense_layout(p.y_sizes(), p.y_strides) == Layout::kNhwc;
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

extern const Family family;
const Family family{"implicit_gemm", can_implement, propose};

}  // namespace customconv::implicit_gemm
