// A kernel's parameters: tensor maps, and what says how they are traversed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/common/aligned.cuh"
#include "kernels/common/map.cuh"
#include "kernels/implicit_gemm/sm90/params.h"
#include "kernels/implicit_gemm/sm90/tile.h"
#include "plan/plan.h"

namespace customconv::implicit_gemm::sm90 {

inline CUtensorMapSwizzle swizzle_of(int row_bytes) {
  return row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
         : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                           : CU_TENSOR_MAP_SWIZZLE_32B;
}

// Pixels, as the loader's grid traverses them.
template <typename T>
CUtensorMap map_pixels(const Packed& p, const Tile& t, const T* x) {
  const int64_t C = t.halves_pixels ? p.groups * p.channels : p.C;
  const auto size = [](int64_t count) { return static_cast<cuuint64_t>(count); };
  const cuuint64_t sizes[] = {size(C), size(p.W), size(p.H), size(p.N)};
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
  box.channels = channels;
  box.pixels = t.copy_rows;
  const auto set_axis = [&box](int axis, int64_t pixels, int64_t outputs, int64_t stride,
                               int64_t pad) {
    box.steps[axis] = static_cast<int>(stride);
    box.lower[axis] = static_cast<int>(-pad);
    box.upper[axis] = static_cast<int>(upper_corner(pixels, outputs, stride, pad));
  };
  if (t.loader == Loader::kIm2col) {
    set_axis(0, p.W, p.Q, p.stride_w, p.pad_w);
    set_axis(1, p.H, p.P, p.stride_h, p.pad_h);
    set_axis(2, p.D, p.O, p.stride_d, p.pad_d);
  } else {
    set_axis(0, p.W, t.pitch, 1, 0);
    set_axis(1, p.H, t.period, 1, 0);
  }
  if (p.is_deep()) {
    return make_im2col_map<5>(
        x, type, {sizes[0], sizes[1], sizes[2], size(p.D), sizes[3]},
        {strides[0], strides[1], map_stride<T>(p.D, p.x_strides[4]), strides[2]}, box, swizzle);
  }
  return make_im2col_map<4>(x, type, sizes, strides, box, swizzle);
}

// Planes, for the boxes that warps transpose. Channels whose planes begin at the same byte of 16
// have a map of their own, which begins at whole 16 bytes.
template <typename T>
void set_planes(const Packed& problem, const Tile& t, const T* x, Params& p) {
  constexpr int kUnit = 16 / static_cast<int>(sizeof(T));
  const Shape5& strides = problem.x_strides;
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
  const int64_t pixels = p.N * p.rows() * p.Q;
  const Boxes<4> boxes{{static_cast<cuuint64_t>(p.K), static_cast<cuuint64_t>(pixels), 1, 1},
                       {map_stride<T>(pixels, pixel_stride(p)), 16, 16},
                       {128 / sizeof(T), 64, 1, 1},
                       {1, 1, 1, 1}};
  return make_map(y, type, boxes);
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
  p.depth = {D(problem.P),
             static_cast<int>(problem.R),
             static_cast<int>(problem.stride_d),
             static_cast<int>(problem.pad_d),
             static_cast<int>(problem.dilation_d),
             problem.is_deep(),
             leaves_out_slices(problem, tile),
             static_cast<int>(problem.T),
             static_cast<int>(problem.D)};
  p.stage_pitch = static_cast<int>(tile.stage_pitch);
  p.group_bytes = static_cast<uint32_t>(tile.group_rows() * tile.pixel_row_bytes());
  p.tap_h = static_cast<int>(problem.dilation_h * tile.stage_pitch * tile.pixel_row_bytes());
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
  const bool one_tap = problem.taps_h * problem.taps_w == 1 && !problem.is_deep();
  if (!one_tap || problem.groups > 1 || !dense || !same) return;
  const auto bytes = static_cast<int>(problem.C * kSize);
  p.pixel_rows = {reinterpret_cast<const char*>(x), strides[3] * kSize,
                  static_cast<int>(problem.N * problem.H * problem.W), bytes};
  if (tile.weights_as_stored) return;
  p.weight_rows = {reinterpret_cast<const char*>(w), weight.row * kSize, p.K, bytes};
}

inline Halves halves_of(const Packed& p, const PackedWeight& weight, const float* x,
                        const float* w) {
  const Shape5& strides = p.x_strides;
  const bool packed = p.packing != Packing::kNone;
  return {x,
          w,
          strides[0],
          packed ? 0 : strides[1],
          strides[4],
          strides[2],
          strides[3],
          weight.row,
          static_cast<int>(p.groups * p.channels),
          static_cast<int>(p.D),
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
    const int64_t image_rows = problem.rows();
    const bool dense = tile.pitch == problem.Q && tile.period == image_rows && p.out_p == problem.Q;
    const bool rows = dense ? whole(image_rows * problem.Q)
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

// A number that memory does not have by chance, and no other launch: SplitMix64 (Steele et al.,
// OOPSLA 2014) of a count.
inline uint64_t next_token() {
  static std::atomic<uint64_t> count{0};
  uint64_t z = ++count * 0x9E3779B97F4A7C15;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return z ^ z >> 31;
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

}  // namespace customconv::implicit_gemm::sm90
