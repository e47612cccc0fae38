// Starts the main loop: tensor maps, packed weights, parameters.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/common/aligned.cuh"
#include "kernels/common/map.cuh"
#include "kernels/common/parts.cuh"
#include "kernels/common/start.h"
#include "kernels/implicit_gemm/exchange_images.cuh"
#include "kernels/implicit_gemm/pack_pixels.cuh"
#include "kernels/implicit_gemm/pack_weights.h"
#include "kernels/implicit_gemm/sm90/kernels.h"
#include "kernels/implicit_gemm/sm90/launch.h"
#include "kernels/implicit_gemm/sm90/payload.h"
#include "kernels/implicit_gemm/weave.h"

namespace customconv::implicit_gemm::sm90 {

// A number that memory does not have by chance, and no other launch: SplitMix64 (Steele et al.,
// OOPSLA 2014) of a count.
inline uint64_t next_token() {
  static std::atomic<uint64_t> count{0};
  uint64_t z = ++count * 0x9E3779B97F4A7C15;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return z ^ z >> 31;
}

inline CUtensorMapSwizzle swizzle_of(int row_bytes) {
  return row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
         : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                           : CU_TENSOR_MAP_SWIZZLE_32B;
}

// Pixels, as the loader's grid traverses them.
template <typename T>
CUtensorMap map_pixels(const Packed& p, const Tile& t, const T* x) {
  const int64_t C = t.halves_pixels ? p.groups * p.channels : p.C;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(C), static_cast<cuuint64_t>(p.W),
                              static_cast<cuuint64_t>(p.H), static_cast<cuuint64_t>(p.N)};
  const cuuint64_t strides[] = {map_stride<T>(p.W, p.x_strides[3]),
                                map_stride<T>(p.H, p.x_strides[2]),
                                map_stride<T>(p.N, p.x_strides[0])};
  const int channels = t.pixel_row_bytes() / static_cast<int>(sizeof(T));
  // What is halved is not rounded on the way.
  const auto type = t.halves_pixels ? kExactMapType<T> : kMapType<T>;
  const auto swizzle = swizzle_of(t.pixel_row_bytes());
  if (t.copies_strips) {
    const Boxes<4> boxes{
        {sizes[0], sizes[1], sizes[2], sizes[3]},
        {strides[0], strides[1], strides[2]},
        {static_cast<cuuint32_t>(channels), static_cast<cuuint32_t>(t.copy_rows), 1, 1},
        {1, 1, 1, 1}};
    return make_map(x, type, boxes, swizzle);
  }
  Im2colBox box{};
  box.steps_w = static_cast<int>(p.stride_w);
  box.steps_h = static_cast<int>(p.stride_h);
  box.channels = channels;
  box.pixels = t.copy_rows;
  if (t.loader == Loader::kIm2col) {
    box.lower_w = static_cast<int>(-p.pad_w);
    box.lower_h = static_cast<int>(-p.pad_h);
    box.upper_w = static_cast<int>((p.Q - 1) * p.stride_w - p.pad_w - (p.W - 1));
    box.upper_h = static_cast<int>((p.P - 1) * p.stride_h - p.pad_h - (p.H - 1));
  } else {
    box.upper_w = static_cast<int>(t.pitch - p.W);
    box.upper_h = static_cast<int>(t.period - p.H);
  }
  return make_im2col_map(x, type, sizes, strides, box, swizzle);
}

// Planes as they are: of some rows of a strip all channels of a chunk, and of each the row's
// pixels.
template <typename T>
CUtensorMap map_planes(const Packed& p, const Tile& t, const T* x) {
  const auto channels = static_cast<cuuint32_t>(t.row_bytes / sizeof(T));
  const Boxes<4> boxes{{static_cast<cuuint64_t>(p.W), static_cast<cuuint64_t>(p.C),
                        static_cast<cuuint64_t>(p.H), static_cast<cuuint64_t>(p.N)},
                       {map_stride<T>(p.C, p.x_strides[1]), map_stride<T>(p.H, p.x_strides[2]),
                        map_stride<T>(p.N, p.x_strides[0])},
                       {static_cast<cuuint32_t>(t.pitch), channels,
                        static_cast<cuuint32_t>(t.copy_rows) / channels, 1},
                       {1, 1, 1, 1}};
  return make_map(x, kMapType<T>, boxes, swizzle_of(t.pixel_row_bytes()));
}

// Planes, for the boxes that warps turn. Channels whose planes begin at the same byte of 16 have a
// map of their own, which begins at whole 16 bytes.
template <typename T>
void set_planes(const Packed& problem, const Tile& t, const T* x, Params& p) {
  constexpr int kUnit = 16 / static_cast<int>(sizeof(T));
  const Shape4& strides = problem.x_strides;
  p.plane_boxes = t.plane_boxes;
  p.by_row_boxes = Divider<int32_t>(t.row_boxes);
  p.plane_slots = t.plane_slots;
  if (t.strips > 1) p.plane_column = static_cast<int>(problem.pad_w);
  p.H = static_cast<int>(problem.H);
  p.W = static_cast<int>(problem.W);
  p.plane_row = problem.H == 1 ? 0 : static_cast<int>(strides[2]);
  p.plane_start = static_cast<int>(reinterpret_cast<uintptr_t>(x) / sizeof(T) % kUnit);
  p.plane_step = static_cast<int>(strides[1] % kUnit);
  p.residue_bits = t.residue_bits;
  p.most_shift = t.most_shift;
  const int64_t residues = int64_t{1} << t.residue_bits;
  // What is halved is not rounded on the way.
  const int64_t halves = problem.half_bits > 0 ? 2 : 1;
  const int64_t C = halves == 2 ? problem.groups * problem.channels : problem.C;
  const auto type = halves == 2 ? kExactMapType<T> : kMapType<T>;
  const int64_t plane = (problem.H - 1) * p.plane_row + problem.W;
  const auto N = static_cast<cuuint64_t>(problem.N);
  for (int64_t i = 0; i < std::min(residues, C); ++i) {
    const int64_t shift = (p.plane_start + i * p.plane_step) % kUnit;
    const auto channels = static_cast<cuuint64_t>(ceil_divide(C - i, residues));
    const Boxes<3> boxes{
        {static_cast<cuuint64_t>(shift + plane), channels, N},
        {map_stride<T>(problem.C, strides[1] * residues), map_stride<T>(problem.N, strides[0])},
        {kBoxPixels, static_cast<cuuint32_t>(t.row_bytes / sizeof(T) / residues / halves), 1},
        {1, 1, 1}};
    p.planes[i] =
        make_map(x + i * strides[1] - shift, type, boxes, swizzle_of(kBoxPixels * sizeof(T)));
  }
}

// Pixels, for the warps that gather what taps meet.
template <typename T>
Gather gather_of(const Packed& p, const Tile& t, const T* x) {
  const ConvProblem& source = p.source;
  Gather gather{};
  gather.x = x;
  gather.n = source.x_strides[0];
  gather.c = static_cast<int>(source.x_strides[1]);
  gather.h = static_cast<int>(source.x_strides[2]);
  gather.w = static_cast<int>(source.x_strides[3]);
  gather.tap_h = static_cast<int>(source.dilation_h) * gather.h;
  gather.tap_w = static_cast<int>(source.dilation_w) * gather.w;
  gather.H = static_cast<int>(source.H);
  gather.W = static_cast<int>(source.W);
  gather.R = static_cast<int>(source.R);
  gather.S = static_cast<int>(source.S);
  gather.stride_h = static_cast<int>(source.stride_h);
  gather.stride_w = static_cast<int>(source.stride_w);
  gather.pad_h = static_cast<int>(source.pad_h);
  gather.pad_w = static_cast<int>(source.pad_w);
  gather.dilation_h = static_cast<int>(source.dilation_h);
  gather.dilation_w = static_cast<int>(source.dilation_w);
  gather.terms = static_cast<int>(p.C);
  gather.padded_terms = t.padded_terms;
  const GatherLines lines = gather_lines(p, t);
  gather.by_terms = lines.by_terms < lines.by_pixels;
  gather.by_C = Divider<int32_t>(p.tap_channels);
  gather.by_S = Divider<int32_t>(p.row_taps);
  return gather;
}

// The weight's matrix, in copies for a stage.
template <typename T>
CUtensorMap map_weights(const Forward& p, const Tile& t, const PackedWeight& packed, const T* w) {
  const auto row = static_cast<cuuint64_t>(packed.row) * sizeof(T);
  const auto taps = static_cast<cuuint64_t>(p.taps_h * p.taps_w);
  const auto channels = static_cast<cuuint32_t>(t.row_bytes / sizeof(T));
  if (t.weights_as_stored) {
    const Boxes<3> boxes{{static_cast<cuuint64_t>(packed.row), taps, static_cast<cuuint64_t>(p.C)},
                         {row, taps * row},
                         {kSlabRowBytes / sizeof(T), 1, channels},
                         {1, 1, 1}};
    return make_map(w, kMapType<T>, boxes);
  }
  const Boxes<3> boxes{{static_cast<cuuint64_t>(packed.row), taps, static_cast<cuuint64_t>(p.K)},
                       {row, taps * row},
                       {channels, 1, static_cast<cuuint32_t>(t.w_copy_channels)},
                       {1, 1, 1}};
  return make_map(w, kMapType<T>, boxes, swizzle_of(t.row_bytes));
}

// The output's pixels one after the other, in slabs of 64 by 128 bytes of channels.
template <typename T>
CUtensorMap map_rows(const Forward& p, const T* y) {
  const auto type = kExactMapType<T>;
  const int64_t pixels = p.N * p.P * p.Q;
  const Boxes<4> boxes{{static_cast<cuuint64_t>(p.K), static_cast<cuuint64_t>(pixels), 1, 1},
                       {map_stride<T>(pixels, pixel_stride(p)), 16, 16},
                       {128 / sizeof(T), 64, 1, 1},
                       {1, 1, 1, 1}};
  return make_map(y, type, boxes);
}

// Packs planes of pixels; memory between `begin` and `end` may be read.
template <typename T>
void pack_planes(const Packed& p, const T* x, const T* begin, const T* end, T* to, bool early,
                 cudaStream_t stream) {
  using U = PackUnit<T>;
  const ConvProblem& source = p.source;
  PackPixels<T> pack{};
  pack.x = x;
  pack.begin = begin;
  pack.end = end;
  pack.n = source.x_strides[0];
  pack.c = source.x_strides[1];
  pack.C = static_cast<int>(source.C);
  pack.pixels = static_cast<int>(p.H * p.W);
  pack.aligned =
      source.x_aligned && pack.c % U::kVector == 0 && (p.N == 1 || pack.n % U::kVector == 0);
  pack.to = to;
  pack.row = static_cast<int>(p.x_strides[3]);
  pack.order.half_bits = p.half_bits;
  const int64_t halves = p.half_bits > 0 ? 2 : 1;
  const int64_t units_c = ceil_divide(p.x_strides[3] / halves, U::kChannels);
  const int64_t blocks = ceil_divide(p.H * p.W, U::kPixels);
  pack.units = static_cast<int>(p.N * blocks * units_c);
  pack.by_units_c = Divider<int32_t>(units_c);
  pack.by_blocks = Divider<int32_t>(blocks);
  start("implicit_gemm: the input",
        {ceil_divide(pack.units, kPackPixelWarps), 32 * kPackPixelWarps, 0, stream, early},
        pack_pixels<T>, pack);
}

// The same of pixels that are channels-last, `pixel` elements apart.
template <typename T>
void pad_channels(const Packed& p, const T* x, int64_t pixel, T* to, bool early,
                  cudaStream_t stream) {
  PadPixels<T> pad{};
  pad.x = x;
  pad.n = p.source.x_strides[0];
  pad.pixel = pixel;
  pad.C = static_cast<int>(p.source.C);
  pad.order.half_bits = p.half_bits;
  pad.to = to;
  const int64_t row = p.x_strides[3] * static_cast<int64_t>(sizeof(T)) / 16;
  pad.units = static_cast<int>(p.N * p.H * p.W * row);
  pad.by_row = Divider<int32_t>(row);
  pad.by_image = Divider<int32_t>(p.H * p.W);
  start("implicit_gemm: the input",
        {ceil_divide(pad.units, kPadPixelThreads), kPadPixelThreads, 0, stream, early},
        pad_pixels<T>, pad);
}

// The same of any pixels, or of what all taps meet.
template <typename T>
void gather_channels(const Packed& p, const T* x, T* to, bool early, cudaStream_t stream) {
  using D = Divider<int32_t>;
  const ConvProblem& source = p.source;
  GatherTaps<T> gather{};
  gather.x = x;
  gather.n = source.x_strides[0];
  gather.c = source.x_strides[1];
  gather.h = source.x_strides[2];
  gather.w = source.x_strides[3];
  gather.H = static_cast<int>(source.H);
  gather.W = static_cast<int>(source.W);
  gather.C = static_cast<int>(source.C);
  gather.S = static_cast<int>(p.row_taps);
  gather.elements = static_cast<int>(p.groups * p.channels);
  gather.order.half_bits = p.half_bits;
  const bool taps = p.packing == Packing::kPatches;
  gather.stride_h = static_cast<int>(taps ? source.stride_h : 1);
  gather.stride_w = static_cast<int>(taps ? source.stride_w : 1);
  gather.pad_h = static_cast<int>(taps ? source.pad_h : 0);
  gather.pad_w = static_cast<int>(taps ? source.pad_w : 0);
  gather.dilation_h = static_cast<int>(source.dilation_h);
  gather.dilation_w = static_cast<int>(source.dilation_w);
  gather.to = to;
  const int64_t row = p.x_strides[3] * static_cast<int64_t>(sizeof(T)) / 16;
  gather.units = static_cast<int>(p.N * p.H * p.W * row);
  gather.by_row = D(row);
  gather.by_Q = D(p.W);
  gather.by_P = D(p.H);
  gather.by_C = D(source.C);
  gather.by_S = D(p.row_taps);
  start("implicit_gemm: the input",
        {ceil_divide(gather.units, kGatherThreads), kGatherThreads, 0, stream, early},
        gather_taps<T>, gather);
}

// Packs the input of a part, which begins at `x`.
template <typename T>
void pack_input(const Packed& p, const T* x, const T* begin, const T* end, T* to, bool early,
                cudaStream_t stream) {
  const Shape4& strides = p.source.x_strides;
  // Whether pixels of an image follow each other, in planes or with their channels side by side.
  const int64_t pixel = p.W > 1 ? strides[3] : strides[2];
  const bool rows = p.H == 1 || p.W == 1 || strides[2] == p.W * pixel;
  const bool dense = p.tap_channels == 0 && rows && strides[0] >= 0 && strides[1] >= 0 && pixel > 0;
  if (dense && (p.H * p.W == 1 || pixel == 1)) {
    pack_planes(p, x, begin, end, to, early, stream);
  } else if (dense && (p.source.C == 1 || strides[1] == 1)) {
    pad_channels(p, x, pixel, to, early, stream);
  } else {
    gather_channels(p, x, to, early, stream);
  }
}

// What does not depend on where the tensors are.
template <typename T>
Params params_of(const Packed& problem, const Tile& tile) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  using D = Divider<int32_t>;
  Params p{};
  p.items = static_cast<int>(tile.items());
  p.splits = tile.splits;
  p.phases = problem.phases;
  p.by_tiles_k = D(tile.tiles_k);
  p.by_tiles_m = D(tile.tiles_m);
  p.by_group_tiles = D(tile.tiles_k / problem.groups);
  p.group_C = static_cast<int>(problem.group_C());
  p.group_K = static_cast<int>(problem.group_K());
  place_taps(problem, tile.weights_as_stored, p.phase);
  p.by_pitch = D(tile.pitch);
  p.by_period = D(tile.period);
  p.by_strips = D(tile.strips);
  p.strip_columns = static_cast<int>(tile.strip_columns);
  p.image = static_cast<int>(tile.image());
  p.halo = static_cast<int>(tile.halo);
  p.copies = tile.copies;
  p.copy_rows = tile.copy_rows;
  p.copy_positions = tile.copy_positions;
  p.copies_strips = tile.copies_strips;
  p.row_bytes = tile.row_bytes;
  p.row_channels = tile.row_bytes / kSize;
  p.halves_pixels = tile.halves_pixels;
  p.keeps_weights = tile.keeps_weights;
  p.pixel_row_bytes = tile.pixel_row_bytes();
  p.low_bytes = tile.low_bytes();
  p.chunks = tile.chunks;
  p.x_bytes = tile.x_bytes;
  p.w_bytes = tile.w_bytes;
  p.w_copy_channels = tile.w_copy_channels;
  p.w_copy_bytes = tile.weights_as_stored ? p.row_channels * kSlabRowBytes
                                          : tile.w_copy_channels * tile.row_bytes;
  p.x_stages = tile.x_stages;
  p.w_stages = tile.w_stages;
  p.by_x_stages = D(tile.x_stages);
  p.by_w_stages = D(tile.w_stages);
  p.stride_h = static_cast<int>(problem.stride_h);
  p.stride_w = static_cast<int>(problem.stride_w);
  p.pad_h = static_cast<int>(problem.pad_h);
  p.pad_w = static_cast<int>(problem.pad_w);
  p.dilation_h = static_cast<int>(problem.dilation_h);
  p.dilation_w = static_cast<int>(problem.dilation_w);
  p.stage_pitch = static_cast<int>(tile.stage_pitch);
  const bool mn_major = tile.loader == Loader::kMnMajor;
  const int64_t group = mn_major ? 8 * tile.row_bytes : tile.group_rows() * tile.pixel_row_bytes();
  const int64_t row = (mn_major ? p.row_channels : tile.stage_pitch) * tile.pixel_row_bytes();
  p.group_bytes = static_cast<uint32_t>(group);
  p.tap_h = static_cast<int>(problem.dilation_h * row);
  p.tap_w = static_cast<int>(problem.dilation_w * tile.pixel_row_bytes());
  p.out_n = problem.y_strides[0];
  p.out_k = problem.y_strides[1];
  p.out_p = problem.y_strides[2];
  p.out_q = problem.y_strides[3];
  p.N = static_cast<int>(problem.N);
  p.K = static_cast<int>(problem.K);
  return p;
}

// The rows of a 1x1 convolution whose pixels follow each other, for `prefetch_rows`.
template <typename T>
void set_rows(const Packed& problem, const Tile& tile, const PackedWeight& weight, const T* x,
              const T* w, Params& p) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  // Of more tiles the first ones' lines are no matter, and blocks' shares of them fit 32 bits.
  constexpr int64_t kMostTiles = 1 << 16;
  const auto& strides = problem.x_strides;
  const bool dense =
      tile.items() <= kMostTiles && pixels_follow(problem.x_sizes(), strides, strides[3]);
  const bool same = tile.image() == problem.H * problem.W && problem.stride_h == 1 &&
                    problem.stride_w == 1 && problem.pad_h == 0 && problem.pad_w == 0;
  if (problem.taps_h * problem.taps_w > 1 || problem.groups > 1 || !dense || !same) return;
  const auto bytes = static_cast<int>(problem.C * kSize);
  p.pixel_rows = {reinterpret_cast<const char*>(x), strides[3] * kSize,
                  static_cast<int>(problem.N * problem.H * problem.W), bytes};
  if (tile.weights_as_stored) return;
  p.weight_rows = {reinterpret_cast<const char*>(w), weight.row * kSize, p.K, bytes};
}

inline Halves halves_of(const Packed& p, const PackedWeight& weight, const float* x,
                        const float* w) {
  const Shape4& strides = p.x_strides;
  const bool packed = p.packing != Packing::kNone;
  return {x,
          w,
          strides[0],
          packed ? 0 : strides[1],
          strides[2],
          strides[3],
          weight.row,
          static_cast<int>(p.groups * p.channels),
          static_cast<int>(p.H),
          static_cast<int>(p.W),
          static_cast<int>(p.taps_h * p.taps_w),
          p.half_bits,
          p.gradient};
}

// Where results go: to `y`, and how many of them at once.
template <typename T>
void set_output(const Packed& problem, const Tile& tile, T* y, const Epilogue& epilogue,
                Params& p) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  p.out = y;
  p.epilogue = epilogue;
  // Whether all of the output's channels 0 are so aligned.
  const auto pixels_aligned = [&](int64_t bytes) {
    bool aligned = is_aligned(y, bytes);
    for (const int64_t stride : {p.out_n, p.out_p, p.out_q}) {
      aligned = aligned && stride * kSize % bytes == 0;
    }
    for (const Phase& phase : p.phase) aligned = aligned && phase.offset * kSize % bytes == 0;
    return aligned;
  };
  // Whether positions that are so aligned, of a plane, are neighbouring pixels that are so aligned.
  const auto has_pixels_aligned = [&](int64_t bytes) {
    const auto whole = [&](int64_t count) { return count * kSize % bytes == 0; };
    const bool dense = tile.pitch == problem.Q && tile.period == problem.P && p.out_p == problem.Q;
    const bool rows = dense ? whole(problem.P * problem.Q)
                            : whole(problem.Q) && whole(tile.pitch) && whole(p.out_p) &&
                                  (tile.strips == 1 || whole(tile.strip_columns));
    return rows && p.out_q == 1 && (!problem.has_phases() || problem.woven > 0) &&
           is_aligned(y, bytes) && whole(p.out_n) && whole(p.out_k);
  };
  switch (tile.store) {
    case Store::kRows:
      p.y = map_rows(problem, y);
      if (epilogue.residual != nullptr) {
        p.residual = map_rows(problem, static_cast<const T*>(epilogue.residual));
      }
      break;
    case Store::kPixels:
      p.vectors = pixels_aligned(16) && p.group_K * kSize % 16 == 0;
      break;
    case Store::kPlanes:
      p.vectors = has_pixels_aligned(16);
      p.pixel_pairs = has_pixels_aligned(2 * kSize);
      break;
    case Store::kCluster:
      p.pixel_pairs = has_pixels_aligned(2 * kSize);
      break;
  }
}

inline int64_t blocks_of(const ConvPlan& plan, const Tile& tile) {
  return tile.stream_k ? plan.blocks : std::min(plan.blocks, tile.items() * tile.splits);
}

// What blocks share; their partial sums are the end of the workspace.
inline void set_stream_k(const ConvPlan& plan, const Tile& tile, void* workspace, Params& p) {
  if (!tile.stream_k) return;
  const int64_t blocks = plan.blocks;
  char* const partials =
      static_cast<char*>(workspace) + plan.workspace_bytes - partial_bytes(tile, blocks);
  const int64_t tiles = tile.shared_tiles(blocks), steps = tiles * tile.chunks;
  p.shared_tiles = static_cast<int>(tiles);
  p.block_steps = static_cast<int>(steps / blocks);
  p.longer_blocks = static_cast<int>(steps % blocks);
  p.by_steps = Divider<int32_t>(tile.chunks);
  p.partials.sums = reinterpret_cast<float*>(partials);
  const TileShape& kind = tile.kind();
  p.partials.flags =
      reinterpret_cast<uint64_t*>(p.partials.sums + blocks * kind.pixels * kind.channels);
  p.partials.token = next_token();
}

template <typename T>
Kernel kernel_of(const Tile& tile, bool has_epilogue) {
  if constexpr (sizeof(T) == 2) {
    if (tile.weights_as_stored) return kernel_of<T, false, true>(tile);
  }
  return is_fused(tile.loader, tile.store, tile.stream_k, has_epilogue)
             ? kernel_of<T, true, false>(tile)
             : kernel_of<T, false, false>(tile);
}

// Packs pieces of images side by side: `extent` are a piece's channels, rows and columns, of which
// the first piece begins at `first`, and the next one `step` further on.
inline void pack_images(const Packed& p, const Pieces& pieces, const float* from,
                        const Shape4& sizes, const Shape4& strides, const int64_t (&extent)[3],
                        const int64_t (&first)[2], const int64_t (&step)[2], float* to, int64_t row,
                        int64_t group, cudaStream_t stream) {
  using D = Divider<int32_t>;
  ExchangeImages exchange{};
  exchange.from = from;
  exchange.n = strides[0];
  exchange.c = strides[1];
  exchange.h = strides[2];
  exchange.w = strides[3];
  exchange.H = static_cast<int>(sizes[2]);
  exchange.W = static_cast<int>(sizes[3]);
  exchange.pieces = static_cast<int>(sizes[0] * pieces.bands * pieces.columns);
  exchange.images = static_cast<int>(p.channels);
  exchange.step_h = static_cast<int>(step[0]);
  exchange.step_w = static_cast<int>(step[1]);
  exchange.first_h = static_cast<int>(first[0]);
  exchange.first_w = static_cast<int>(first[1]);
  exchange.elements = static_cast<int>(extent[0] * extent[1] * extent[2]);
  exchange.channels_last = dense_layout(sizes, strides) == Layout::kNhwc;
  exchange.by_C = D(extent[0]);
  exchange.by_h = D(extent[1]);
  exchange.by_w = D(extent[2]);
  exchange.by_pieces_h = D(pieces.bands);
  exchange.by_pieces_w = D(pieces.columns);
  const int64_t blocks = ceil_divide(exchange.elements, kExchangedElements);
  const int64_t group_runs = p.group_C() >> (p.half_bits + 1);
  exchange.by_blocks = D(blocks);
  exchange.by_group_runs = D(group_runs);
  exchange.to = to;
  exchange.group = group;
  exchange.row = row;
  exchange.order.half_bits = p.half_bits;
  start("implicit_gemm: images side by side",
        {p.groups * group_runs * blocks, kExchangeThreads, 0, stream}, exchange_images, exchange);
}

// Parts lie as the result does.
struct SamePlace {
  __device__ int64_t operator()(int64_t number) const { return number; }
};

// A weight gradient, as a forward convolution of halves.
inline void launch_exchanged(const ConvProblem& asked, const ConvPlan& plan,
                             const Operands& operands, const LaunchContext& context) {
  const auto way = plan.payload.as<MainLoopPlan>();
  const Exchange exchange = way.exchange();
  const Pieces pieces = pieces_of(asked, exchange);
  const Packed problem = exchanged_of(asked, exchange);
  const Tile tile = make_tile(problem, way, plan.splits);
  const PackedWeight weight = weight_of(problem, tile);
  auto* const workspace = static_cast<char*>(context.workspace);
  char* const packed = workspace + packed_weight_bytes(problem, tile);
  auto* const w = reinterpret_cast<float*>(workspace);
  auto* const x = reinterpret_cast<float*>(packed);
  auto* const partial = reinterpret_cast<float*>(packed + packed_bytes(problem));
  auto* const gradient = static_cast<float*>(operands.w);
  const int64_t taps = problem.taps_h * problem.taps_w;
  pack_images(problem, pieces, static_cast<const float*>(operands.y), asked.y_sizes(),
              asked.y_strides, {asked.K, pieces.P, pieces.Q}, {0, 0}, {pieces.P, pieces.Q}, w,
              problem.group_C(), problem.group_K() * taps * problem.group_C(), context.stream);
  pack_images(problem, pieces, static_cast<const float*>(operands.x), asked.x_sizes(),
              asked.x_strides, {asked.C, pieces.H, pieces.W}, {-asked.pad_h, -asked.pad_w},
              {pieces.P * asked.stride_h, pieces.Q * asked.stride_w}, x, problem.C,
              problem.group_C(), context.stream);
  Params p = params_of<float>(problem, tile);
  p.w = map_weights(problem, tile, weight, w);
  p.x = map_pixels(problem, tile, x);
  p.halves = halves_of(problem, weight, x, w);
  set_output(problem, tile, problem.groups > 1 ? partial : gradient, Epilogue{}, p);
  start("implicit_gemm",
        {std::min(plan.blocks, tile.items() * tile.splits), tile.threads(), shared_bytes(tile),
         context.stream, /*early=*/true, tile.splits},
        kernel_of<float>(tile, /*has_epilogue=*/false), p);
  if (problem.groups == 1) return;
  add_up("implicit_gemm: groups of images", static_cast<const float*>(partial), asked.w_count(),
         problem.groups, gradient, SamePlace{}, /*early=*/true, context.stream);
}

template <typename T>
void launch(const ConvProblem& asked, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  if constexpr (sizeof(T) == 4) {
    if (asked.pass == Pass::kWgrad) return launch_exchanged(asked, plan, operands, context);
  }
  const bool gradient = asked.pass == Pass::kDgrad;
  const auto* x = static_cast<const T*>(gradient ? operands.y : operands.x);
  auto* y = static_cast<T*>(gradient ? operands.x : operands.y);
  const T* const x_end = x +
                         (gradient ? max_offset(asked.y_sizes(), asked.y_strides)
                                   : max_offset(asked.x_sizes(), asked.x_strides)) +
                         1;
  const auto* w = static_cast<const T*>(operands.w);
  auto* workspace = static_cast<char*>(context.workspace);
  const auto way = plan.payload.as<MainLoopPlan>();
  const Chunk chunk = way.chunk();
  const int64_t parts = count_parts(asked, chunk);
  bool early = false;  // whether a kernel of this call is in front of the next one
  for (int64_t i = 0; i < parts; ++i) {
    const Part part = part_of(asked, chunk, i);
    const Packed problem = forward_of(part.problem, way.form());
    const Tile tile = make_tile(problem, way, plan.splits);
    const PackedWeight weight = weight_of(problem, tile);
    if (i == 0 && !weight.in_place) {
      T* const to = reinterpret_cast<T*>(workspace);
      if (problem.joins_phases) {
        pack_joined_weight(part.problem, problem, weight, w, to, context.stream);
      } else {
        Forward whole = problem;  // its channels are not halved
        if (problem.half_bits > 0) whole.C = problem.groups * problem.channels;
        pack_weight_matrix(whole, tile.weights_as_stored, weight, w, to, context.stream);
      }
      workspace += packed_weight_bytes(problem, tile);
      w = to;
      early = true;
    }
    Params p = params_of<T>(problem, tile);
    p.w = map_weights(problem, tile, weight, w);
    T* const woven = reinterpret_cast<T*>(workspace);
    const T* input = x + (gradient ? part.y : part.x);
    T* const output = y + (gradient ? part.x : part.y);
    if (problem.is_packed()) {
      T* const to = reinterpret_cast<T*>(workspace + woven_bytes(problem));
      pack_input(problem, input, x, x_end, to, early, context.stream);
      input = to;
      early = true;
    }
    if constexpr (sizeof(T) == 4) {
      if (problem.half_bits > 0) p.halves = halves_of(problem, weight, input, w);
    }
    if (tile.loader == Loader::kGather) {
      p.gather = gather_of(problem, tile, input);
    } else if (tile.loader == Loader::kPlanes) {
      set_planes(problem, tile, input, p);
    } else if (tile.loader == Loader::kMnMajor) {
      p.x = map_planes(problem, tile, input);
    } else {
      p.x = map_pixels(problem, tile, input);
    }
    if (tile.loader == Loader::kIm2col) set_rows(problem, tile, weight, input, w, p);
    // Channels of joined phases are not yet those of the result.
    Epilogue epilogue = problem.joins_phases ? Epilogue{} : operands.epilogue;
    if (epilogue.residual != nullptr) {
      epilogue.residual = static_cast<const T*>(epilogue.residual) + (gradient ? part.x : part.y);
    }
    set_output(problem, tile, problem.woven > 0 ? woven : output, epilogue, p);
    set_stream_k(plan, tile, context.workspace, p);
    start("implicit_gemm",
          {blocks_of(plan, tile), tile.threads(), shared_bytes(tile), context.stream,
           /*early=*/true, tile.splits},
          kernel_of<T>(tile, !epilogue.is_empty()), p);
    if (problem.joins_phases) {
      spread_joined_phases(part.problem, problem, woven, x + part.y,
                           static_cast<const T*>(operands.w), output, operands.epilogue,
                           context.stream);
    } else if (problem.woven > 0) {
      weave_phases(part.problem, problem, woven, output, /*early=*/true, context.stream);
    }
  }
}

}  // namespace customconv::implicit_gemm::sm90
