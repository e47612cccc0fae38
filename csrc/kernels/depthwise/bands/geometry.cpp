// The convolution as the kernels see it, and how blocks share it.
#include "kernels/depthwise/bands/geometry.h"

#include <algorithm>
#include <array>

#include "plan/plan.h"

namespace customconv::depthwise::bands {

namespace {

int64_t band_blocks(int64_t taps, int64_t shift) {
  return ceil_divide(taps + shift + kPieceColumns - 1, kPieceColumns);
}

// Lays out rows so that eight pieces of so many rows lie in eight different banks of sixteen bytes,
// if they can; pieces are numbered by rows, columns and images.
Planes planes_of(const Tile& tile, int64_t height, int64_t rows, int64_t blocks) {
  Planes planes{rows, blocks, 0, 0, 9};
  const int64_t pieces = tile.rows * tile.columns * tile.images;
  const int64_t groups = std::min<int64_t>(ceil_divide(pieces, 8), 2);
  for (int64_t plane_pad = 0; plane_pad < (tile.images > 1 ? 8 : 1); ++plane_pad) {
    for (int64_t pitch = blocks; pitch < blocks + 8; ++pitch) {
      const int64_t plane = rows * pitch + plane_pad;
      int64_t wavefronts = 0;
      for (int64_t group = 0; group < groups; ++group) {
        std::array<int, 8> of_a_bank{};
        for (int64_t i = group * 8; i < std::min(group * 8 + 8, pieces); ++i) {
          const int64_t row = i % tile.rows, column = i / tile.rows % tile.columns;
          const int64_t image = i / tile.rows / tile.columns;
          const int64_t place = row * height * pitch + column + image * plane;
          ++of_a_bank[static_cast<size_t>(place % 8)];
        }
        wavefronts += *std::max_element(of_a_bank.begin(), of_a_bank.end());
      }
      const double mean = static_cast<double>(wavefronts) / static_cast<double>(groups);
      if (mean >= planes.wavefronts) continue;
      planes.pitch = pitch * kBlockBytes;
      planes.plane = plane * kBlockBytes;
      planes.wavefronts = mean;
      if (wavefronts == groups) return planes;
    }
  }
  return planes;
}

TileCount tiles_of(const Geometry& g, const Tile& tile, int64_t height, int64_t channels) {
  return {ceil_divide(g.C, channels), ceil_divide(g.P, tile.rows * height),
          ceil_divide(g.Q, tile.columns * kPieceColumns), ceil_divide(g.N, tile.images)};
}

}  // namespace

int64_t section_count(int64_t taps, int64_t shift) {
  return ceil_divide(band_blocks(taps, shift), kMostBlocks);
}
int section_blocks(int64_t taps, int64_t shift) {
  const int64_t each = ceil_divide(band_blocks(taps, shift), section_count(taps, shift));
  return static_cast<int>(std::max<int64_t>(each, kLeastBlocks));
}

Geometry geometry_of(const ConvProblem& p) {
  Geometry g{};
  const bool dgrad = p.pass == Pass::kDgrad;
  g.N = p.N;
  g.C = p.C;
  g.H = dgrad ? p.P : p.H;
  g.W = dgrad ? p.Q : p.W;
  g.P = dgrad ? p.H : p.P;
  g.Q = dgrad ? p.W : p.Q;
  g.R = p.R;
  g.S = p.S;
  g.pad_h = dgrad ? p.R - 1 - p.pad_h : p.pad_h;
  g.pad_w = dgrad ? p.S - 1 - p.pad_w : p.pad_w;
  g.in = dgrad ? p.y_strides : p.x_strides;
  g.out = dgrad ? p.x_strides : p.y_strides;
  g.in_aligned = dgrad ? p.y_aligned : p.x_aligned;
  g.out_aligned = dgrad ? p.x_aligned : p.y_aligned;
  const int64_t sign = dgrad ? -1 : 1;
  g.weight_c = p.w_strides[0];
  g.weight_r = sign * p.w_strides[2];
  g.weight_s = sign * p.w_strides[3];
  if (dgrad) g.weight_offset = (p.R - 1) * p.w_strides[2] + (p.S - 1) * p.w_strides[3];
  return g;
}

// Rows of planes are copied by units that begin where the image's do.
int64_t shift_of(const Geometry& g, int unit) {
  const int64_t rest = -g.pad_w % unit;
  return rest < 0 ? rest + unit : rest;
}

int unit_of(const Shape5& strides, const Shape5& sizes, bool aligned) {
  const auto fits = [&](int64_t unit) {
    if (!aligned || strides[3] != 1 || sizes[3] % unit != 0) return false;
    for (size_t i = 0; i < 3; ++i) {
      if (sizes[i] > 1 && strides[i] % unit != 0) return false;
    }
    return true;
  };
  return fits(8) ? 8 : fits(4) ? 4 : fits(2) ? 2 : 1;
}

Work work_of(const Geometry& g, const BandsPlan& v) {
  const Tile tile = tile_of(v);
  Work w{};
  w.shift = v.source == Source::kPlanes ? shift_of(g, v.unit) : 0;
  w.sections = section_count(g.S, w.shift);
  w.pieces = tile.rows * tile.columns * tile.images;
  w.items = ceil_divide(w.pieces, kItemPieces);
  w.channels_at_once = std::clamp<int64_t>(kMostWarps / w.items, 1, v.channels);
  w.threads = static_cast<int>(w.items * w.channels_at_once * 32);
  const int64_t out_rows = tile.rows * kPieceRows;
  w.in_rows = std::min(out_rows + g.R - 1, g.H);
  w.in = planes_of(tile, kPieceRows, std::max(w.in_rows, out_rows),
                   tile.columns + w.sections * v.blocks - 1);
  w.zeros = w.in.blocks * kBlockBytes;
  // Twice, so that a pair of taps lies in one word wherever it begins, with room for a block of
  // zeros in front.
  w.filter_pitch = 2 * (w.sections * v.blocks + 1) * kBlockBytes;
  w.filter_rows = g.R + g.R % 2 * (v.blocks % 2);
  w.filter = w.filter_rows * w.filter_pitch;
  w.tiles = tiles_of(g, tile, kPieceRows, v.channels);
  w.buffer = v.channels * tile.images * w.in.plane + (v.channels > 8 ? kShiftBytes : 0);
  const int64_t buffers = v.source == Source::kPlanes && w.tiles.of_a_channel() > 1 ? 2 : 1;
  w.shared_bytes = v.channels * w.filter + w.zeros + buffers * w.buffer;
  return w;
}

int64_t gradient_sections(int64_t taps, int64_t shift) {
  constexpr int64_t kMost = section_taps(kMostPairs);
  return std::max<int64_t>(ceil_divide(taps + shift - 1, kMost), 1);
}
int gradient_pairs(int64_t taps, int64_t shift) {
  if (gradient_sections(taps, shift) > 1) return kMostPairs;
  return static_cast<int>(ceil_divide(taps + shift - 1 + kPieceColumns, 2 * kPieceColumns));
}

LaunchShape shape_of(const Work& w, const BandsPlan& v) {
  return {w.tiles.channels * v.shares, w.threads, static_cast<int>(w.shared_bytes), 0};
}

GradientWork gradient_work_of(const Geometry& g, const BandGradientsPlan& v) {
  const Tile tile = tile_of(v);
  GradientWork w{};
  w.shift = v.source == Source::kPlanes ? shift_of(g, v.unit) : 0;
  w.sections = gradient_sections(g.S, w.shift);
  w.pieces = tile.rows * tile.columns * tile.images;
  w.items = ceil_divide(w.pieces, kItemPieces);
  const int64_t tap_rows = ceil_divide(g.R, v.taps);
  w.units = v.channels * tap_rows * w.sections;
  w.slices = std::clamp<int64_t>(kMostWarps / w.units, 1, w.items);
  const int64_t rows = tile.rows * v.height;
  const int64_t beyond = (w.sections - 1) * (section_taps(v.pairs) / kPieceColumns);
  w.x = planes_of(tile, v.height, std::min(rows + tap_rows * v.taps - 1, g.H),
                  tile.columns + beyond + 2 * v.pairs - 1);
  w.dy = planes_of(tile, v.height, rows, tile.columns);
  w.tiles = tiles_of(g, tile, v.height, v.channels);
  const int64_t totals = v.channels * w.slices * g.R * g.S * 4;
  w.zeros = w.x.blocks * kBlockBytes;
  const int64_t sums = kMostWarps * scratch_bytes(v.pairs) + totals;
  w.before = ceil_divide(sums, kBlockBytes) * kBlockBytes + w.zeros;
  w.buffer = v.channels * tile.images * (w.x.plane + w.dy.plane);
  const int64_t buffers = v.source == Source::kPlanes && w.tiles.of_a_channel() > 1 ? 2 : 1;
  w.shared_bytes = w.before + buffers * w.buffer;
  return w;
}

LaunchShape shape_of(const ConvProblem& p, const GradientWork& w, int64_t splits) {
  return {w.tiles.channels * splits, kMostWarps * 32, static_cast<int>(w.shared_bytes),
          splits * p.w_count() * 4};
}

}  // namespace customconv::depthwise::bands
