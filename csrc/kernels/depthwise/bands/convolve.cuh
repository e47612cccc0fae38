// Forward and input gradient: a block sums a tile of some channels' outputs.
#pragma once

#include "kernels/common/activate.cuh"
#include "kernels/common/channel_value.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/depthwise/bands/bands.cuh"
#include "kernels/depthwise/bands/tile.cuh"

namespace customconv::depthwise::bands {

// Filters as they lie in memory.
template <typename T>
struct Filters {
  T* data;
  int64_t c, r, s;  // strides

  __device__ T* at(int channel, int row, int column) const {
    return data + channel * c + row * r + column * s;
  }
};

template <typename T>
struct Params {
  Image<const T> in;
  Image<T> out;
  Filters<const T> weight;
  Epilogue epilogue;
  bool is_bare;  // has no epilogue
  Box in_box, out_box;
  Tiling tiling;
  int pad_h, pad_w, shift;
  int R, S, sections;
  int filter_pitch, filter;                   // bytes
  Divider<int32_t> filter_rows, filter_line;  // elements with the zeros
  Divider<int32_t> items;
  int channels_at_once;
  int tiles, each;    // of a channel, of a block
  int buffer, zeros;  // bytes of a tile, and of a row of zeros
};

// Brings the filters of a tile's channels: every row with a block of zeros in front and zeros
// behind, and the same again an element earlier.
template <int kChannels, typename T>
__device__ inline void bring_filters(const Params<T>& p, int first_channel, char* to) {
  const int line = p.filter_line.divisor(), count = kChannels * p.filter_rows.divisor() * line;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    int32_t rest = i;
    const int e = p.filter_line.split(rest), r = p.filter_rows.split(rest);
    const int s = e - kPieceColumns - p.shift;
    const bool exists = r < p.R && is_within(s, p.S);
    const T* from = exists ? p.weight.at(first_channel + rest, r, s) : p.weight.data;
    const uint16_t bits = __ldg(reinterpret_cast<const uint16_t*>(from));
    const uint16_t tap = exists ? bits : uint16_t{0};
    auto* row = reinterpret_cast<uint16_t*>(to + rest * p.filter + r * p.filter_pitch);
    row[e] = tap;
    // The first element is a zero, and what an earlier row ends with.
    row[line + (e > 0 ? e : line) - 1] = tap;
  }
}

// An output from its own taps alone: a band's zeros times what is not finite is not a number.
template <typename T>
__device__ inline float sum_taps(const Params<T>& p, const char* image, const char* filter, int h,
                                 int w) {
  const T* taps = reinterpret_cast<const T*>(filter) + kPieceColumns + p.shift;
  const T* pixels = reinterpret_cast<const T*>(image) + p.shift;
  float sum = 0;
  for (int r = max(-h, 0); r < min(p.in.H - h, p.R); ++r) {
    const T* row = pixels + r * (p.in_box.pitch / 2);
    const T* line = taps + r * (p.filter_pitch / 2);
    for (int s = max(-w, 0); s < min(p.in.W - w, p.S); ++s) {
      sum = fmaf(widen(line[s]), widen(row[s]), sum);
    }
  }
  return sum;
}

// What a lane holds of an item: of two pieces two columns of every row.
struct Holding {
  Piece pieces[2];
  int column;  // the first of two, in a piece
};

__device__ inline bool is_finite(float v) { return v * 0 == 0; }

// Changes sums one after the other, so that there is one piece of code for all. Where they are:
// image, row and column, in the tile.
template <typename Change>
__device__ inline void change_each(const Holding& holding, float (&sum)[kPieceRows][4],
                                   Change change) {
#pragma unroll 1
  for (int number = 0; number < kPieceRows * 4; ++number) {
    const Piece near = holding.pieces[0], far = holding.pieces[1];
    const bool is_near = number % 4 < 2;
    float value = 0;
#pragma unroll
    for (int i = 0; i < kPieceRows * 4; ++i) value = i == number ? sum[i / 4][i % 4] : value;
    value = change(value, is_near ? near.n : far.n, (is_near ? near.h : far.h) + number / 4,
                   (is_near ? near.w : far.w) + holding.column + number % 2);
#pragma unroll
    for (int i = 0; i < kPieceRows * 4; ++i)
      sum[i / 4][i % 4] = i == number ? value : sum[i / 4][i % 4];
  }
}

// Where a sum is not finite, sums again.
template <typename T>
__device__ inline void make_exact(const Params<T>& p, const Place& place, const Holding& holding,
                                  const char* planes, const char* filter,
                                  float (&sum)[kPieceRows][4]) {
  float probe = 0;
#pragma unroll
  for (int t = 0; t < kPieceRows; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) probe = fmaf(sum[t][i], 0.0f, probe);
  }
  if (is_finite(probe)) return;
  change_each(holding, sum, [&](float value, int n, int h, int w) {
    if (is_finite(value)) return value;
    const int row = h - max(p.pad_h - place.h, 0);
    const char* image = planes + n * p.in_box.plane + row * p.in_box.pitch + w * 2;
    return sum_taps(p, image, filter, place.h + h - p.pad_h, place.w + w - p.pad_w);
  });
}

template <typename T>
__device__ inline void apply_epilogue(const Params<T>& p, const Place& place,
                                      const Holding& holding, float (&sum)[kPieceRows][4]) {
  const Epilogue& e = p.epilogue;
  float scale = 1, bias = 0;
  if (e.scale != nullptr) scale = channel_value<T>(e, e.scale, place.c);
  if (e.bias != nullptr) bias = channel_value<T>(e, e.bias, place.c);
#pragma unroll
  for (int t = 0; t < kPieceRows; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[t][i] = fmaf(sum[t][i], scale, bias);
  }
  const T* residual = static_cast<const T*>(e.residual);
  const auto add_residual = [&] {
    change_each(holding, sum, [&](float value, int n, int h, int w) {
      n += place.n;
      h += place.h;
      w += place.w;
      if (n >= p.out.N || h >= p.out.H || w >= p.out.W) return value;
      return value + widen(residual[p.out.at(n, place.c, h, w) - p.out.data]);
    });
  };
  if (residual != nullptr && !e.residual_last) add_residual();
  activate<kPieceRows * 4>(sum[0], e.activation, e.negative_slope);
  if (residual != nullptr && e.residual_last) add_residual();
}

// Puts what a lane holds into its places of the tile, rounded.
template <typename T>
__device__ inline void stage_results(const Params<T>& p, const Holding& holding,
                                     const float (&sum)[kPieceRows][4], char* planes) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const Piece& piece = holding.pieces[i / 2];
    if (!piece.exists) continue;
    char* to = planes + piece.in(p.out_box) + holding.column * 2;
#pragma unroll
    for (int t = 0; t < kPieceRows; ++t) {
      *reinterpret_cast<uint32_t*>(to + t * p.out_box.pitch) =
          pack_pair<T>(sum[t][i], sum[t][i + 1]);
    }
  }
}

template <typename T, int kBlocks, Source kSource, int kChannels>
__global__ void __launch_bounds__(kMostWarps * 32, shared_by(kBlocks))
    convolve(const __grid_constant__ Params<T> p) {
  extern __shared__ __align__(16) char shared[];
  const Tiling& tiling = p.tiling;
  const int images = tiling.images.divisor();
  constexpr bool kAhead = kSource == Source::kPlanes;  // threads need not wait for what they copy
  int32_t share = static_cast<int>(blockIdx.x);
  const int first_channel = tiling.channels.split(share) * kChannels;
  const int begin = share * p.each, end = min(begin + p.each, p.tiles);
  char* filters = shared;
  char* zeros = shared + kChannels * p.filter;
  char* buffers = zeros + p.zeros;
  const auto place_at = [&](int tile) {
    Place place = place_of(tiling, tile);
    place.c = first_channel;
    return place;
  };
  const auto bring_tile = [&](int tile, char* to) {
    Place place = place_at(tile);
    place.h = max(place.h - p.pad_h, 0);
    place.w -= p.pad_w + p.shift;
    bring<kSource, kChannels>(p.in, p.in_box, tiling.images, place, to);
  };
  bring_tile(begin, buffers);
  ptx::commit_copies();
  bring_filters<kChannels>(p, first_channel, filters);
  for (int i = threadIdx.x; i < p.zeros / 16; i += blockDim.x) {
    reinterpret_cast<uint4*>(zeros)[i] = uint4{};
  }

  const int lane = static_cast<int>(threadIdx.x) % 32;
  int32_t own_channel = static_cast<int>(threadIdx.x) / 32;
  const int first_piece = p.items.split(own_channel) * kItemPieces;
  const Piece read = piece_of(tiling, first_piece + lane % kItemPieces);
  const int half = lane / kItemPieces * kBlockBytes;
  const Holding holding{
      {piece_of(tiling, first_piece + lane / 4), piece_of(tiling, first_piece + lane / 4 + 8)},
      lane % 4 * 2};
  for (int tile = begin; tile < end; ++tile) {
    char* buffer = buffers + (kAhead ? (tile - begin) % 2 * p.buffer : 0);
    if constexpr (kAhead) {
      if (tile + 1 < end) bring_tile(tile + 1, buffers + (tile + 1 - begin) % 2 * p.buffer);
      ptx::commit_copies();
      ptx::await_groups<1>();
    }
    __syncthreads();
    Place place = place_at(tile);
    for (int first = 0; first < kChannels; first += p.channels_at_once) {
      const int channel = first + own_channel;
      char* planes = buffer + channel_place<kSource, kChannels>(p.in_box, images, channel);
      float sum[kPieceRows][4] = {};
      if (channel < kChannels) {
        const char* filter = filters + channel * p.filter;
        Piece from = read;
        from.h -= max(p.pad_h - place.h, 0);  // rows above the image are not there
        RowWalk walk{ptx::shared_address(planes) + from.in(p.in_box) + half,
                     ptx::shared_address(zeros) + from.w * 2 + half, p.in_box.pitch, from.h,
                     p.in_box.rows.divisor()};
        const uint32_t bands = ptx::shared_address(filter) + band_place(lane, p.filter_pitch);
        for (int section = 0; section < p.sections; ++section) {
          add_section<T, kBlocks>(walk, bands + section * kBlocks * kBlockBytes, p.filter_pitch,
                                  p.filter_rows.divisor(), sum);
          walk.address += kBlocks * kBlockBytes;
          walk.zeros += kBlocks * kBlockBytes;
        }
        make_exact(p, place, holding, planes, filter, sum);
        place.c = first_channel + channel;
        if (!p.is_bare) apply_epilogue(p, place, holding, sum);
      }
      __syncthreads();  // results take the place of what they were summed from
      if (channel < kChannels) stage_results(p, holding, sum, planes);
    }
    __syncthreads();
    place.c = first_channel;
    store<kSource, kChannels>(p.out, p.out_box, tiling.images, place, buffer);
    __syncthreads();
    if constexpr (!kAhead) {
      if (tile + 1 < end) bring_tile(tile + 1, buffer);
    }
  }
}

}  // namespace customconv::depthwise::bands
