#include "kernels/implicit_gemm/sm90/packed.h"

#include <algorithm>
#include <cstdint>

#include "kernels/implicit_gemm/tile.h"

namespace customconv::implicit_gemm::sm90 {

namespace {

constexpr int64_t kChunkBytes = 32 << 20;      // of a part's workspace, to stay in the cache
constexpr int64_t kMostImageBytes = 48 << 20;  // of an image's, if its parts need all of it
constexpr int64_t kPixelUnit = 8;              // of a chunk's rows or columns: outputs stay aligned

// One dimension of an image, of a problem's input and output.
struct Axis {
  int64_t *in, *out, *pad;
  int64_t taps, stride, dilation;
  int64_t x_stride, y_stride;
};
Axis chunked_axis(ConvProblem& p) {
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

bool is_empty(const ConvProblem& p) { return p.H < 1 || p.W < 1 || p.P < 1 || p.Q < 1; }

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

bool input_is_legal(const Forward& p) {
  const int64_t unit = 16 / element_size(p.dtype);
  const auto legal = [&](int64_t size, int64_t stride) {
    return size == 1 || (stride > 0 && stride % unit == 0);
  };
  return p.x_aligned && (p.C == 1 || p.x_strides[1] == 1) && legal(p.N, p.x_strides[0]) &&
         legal(p.H, p.x_strides[2]) && legal(p.W, p.x_strides[3]);
}

bool planes_are_legal(const Forward& p) {
  const Shape4& x = p.x_strides;
  const int64_t unit = 16 / element_size(p.dtype), plane = (p.H - 1) * x[2] + p.W;
  return (p.W == 1 || x[3] == 1) && (p.H == 1 || x[2] > 0) && (p.C == 1 || x[1] > 0) &&
         (p.N == 1 || (x[0] > 0 && x[0] % unit == 0)) && plane <= INT32_MAX / 2;
}

Packed forward_of(const ConvProblem& asked, Form form) {
  const Packing packing = form.packing;
  Packed p{form.joins_phases ? join_phases(asked) : as_forward(asked)};
  const bool patches = packing == Packing::kPatches;
  const bool flattens = p.groups == 1 && !p.has_phases() && !p.joins_phases && p.R * p.S > 1;
  if (packing == Packing::kNone || (patches ? !flattens : input_is_legal(p))) {
    static_cast<Forward&>(p) = as_one_row(p);
    return p;
  }
  p.packing = packing;
  p.source = p;
  if (patches) flatten(p);
  const int64_t size = element_size(p.dtype);
  // Whole sectors: pixels that begin within one are read more slowly.
  const int64_t unit = p.C * size > kSectorBytes ? kSectorBytes : 16;
  const int64_t pixel = round_up(p.C, unit / size);
  p.x_strides = {p.H * p.W * pixel, 1, p.W * pixel, pixel};
  p.x_aligned = true;
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
