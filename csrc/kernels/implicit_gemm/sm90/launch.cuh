// Starts the main loop: tensor maps, packed weights, parameters.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/common/map.cuh"
#include "kernels/common/start.h"
#include "kernels/implicit_gemm/pack_pixels.cuh"
#include "kernels/implicit_gemm/pack_weights.cuh"
#include "kernels/implicit_gemm/sm90/launch.h"
#include "kernels/implicit_gemm/weave.h"

namespace customconv::implicit_gemm::sm90 {

inline CUtensorMapSwizzle swizzle_of(int row_bytes) {
  return row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
         : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                           : CU_TENSOR_MAP_SWIZZLE_32B;
}

// Pixels, as the loader's grid traverses them.
template <typename T>
CUtensorMap map_pixels(const Packed& p, const Tile& t, const T* x) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(p.C), static_cast<cuuint64_t>(p.W),
                              static_cast<cuuint64_t>(p.H), static_cast<cuuint64_t>(p.N)};
  const cuuint64_t strides[] = {map_stride<T>(p.W, p.x_strides[3]),
                                map_stride<T>(p.H, p.x_strides[2]),
                                map_stride<T>(p.N, p.x_strides[0])};
  const int channels = t.row_bytes / static_cast<int>(sizeof(T));
  if (t.copies_strips) {
    const Boxes<4> boxes{
        {sizes[0], sizes[1], sizes[2], sizes[3]},
        {strides[0], strides[1], strides[2]},
        {static_cast<cuuint32_t>(channels), static_cast<cuuint32_t>(t.copy_rows), 1, 1},
        {1, 1, 1, 1}};
    return make_map(x, kMapType<T>, boxes, swizzle_of(t.row_bytes));
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
  return make_im2col_map(x, kMapType<T>, sizes, strides, box, swizzle_of(t.row_bytes));
}

// The same of channels-first input, for the boxes that warps turn.
template <typename T>
CUtensorMap map_planes(const Packed& p, const Tile& t, const T* x) {
  const Boxes<4> boxes{{static_cast<cuuint64_t>(p.W), static_cast<cuuint64_t>(p.H),
                        static_cast<cuuint64_t>(p.C), static_cast<cuuint64_t>(p.N)},
                       {map_stride<T>(p.H, p.x_strides[2]), map_stride<T>(p.C, p.x_strides[1]),
                        map_stride<T>(p.N, p.x_strides[0])},
                       {kBoxPixels, 1, static_cast<cuuint32_t>(t.row_bytes / sizeof(T)), 1},
                       {1, 1, 1, 1}};
  return make_map(x, kMapType<T>, boxes, swizzle_of(kBoxPixels * sizeof(T)));
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
                         {128 / sizeof(T), 1, channels},
                         {1, 1, 1}};
    return make_map(w, kMapType<T>, boxes);
  }
  const Boxes<3> boxes{{static_cast<cuuint64_t>(packed.row), taps, static_cast<cuuint64_t>(p.K)},
                       {row, taps * row},
                       {channels, 1, static_cast<cuuint32_t>(t.kind().channels)},
                       {1, 1, 1}};
  return make_map(w, kMapType<T>, boxes, swizzle_of(t.row_bytes));
}

// The output's pixels one after the other, in slabs of 64.
template <typename T>
CUtensorMap map_rows(const Forward& p, const Tile& t, const T* y) {
  const auto type = sizeof(T) == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : kMapType<T>;
  const int row_bytes = std::min(128, t.kind().channels * static_cast<int>(sizeof(T)));
  const int64_t pixels = p.N * p.P * p.Q;
  const Boxes<4> boxes{{static_cast<cuuint64_t>(p.K), static_cast<cuuint64_t>(pixels), 1, 1},
                       {map_stride<T>(pixels, pixel_stride(p)), 16, 16},
                       {static_cast<cuuint32_t>(row_bytes / sizeof(T)), 64, 1, 1},
                       {1, 1, 1, 1}};
  return make_map(y, type, boxes, swizzle_of(row_bytes));
}

// Packs the planes of `p`'s images into `to`.
template <typename T>
void pack_planes(const Packed& p, const T* x, const T* begin, const T* end, T* to, bool early,
                 cudaStream_t stream) {
  using U = PackUnit<T>;
  PackPixels<T> pack{};
  pack.x = x;
  pack.begin = begin;
  pack.end = end;
  pack.n = p.source[0];
  pack.c = p.source[1];
  pack.C = static_cast<int>(p.C);
  pack.pixels = static_cast<int>(p.H * p.W);
  pack.aligned =
      p.source_aligned && pack.c % U::kVector == 0 && (p.N == 1 || pack.n % U::kVector == 0);
  pack.to = to;
  pack.row = static_cast<int>(p.row);
  const int64_t units_c = ceil_divide(p.row, U::kChannels);
  const int64_t blocks = ceil_divide(p.H * p.W, U::kPixels);
  pack.units = static_cast<int>(p.N * blocks * units_c);
  pack.by_units_c = Divider<int32_t>(units_c);
  pack.by_blocks = Divider<int32_t>(blocks);
  start("implicit_gemm: the input",
        {ceil_divide(pack.units, kPackPixelWarps), 32 * kPackPixelWarps, 0, stream, early},
        pack_pixels<T>, pack);
}

// The same of pixels that are channels-last.
template <typename T>
void pad_channels(const Packed& p, const T* x, T* to, bool early, cudaStream_t stream) {
  PadPixels<T> pad{};
  pad.x = x;
  pad.n = p.source[0];
  pad.pixel = p.W > 1 ? p.source[3] : p.source[2];
  pad.C = static_cast<int>(p.C);
  pad.to = to;
  const int64_t row = p.row * static_cast<int64_t>(sizeof(T)) / 16;
  pad.units = static_cast<int>(p.N * p.H * p.W * row);
  pad.by_row = Divider<int32_t>(row);
  pad.by_image = Divider<int32_t>(p.H * p.W);
  start("implicit_gemm: the input",
        {ceil_divide(pad.units, kPadPixelThreads), kPadPixelThreads, 0, stream, early},
        pad_pixels<T>, pad);
}

template <typename T>
void launch(const ConvProblem& asked, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  const Packed problem = forward_of(asked, plan.chunk_images > 0);
  const Tile tile = sm90::tile_of(problem, plan);
  const bool gradient = asked.pass == Pass::kDgrad;
  const auto* x = static_cast<const T*>(gradient ? operands.y : operands.x);
  auto* const result = static_cast<T*>(gradient ? operands.x : operands.y);
  T* y = result;
  const auto* w = static_cast<const T*>(operands.w);
  const PackedWeight packed = packed_matrix(problem, tile.weights_as_stored);
  auto* workspace = static_cast<char*>(context.workspace);
  if (!packed.in_place) {
    T* const to = reinterpret_cast<T*>(workspace);
    workspace += round_up(packed.rows * packed.row * kSize, kAlignment);
    pack_weight_matrix(problem, tile.weights_as_stored, packed, w, to, context.stream);
    w = to;
  }
  if (problem.woven > 0) {
    y = reinterpret_cast<T*>(workspace);
    workspace += round_up(problem.woven * kSize, kAlignment);
  }

  using D = Divider<int32_t>;
  Params p{};
  p.w = map_weights(problem, tile, packed, w);
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
  p.copies_strips = tile.copies_strips;
  p.row_bytes = tile.row_bytes;
  p.row_channels = tile.row_bytes / kSize;
  p.chunks = tile.chunks;
  p.x_bytes = tile.x_bytes;
  p.w_bytes = tile.w_bytes;
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
  p.tap_h = static_cast<int>(problem.dilation_h * tile.pitch * tile.row_bytes);
  p.tap_w = static_cast<int>(problem.dilation_w * tile.row_bytes);
  p.early = !packed.in_place || problem.packs;

  const Epilogue& epilogue = operands.epilogue;
  p.out_n = problem.y_strides[0];
  p.out_k = problem.y_strides[1];
  p.out_p = problem.y_strides[2];
  p.out_q = problem.y_strides[3];
  p.N = static_cast<int>(problem.N);
  p.K = static_cast<int>(problem.K);
  p.epilogue = epilogue;
  const auto is_aligned = [](const void* to, uintptr_t bytes) {
    return reinterpret_cast<uintptr_t>(to) % bytes == 0;
  };
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
      break;
    case Store::kPixels:
      p.vectors = pixels_aligned(16) && p.group_K * kSize % 16 == 0;
      break;
    case Store::kPlanes:
      p.vectors = has_pixels_aligned(16);
      p.pixel_pairs = has_pixels_aligned(2 * kSize);
      break;
    case Store::kCluster:
      p.vectors = p.out_k == 1 && pixels_aligned(2 * kSize) && p.group_K % 2 == 0;
      break;
  }
  p.channel_pairs = is_aligned(epilogue.scale, 2 * kSize) && is_aligned(epilogue.bias, 2 * kSize) &&
                    p.group_K % 2 == 0;

  const auto advanced = [](const void* from, int64_t elements) -> const void* {
    return from == nullptr ? nullptr : static_cast<const T*>(from) + elements;
  };
  const Kernel kernel = [&] {
    if constexpr (kSize == 2) {
      if (tile.weights_as_stored) return kernel_of<T, false, true>(tile);
    }
    return is_fused(tile.loader, tile.store, !epilogue.is_empty())
               ? kernel_of<T, true, false>(tile)
               : kernel_of<T, false, false>(tile);
  }();
  // `out` and `residual` are of the first image.
  const auto run = [&](const Packed& part, const Tile& t, T* out, const void* residual) {
    p.out = out;
    p.epilogue.residual = residual;
    if (tile.store == Store::kRows) {
      p.y = map_rows(part, t, out);
      if (residual != nullptr) p.residual = map_rows(part, t, static_cast<const T*>(residual));
    }
    start("implicit_gemm",
          {std::min(plan.grid[0], t.items() * t.splits), plan.block, plan.shared_bytes,
           context.stream, p.early, t.splits},
          kernel, p);
  };
  if (problem.packs) {
    // Some images at a time, which share the workspace.
    const int64_t images = plan.chunk_images;
    T* const packed_x = reinterpret_cast<T*>(workspace);
    const T* const end = x + max_offset(problem.x_sizes(), problem.source) + 1;
    Packed part = problem;
    for (int64_t n = 0; n < problem.N; n += images) {
      part.N = std::min(images, problem.N - n);
      const Tile part_tile = sm90::tile_of(part, plan);
      const T* const from = x + n * problem.source[0];
      const bool early = n > 0 || !packed.in_place;
      if (problem.packs_planes) {
        pack_planes(part, from, x, end, packed_x, early, context.stream);
      } else {
        pad_channels(part, from, packed_x, early, context.stream);
      }
      p.x = map_pixels(part, part_tile, packed_x);
      p.N = static_cast<int>(part.N);
      p.items = static_cast<int>(part_tile.items());
      p.by_tiles_m = D(part_tile.tiles_m);
      run(part, part_tile, y + n * p.out_n, advanced(epilogue.residual, n * p.out_n));
    }
  } else {
    if (tile.loader == Loader::kPlanes) {
      p.x = map_planes(problem, tile, x);
      if (tile.strips > 1) p.plane_column = static_cast<int>(problem.pad_w);
      p.plane_boxes = tile.plane_boxes;
      p.by_row_boxes = D(tile.row_boxes);
      p.plane_slots = tile.plane_slots;
    } else {
      p.x = map_pixels(problem, tile, x);
    }
    run(problem, tile, y, epilogue.residual);
  }
  if (problem.woven > 0) {
    weave_phases(asked, problem, y, result, /*early=*/true, context.stream);
  }
}

}  // namespace customconv::implicit_gemm::sm90
