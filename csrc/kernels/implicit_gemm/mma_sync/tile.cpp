// The geometry of tiles: what they hold, in how much shared memory.
#include "kernels/implicit_gemm/mma_sync/tile.h"

#include <algorithm>
#include <numeric>

#include "kernels/implicit_gemm/mma_sync/payload.h"
#include "plan/plan.h"

namespace customconv::implicit_gemm::mma_sync {

namespace {

constexpr int kMostBox = 256;            // pixels of a plane of boxes, along a dimension
constexpr int64_t kPageBytes = 2 << 20;  // of memory

// An axis of boxes: what a stride skips is not loaded.
Axis boxed_axis(int64_t taps, int64_t stride, int64_t dilation, bool apart) {
  const int64_t period = apart ? taps : stride / std::gcd(stride, dilation);
  const int64_t planes = std::min(taps, period);
  const int64_t step = apart ? 0 : planes * dilation / stride;
  return {
      static_cast<int>(planes), static_cast<int>(step),
      static_cast<int>(planes < taps ? ceil_divide(taps, planes) - 1 : 0) * static_cast<int>(step)};
}

// An axis of rows: every pixel between the first tap and the last is loaded.
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
    const bool strides =
        fits(p.N, p.x_strides[0]) && fits(p.C, p.x_strides[1]) && fits(p.H, p.x_strides[2]);
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
  if (t.positions < kTooMany)
    t.stage_bytes = static_cast<int>(round_up(t.positions * kRowBytes, 1024));
}

// Rows of output that a tile of a run takes part in, wherever it begins.
int64_t run_outputs(const ConvProblem& p, const Tile& t) {
  const int64_t pairs = t.kind().pixels / 2;
  const int64_t latest = t.row.pairs - std::gcd(pairs, int64_t{t.row.pairs});
  return std::min((latest + pairs - 1) / t.row.pairs + 1, p.N * p.P);
}
// Rows of a plane that it needs.
int64_t run_rows(const ConvProblem& p, const Tile& t) {
  const int64_t rows = run_outputs(p, t);
  const int64_t more_images = std::min((p.P + rows - 2) / p.P, p.N - 1);
  const int64_t gap = std::max<int64_t>(t.row.period - p.P * t.row.per_output, 0);
  return (rows - 1) * t.row.per_output + t.h.reach + 1 + more_images * gap;
}

// Fills in the rows of a tile's plane, whose copies are known.
void lay_out_plane(const ConvProblem& p, const ConvProblem& asked, Tile& t) {
  const int64_t size = element_size(p.dtype);
  Rows& row = t.row;
  const double pitch = (row.pairs * 2.0 - 1) * static_cast<double>(p.stride_w) + t.w.reach +
                       (row.interleaved ? static_cast<double>(asked.C) : 1) + row.slack;
  const double rows = t.shape == Shape::kRun ? static_cast<double>(run_rows(p, t))
                                             : (t.rows - 1.0) * row.per_output + t.h.reach + 1;
  if (pitch * rows > kTooMany / 2) {
    t.positions = kTooMany;
    return;
  }
  const auto unit = std::max<int64_t>(row.vector / size, 2);
  t.pitch = static_cast<int>(round_up(static_cast<int64_t>(pitch), unit));
  t.plane_rows = static_cast<int>(rows);
  t.positions = t.pitch * t.plane_rows;
}

// Fills in a tile of rows.
void lay_out_rows(const ConvProblem& asked, bool apart_h, bool apart_w, Tile& t) {
  t.row.interleaved = t.is_flat() && asked.C > 1 && asked.x_strides[1] == 1 &&
                      asked.x_strides[3] == asked.C &&
                      (asked.W + asked.pad_w) * asked.C <= INT32_MAX / 4;
  const ConvProblem p = source_problem(asked, t);
  const int64_t size = element_size(p.dtype);
  t.h = row_axis(p.R, p.dilation_h, apart_h);
  t.w = row_axis(p.S, p.dilation_w, apart_w);
  Rows& row = t.row;
  const bool compact = t.fetch == Fetch::kPieces;  // no rows, but pixels one after the other
  row.vector = vector_of(p, compact, t.columns, compact ? apart_h || apart_w : apart_w);
  const bool in_rows = p.W == 1 || p.x_strides[3] == 1;
  row.pairs = (t.columns + 1) / 2;
  // Several pieces make up for few taps.
  t.chunk = compact ? std::min(t.pieces, kRowBytes / kPieceBytes) : 1;
  if (t.is_flat()) t.chunk = t.pieces;
  const bool reaches = t.h.reach > 0;
  row.per_output = reaches ? static_cast<int>(p.stride_h) : 1;
  row.row_step = reaches ? 1 : static_cast<int>(p.stride_h);
  const double period = static_cast<double>(p.P - 1) * row.per_output + t.h.reach + 1;
  row.period = period < INT32_MAX ? static_cast<int>(period) : INT32_MAX;
  if (compact) {
    t.positions = t.kind().pixels;
  } else {
    row.slack = slack_of(p, row.vector);
    lay_out_plane(p, asked, t);
    // Shifting takes instructions: where 2 bytes of few channels would be copied at a time, or more
    // vectors than are listed.
    const bool many = t.positions * size / row.vector > kMostCopies;
    row.shifted = in_rows && row.vector <= 4 && (many || (t.is_flat() && row.vector < 4));
    if (row.shifted) {
      row.vector = 16;
      row.slack = 0;
      lay_out_plane(p, asked, t);
    }
    if (t.positions >= kTooMany) return;
  }
  // Lanes that fetch from several channels at a time then find them in different banks.
  const int64_t unit = 8 * size;
  row.channel_bytes = static_cast<int>(round_up(t.positions * size - unit, 2 * unit) + unit);
  const int64_t channels = t.is_flat() ? p.C : t.chunk * kPieceBytes / size;
  // A thread may fetch a pair of pixels of which it uses one, behind the last row.
  t.stage_bytes = static_cast<int>(round_up(channels * row.channel_bytes + 2 * size, 1024));
}

// What is not stages.
int64_t fixed_bytes(const Forward& p, const Tile& t) {
  return staging(p, t) + kBarrierBytes + kCopiesBytes + (t.is_flat() ? kFlatBytes : 0);
}

}  // namespace

Tile make_tile(const Forward& p, const MmaSyncPlan& plan, int64_t splits) {
  Tile t{};
  t.kernel = plan.kernel;
  t.shape = plan.shape;
  t.fetch = plan.fetch;
  t.rows = plan.tile[0];
  t.columns = plan.tile[1];
  t.images = plan.tile[2];
  t.x_stages = plan.stages[0];
  t.w_stages = plan.stages[1];
  const int64_t channels = p.group_C() * (t.is_flat() ? p.R * p.S : 1);
  t.pieces = static_cast<int>(ceil_divide(channels * element_size(p.dtype), kPieceBytes));
  t.splits = static_cast<int>(splits);
  if (t.fetch == Fetch::kShared) {
    lay_out_boxes(p, plan.apart_h, plan.apart_w, t);
  } else {
    lay_out_rows(p, plan.apart_h, plan.apart_w, t);
  }
  const int64_t size = element_size(p.dtype);
  t.tiles_k = ceil_divide(p.K, t.kind().channels);
  if (t.shape == Shape::kRun) {
    t.tiles_q = ceil_divide(p.N * p.P * t.row.pairs, t.kind().pixels / 2);
    t.tiles_p = t.tiles_n = 1;
  } else {
    t.tiles_q = ceil_divide(p.Q, t.columns);
    t.tiles_p = ceil_divide(p.P, t.rows);
    t.tiles_n = ceil_divide(p.N, t.images);
  }
  // Planes so large that each is a page of memory: few of them at a time.
  t.planes_first = t.fetch != Fetch::kShared && t.shape == Shape::kLines && stores_planes(p) &&
                   p.P * p.Q * size >= kPageBytes / 2;
  return t;
}

// Shares the memory out between the stages of the input and of the weights; false where it is too
// small. What many taps read lasts long: two stages are enough.
bool choose_stages(const Forward& p, int64_t room, Tile& t) {
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

LaunchShape shape_of(const Forward& p, const Tile& t) {
  const int64_t size = element_size(p.dtype);
  const PackedWeight weight = packed_weight(p, t);
  const int64_t packed = weight.in_place ? 0 : weight.rows * weight.row * size;
  return {t.tiles() * t.splits, kThreads,
          t.x_stages * t.stage_bytes + t.w_stages * t.weight_bytes() +
              static_cast<int>(fixed_bytes(p, t)),
          round_up(packed, 256) + p.woven * size + partial_bytes(t)};
}

bool is_legal(const Forward& p, const Tile& t) {
  // A tile is of one group.
  if (p.groups > 1 && p.group_K() % t.kind().channels != 0) return false;
  if (t.fetch == Fetch::kShared) {
    return t.positions <= kMostPositions && t.images <= kMostBox &&
           (t.pitch - 1) * p.stride_w + 1 <= kMostBox &&
           (t.plane_rows - 1) * p.stride_h + 1 <= kMostBox;
  }
  if (t.positions >= kTooMany) return false;
  const int64_t vectors = t.positions * element_size(p.dtype) / t.row.vector;
  if (t.fetch == Fetch::kTaps || t.fetch == Fetch::kOddTaps) {
    if ((t.fetch == Fetch::kOddTaps) != (t.row.slack % 2 != 0)) return false;
  }
  return vectors <= kMostCopies;
}

ConvProblem source_problem(ConvProblem p, const Tile& t) {
  if (!t.row.interleaved) return p;
  p.W *= p.C;
  p.stride_w *= p.C;
  p.pad_w *= p.C;
  p.dilation_w *= p.C;
  p.x_strides[1] = 0;
  p.x_strides[3] = 1;
  p.C = 1;
  return p;
}

PackedWeight packed_weight(const Forward& p, const Tile& t) {
  if (has_matrix(t.fetch)) return packed_matrix(p, /*transposed=*/false);
  const int64_t taps = t.is_flat() ? 1 : p.taps_h * p.taps_w;
  return {t.tiles_k * t.kind().channels, t.pieces * taps * kPieceBytes / element_size(p.dtype),
          false};
}

int staging(const Forward& p, const Tile& t) {
  const int size = static_cast<int>(element_size(p.dtype)), channels = t.kind().channels;
  if (t.fetch != Fetch::kShared && stores_planes(p)) {
    const int slabs = kBlockPixels * size / kRowBytes * channels / slab_channels(channels);
    return t.splits > 1 ? 0 : kWarpgroups * std::min(slabs, kMostSlabs) * kSlabBytes;
  }
  // Channels-last, 16 bits: each warp's sixteen pixels.
  return 4 * kWarpgroups * warp_staging(size, channels);
}

bool stores_planes(const ConvProblem& p) {
  return p.K == 1 || p.P * p.Q == 1 || p.y_strides[1] != 1;
}

}  // namespace customconv::implicit_gemm::mma_sync
