#include "kernels/implicit_gemm/sm90/packed.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace customconv::implicit_gemm::sm90 {

namespace {

constexpr int64_t kChunkBytes = 32 << 20;      // of a part's workspace, to stay in the cache
constexpr int64_t kMostImageBytes = 48 << 20;  // of an image's, if its parts need all of it
// A volume's part may have more: slices are large, and those at its ends are packed twice.
constexpr int64_t kVolumeBytes = 256 << 20;
constexpr int64_t kMostVolumeBytes = int64_t{2} << 30;  // of one that computes a single slice
constexpr int kLeastHalfBits = 3;                       // of a row of 64 bytes
constexpr int64_t kLeastHalves = 1 << kLeastHalfBits;
constexpr int64_t kPixelUnit = 8;  // of a chunk's rows or columns: outputs stay aligned

// One dimension of an image or a volume, of a problem's input and output.
struct Axis {
  int64_t *in, *out, *pad;
  int64_t taps, stride, dilation;
  int64_t x_stride, y_stride;
};
Axis chunked_axis(ConvProblem& p) {
  if (p.is_deep()) {
    return {&p.D, &p.O, &p.pad_d, p.T, p.stride_d, p.dilation_d, p.x_strides[4], p.y_strides[4]};
  }
  if (p.H == 1 && p.P == 1 && p.R == 1) {
    return {&p.W, &p.Q, &p.pad_w, p.S, p.stride_w, p.dilation_w, p.x_strides[3], p.y_strides[3]};
  }
  return {&p.H, &p.P, &p.pad_h, p.R, p.stride_h, p.dilation_h, p.x_strides[2], p.y_strides[2]};
}
// Pixels of what is computed.
int64_t extent_of(ConvProblem p) {
  const Axis axis = chunked_axis(p);
  return p.pass == Pass::kDgrad ? *axis.in : *axis.out;
}

// Parts of an image.
int64_t bands_of(const ConvProblem& asked, const Chunk& chunk) {
  return chunk.pixels == 0 ? 1 : ceil_divide(extent_of(asked), chunk.pixels);
}

// Cuts out `count` rows of what is computed, from `first` on, with what they need.
void cut(Part& part, int64_t first, int64_t count) {
  const Axis axis = chunked_axis(part.problem);
  const int64_t reach = (axis.taps - 1) * axis.dilation;
  if (part.problem.pass == Pass::kDgrad) {
    const int64_t begin = std::max<int64_t>(first + *axis.pad - reach, 0) / axis.stride;
    const int64_t end = std::min(*axis.out, (first + count - 1 + *axis.pad) / axis.stride + 1);
    *axis.in = count;
    *axis.out = end - begin;
    *axis.pad += first - begin * axis.stride;
    part.x += first * axis.x_stride;
    part.y += begin * axis.y_stride;
  } else {
    const int64_t tap = first * axis.stride - *axis.pad;  // the first
    const int64_t begin = std::max<int64_t>(tap, 0);
    const int64_t end = std::min(*axis.in, tap + (count - 1) * axis.stride + reach + 1);
    *axis.in = end - begin;
    *axis.out = count;
    *axis.pad = begin - tap;
    part.x += begin * axis.x_stride;
    part.y += first * axis.y_stride;
  }
}

constexpr int64_t kSectorBytes = 32;  // that memory is read by

bool is_empty(const ConvProblem& p) {
  return p.H < 1 || p.W < 1 || p.P < 1 || p.Q < 1 || p.D < 1 || p.O < 1;
}

// Makes channels of all taps.
void flatten(Packed& p) {
  p.tap_channels = p.C;
  p.row_taps = p.S;
  p.C *= p.R * p.S;
  p.H = p.P;
  p.W = p.Q;
  p.R = p.S = p.taps_h = p.taps_w = 1;
  p.stride_h = p.stride_w = p.dilation_h = p.dilation_w = 1;
  p.pad_h = p.pad_w = 0;
  p.phase[0].R = p.phase[0].S = p.phase[0].tap_h = 1;
}

}  // namespace

int64_t input_pixel_stride(const ConvProblem& p) {
  return p.W > 1 ? p.x_strides[3] : p.H > 1 || p.D == 1 ? p.x_strides[2] : p.x_strides[4];
}

bool input_follows(const ConvProblem& p) {
  const Shape5& x = p.x_strides;
  const int64_t pixel = input_pixel_stride(p);
  const bool rows = p.H == 1 || p.W == 1 || x[2] == p.W * pixel;
  const bool slices = p.D == 1 || p.H * p.W == 1 || x[4] == p.H * p.W * pixel;
  return rows && slices && x[0] >= 0 && x[1] >= 0 && pixel > 0 &&
         (p.D * p.H * p.W == 1 || pixel == 1 || p.C == 1 || x[1] == 1);
}

bool planes_are_legal(const Forward& p) {
  const Shape5& x = p.x_strides;
  const int64_t unit = 16 / element_size(p.dtype), plane = (p.H - 1) * x[2] + p.W;
  return (p.W == 1 || x[3] == 1) && (p.H == 1 || x[2] > 0) && (p.C == 1 || x[1] > 0) &&
         (p.N == 1 || (x[0] > 0 && x[0] % unit == 0)) && plane <= INT32_MAX / 2;
}

Packed forward_of(const ConvProblem& asked, Form form) {
  const Packing packing = form.packing;
  Packed p{form.joins_phases ? join_phases(asked) : as_forward(asked)};
  const bool patches = packing == Packing::kPatches || packing == Packing::kGathered;
  const bool flattens = p.groups == 1 && !p.has_phases() && !p.joins_phases && p.R * p.S > 1;
  const bool packs = p.is_deep()
                         ? !patches && input_follows(p) && (form.halves || !input_is_legal(p))
                     : patches ? flattens
                               : form.halves || !input_is_legal(p);
  // A stage's row has a run of each half.
  const auto halve = [&p, &form] {
    p.channels = p.group_C();
    if (!form.halves) return;
    p.half_bits = p.channels <= kLeastHalves ? kLeastHalfBits : kLeastHalfBits + 1;
    p.C = 2 * p.groups * round_up(p.channels, int64_t{1} << p.half_bits);
  };
  if (packing == Packing::kNone || !packs) {
    static_cast<Forward&>(p) = as_one_row(p);
    halve();
    return p;
  }
  p.packing = packing;
  p.source = p;
  if (patches) flatten(p);
  halve();
  const int64_t size = element_size(p.dtype);
  // Whole sectors: pixels that begin within one are read more slowly.
  const int64_t unit = p.C * size > kSectorBytes ? kSectorBytes : 16;
  const int64_t pixel = round_up(p.C, unit / size);
  p.x_strides = dense_strides({p.N, pixel, p.H, p.W, p.D}, Layout::kNhwc);
  p.x_aligned = true;
  return p;
}

bool can_exchange(const ConvProblem& p) {
  const auto is_dense = [](const Shape5& sizes, const Shape5& strides) {
    return dense_layout(sizes, strides) != Layout::kOther;
  };
  return p.groups == 1 && is_dense(p.x_sizes(), p.x_strides) &&
         is_dense(p.y_sizes(), p.y_strides) && is_dense(p.w_sizes(), p.w_strides) &&
         p.C * p.H * p.W <= INT32_MAX / 4 && p.K * p.P * p.Q <= INT32_MAX / 4;
}

Pieces pieces_of(const ConvProblem& p, const Exchange& exchange) {
  // From the first pixel that a tap meets to the last, in im2col mode.
  constexpr int64_t kMostReach = 120;
  const auto piece = [](int64_t outputs, int64_t pieces, int64_t stride) {
    const int64_t most = std::max<int64_t>(kMostReach / stride, 1);
    return ceil_divide(outputs, std::max(pieces, ceil_divide(outputs, most)));
  };
  Pieces of{};
  of.P = piece(p.P, exchange.bands, p.stride_h);
  of.Q = piece(p.Q, 1, p.stride_w);
  of.bands = ceil_divide(p.P, of.P);
  of.columns = ceil_divide(p.Q, of.Q);
  of.H = (of.P - 1) * p.stride_h + (p.R - 1) * p.dilation_h + 1;
  of.W = (of.Q - 1) * p.stride_w + (p.S - 1) * p.dilation_w + 1;
  return of;
}

Packed exchanged_of(const ConvProblem& asked, const Exchange& exchange) {
  const Pieces pieces = pieces_of(asked, exchange);
  const int64_t images = ceil_divide(asked.N * pieces.bands * pieces.columns, exchange.groups);
  const int half_bits = images <= kLeastHalves ? kLeastHalfBits : kLeastHalfBits + 1;
  const int64_t channels = 2 * round_up(images, int64_t{1} << half_bits);
  ConvProblem f = asked;
  f.pass = Pass::kFprop;
  f.groups = exchange.groups;
  f.N = asked.C;
  f.C = exchange.groups * channels;
  f.H = pieces.H;
  f.W = pieces.W;
  f.K = exchange.groups * asked.K;
  f.R = pieces.P;
  f.S = pieces.Q;
  f.P = asked.R;
  f.Q = asked.S;
  f.pad_h = f.pad_w = 0;  // pieces have what is outside their image
  std::swap(f.stride_h, f.dilation_h);
  std::swap(f.stride_w, f.dilation_w);
  f.x_strides = dense_strides(f.x_sizes(), Layout::kNhwc);
  f.w_strides = dense_strides(f.w_sizes(), Layout::kNhwc);
  const Shape5& w = asked.w_strides;
  f.y_strides = {w[1], w[0], w[2], w[3]};
  f.x_aligned = f.w_aligned = true;
  f.y_aligned = exchange.groups > 1 || asked.w_aligned;
  Packed p{as_forward(f)};
  p.packing = Packing::kImages;
  p.source = asked;
  p.channels = images;
  p.half_bits = half_bits;
  return p;
}

int64_t packed_bytes(const Packed& p) {
  return round_up(p.packed() * element_size(p.dtype), kAlignment);
}
int64_t woven_bytes(const Packed& p) {
  return round_up(p.woven * element_size(p.dtype), kAlignment);
}

int64_t count_parts(const ConvProblem& asked, const Chunk& chunk) {
  if (chunk.images == 0) return 1;
  return ceil_divide(asked.N, chunk.images) * bands_of(asked, chunk);
}

Part part_of(const ConvProblem& asked, const Chunk& chunk, int64_t index) {
  Part part{asked, 0, 0};
  if (chunk.images == 0) return part;
  const int64_t bands = bands_of(asked, chunk);
  const int64_t n = index / bands * chunk.images, first = index % bands * chunk.pixels;
  part.problem.N = std::min(chunk.images, asked.N - n);
  part.x = n * asked.x_strides[0];
  part.y = n * asked.y_strides[0];
  if (bands > 1) cut(part, first, std::min(chunk.pixels, extent_of(asked) - first));
  const int64_t unit = 16 / element_size(asked.dtype);
  part.problem.x_aligned = asked.x_aligned && part.x % unit == 0;
  part.problem.y_aligned = asked.y_aligned && part.y % unit == 0;
  return part;
}

int64_t widest_part(const ConvProblem& asked, const Chunk& chunk) {
  const int64_t bands = bands_of(asked, chunk);
  const auto input = [&](int64_t index) {
    const ConvProblem part = part_of(asked, chunk, index).problem;
    return part.pass == Pass::kDgrad ? part.y_count() : part.x_count();
  };
  int64_t widest = 0;
  for (int64_t i = 1; i < bands; ++i) {
    if (input(i) > input(widest)) widest = i;
  }
  return widest;
}

int64_t workspace_bytes(const ConvProblem& asked, const Chunk& chunk, Form form) {
  const auto part = [&](int64_t index) {
    return forward_of(part_of(asked, chunk, index).problem, form);
  };
  const Packed first = part(0);  // no other computes more
  const int64_t widest = widest_part(asked, chunk);
  const int64_t packed = packed_bytes(widest == 0 ? first : part(widest));
  return std::max(packed_bytes(first), packed) + woven_bytes(first);
}

namespace {

// A chunk of a volume whose workspace has too many bytes. In the cache it has to have so many
// slices that those which two chunks pack cost little.
bool choose_slices(const ConvProblem& asked, Form form, int64_t bytes, Chunk& chunk) {
  constexpr int64_t kLeastReaches = 4;
  const int64_t extent = extent_of(asked), reach = (asked.T - 1) * asked.dilation_d;
  const auto fits = [&](int64_t slices, int64_t most) {
    chunk = {1, slices};
    const auto reads_nothing = [&](int64_t i) {
      return is_empty(part_of(asked, chunk, i).problem);
    };
    return !reads_nothing(0) && !reads_nothing(bands_of(asked, chunk) - 1) &&
           workspace_bytes(asked, chunk, form) <= most;
  };
  for (const int64_t most : {kChunkBytes, kVolumeBytes}) {
    const int64_t least = most == kChunkBytes ? kLeastReaches * reach : 1;
    for (int64_t bands = ceil_divide(bytes, most); bands <= extent; ++bands) {
      const int64_t slices = ceil_divide(extent, bands);
      if (slices < least) break;
      if (fits(slices, most)) return true;
    }
  }
  return fits(1, kMostVolumeBytes);
}

}  // namespace

bool choose_chunk(const ConvProblem& asked, Form form, Chunk& chunk) {
  chunk = {};
  const int64_t image = workspace_bytes(asked, {1, 0}, form);
  if (image == 0) return true;
  if (image <= kChunkBytes) {
    const int64_t most = std::clamp<int64_t>(kChunkBytes / image, 1, asked.N);
    chunk.images = ceil_divide(asked.N, ceil_divide(asked.N, most));
    return true;
  }
  const int64_t extent = extent_of(asked);
  if (asked.is_deep()) return choose_slices(asked, form, image, chunk);
  // Phases of an input gradient are the same in all parts.
  const bool gradient = asked.pass == Pass::kDgrad;
  const int64_t unit = kPixelUnit * (gradient ? std::max(asked.stride_h, asked.stride_w) : 1);
  for (int64_t bands = ceil_divide(image, kChunkBytes); bands * unit <= extent; ++bands) {
    chunk = {1, round_up(ceil_divide(extent, bands), unit)};
    const int64_t last = bands_of(asked, chunk) - 1;
    const auto reads_nothing = [&](int64_t i) {
      return is_empty(part_of(asked, chunk, i).problem);
    };
    if (reads_nothing(0) || reads_nothing(last)) break;
    if (last > 0 && workspace_bytes(asked, chunk, form) <= kChunkBytes) return true;
  }
  chunk = {1, 0};
  return image <= kMostImageBytes;
}

}  // namespace customconv::implicit_gemm::sm90
