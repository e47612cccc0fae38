// The family's launcher: tensor maps, packed filters, kernels.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/common/check.h"
#include "kernels/implicit_gemm/pack.cuh"
#include "kernels/implicit_gemm/sm90.cuh"
#include "kernels/launch.h"

namespace customconv::implicit_gemm {

template <typename T>
constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
template <>
inline constexpr CUtensorMapDataType kMapType<__nv_bfloat16> = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
// Rounded to TF32 on the way.
template <>
inline constexpr CUtensorMapDataType kMapType<float> = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;

// A tensor of kRank dimensions, innermost first, in boxes of rows of kRowBytes. `steps` count
// elements between those that are taken.
template <int kRank>
struct Boxes {
  cuuint64_t sizes[kRank];
  cuuint64_t strides[kRank - 1];  // bytes
  cuuint32_t box[kRank];
  cuuint32_t steps[kRank];
};

template <int kRank>
CUtensorMap make_map(const void* data, CUtensorMapDataType type, const Boxes<kRank>& boxes,
                     CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &found),
               "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  CUtensorMap map;
  const CUresult status =
      encode(&map, type, kRank, const_cast<void*>(data), boxes.sizes, boxes.strides, boxes.box,
             boxes.steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw std::runtime_error("customconv: implicit_gemm: no tensor map (CUDA error " +
                             std::to_string(static_cast<int>(status)) + ")");
  }
  return map;
}

template <typename T>
CUtensorMap map_input(const ConvProblem& p, const Tile& tile, const T* x) {
  constexpr int64_t kSize = sizeof(T);
  // A dimension of one may have any stride; the map wants a legal one.
  const auto stride = [&](int64_t size, int64_t stride) {
    return static_cast<cuuint64_t>(size > 1 ? stride * kSize : 16);
  };
  const auto span = [](int64_t count, int64_t step) {
    return static_cast<cuuint32_t>((count - 1) * step + 1);
  };
  Boxes<4> boxes{
      {static_cast<cuuint64_t>(p.C), static_cast<cuuint64_t>(p.W), static_cast<cuuint64_t>(p.H),
       static_cast<cuuint64_t>(p.N)},
      {stride(p.W, p.x_strides[3]), stride(p.H, p.x_strides[2]), stride(p.N, p.x_strides[0])},
      {kRowBytes / kSize, span(tile.pitch, p.stride_w), span(tile.plane_rows, p.stride_h),
       static_cast<cuuint32_t>(tile.images)},
      {1, static_cast<cuuint32_t>(p.stride_w), static_cast<cuuint32_t>(p.stride_h), 1}};
  return make_map(x, kMapType<T>, boxes);
}

// Pieces of channels-first images; threads take of a row what the stride leaves.
template <typename T>
CUtensorMap map_pieces(const ConvProblem& p, const Tile& tile, const T* x) {
  constexpr int64_t kSize = sizeof(T);
  const auto stride = [&](int64_t size, int64_t stride) {
    return static_cast<cuuint64_t>(size > 1 ? stride * kSize : 16);
  };
  Boxes<4> boxes{
      {static_cast<cuuint64_t>(p.W), static_cast<cuuint64_t>(p.H), static_cast<cuuint64_t>(p.C),
       static_cast<cuuint64_t>(p.N)},
      {stride(p.H, p.x_strides[2]), stride(p.C, p.x_strides[1]), stride(p.N, p.x_strides[0])},
      {static_cast<cuuint32_t>(tile.pieces.row / kSize),
       static_cast<cuuint32_t>((tile.plane_rows - 1) * p.stride_h + 1),
       static_cast<cuuint32_t>(tile.pieces.count * kPieceBytes / kSize),
       static_cast<cuuint32_t>(tile.images)},
      {1, static_cast<cuuint32_t>(p.stride_h), 1, 1}};
  return make_map(x, kMapType<T>, boxes, CU_TENSOR_MAP_SWIZZLE_NONE);
}

// Spans of whole rows: a channel's plane is one dimension.
template <typename T>
CUtensorMap map_spans(const ConvProblem& p, const Tile& tile, const T* x) {
  constexpr int64_t kSize = sizeof(T);
  Boxes<3> boxes{{static_cast<cuuint64_t>(p.H * p.W * kSize / kSpanUnit),
                  static_cast<cuuint64_t>(p.C), static_cast<cuuint64_t>(p.N)},
                 {static_cast<cuuint64_t>(p.H * p.W * kSize),
                  static_cast<cuuint64_t>(p.N > 1 ? p.x_strides[0] * kSize : 16)},
                 {static_cast<cuuint32_t>(tile.pieces.channel / kSpanUnit),
                  static_cast<cuuint32_t>(tile.pieces.count * kPieceBytes / kSize), 1},
                 {1, 1, 1}};
  return make_map(x, CU_TENSOR_MAP_DATA_TYPE_FLOAT64, boxes, CU_TENSOR_MAP_SWIZZLE_NONE);
}

template <typename T>
CUtensorMap map_output(const ConvProblem& p, const Tile& tile, const T* y) {
  constexpr int64_t kSize = sizeof(T);
  const auto stride = [](int64_t size, int64_t stride) {
    return static_cast<cuuint64_t>(size > 1 ? stride * kSize : 16);
  };
  Boxes<4> boxes{
      {static_cast<cuuint64_t>(p.K), static_cast<cuuint64_t>(p.Q), static_cast<cuuint64_t>(p.P),
       static_cast<cuuint64_t>(p.N)},
      {stride(p.Q, p.y_strides[3]), stride(p.P, p.y_strides[2]), stride(p.N, p.y_strides[0])},
      {kRowBytes / kSize, tile.shape == Shape::kSquares ? 8u : 64u,
       tile.shape == Shape::kSquares ? 8u : 1u, 1},
      {1, 1, 1, 1}};
  const auto type = sizeof(T) == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : kMapType<T>;
  return make_map(y, type, boxes);
}

template <typename T>
CUtensorMap map_weight(const ConvProblem& p, const Tile& tile, const T* packed) {
  constexpr int64_t kSize = sizeof(T);
  const int64_t channels = packed_channels(p, tile.flat);
  const int64_t taps = tile.flat ? 1 : p.R * p.S;
  Boxes<3> boxes{
      {static_cast<cuuint64_t>(channels), static_cast<cuuint64_t>(taps),
       static_cast<cuuint64_t>(p.K)},
      {static_cast<cuuint64_t>(channels * kSize), static_cast<cuuint64_t>(taps * channels * kSize)},
      {kRowBytes / kSize, 1, static_cast<cuuint32_t>(tile.kind().channels)},
      {1, 1, 1}};
  return make_map(packed, kMapType<T>, boxes);
}

template <typename T>
const T* packed_weight(const ConvProblem& p, const Tile& tile, const T* w,
                       const LaunchContext& context) {
  if (!tile.flat && weight_is_packed(p)) return w;
  auto* packed = static_cast<T*>(context.workspace);
  const int64_t channels = packed_channels(p, tile.flat);
  const int64_t taps = tile.flat ? 1 : p.R * p.S;
  const int64_t count = p.K * taps * channels;
  using D = Divider<int32_t>;
  const auto blocks = std::min<int64_t>((count + kPackBlock - 1) / kPackBlock, 4096);
  pack_weight<T><<<static_cast<unsigned>(blocks), kPackBlock, 0, context.stream>>>(
      static_cast<int>(count), D(channels), D(taps), D(p.S), D(p.C), tile.flat,
      static_cast<int>(p.C), static_cast<int>(tile.flat ? p.C * p.R * p.S : p.C), p.w_strides[0],
      p.w_strides[1], p.w_strides[2], p.w_strides[3], w, packed);
  check_launch("implicit_gemm pack_weight");
  return packed;
}

template <typename T>
Output<T> make_output(const ConvProblem& p, const Tile& tile, const Operands& operands) {
  Output<T> out{};
  out.data = static_cast<T*>(operands.y);
  out.bias = static_cast<const T*>(operands.bias);
  out.n = p.y_strides[0];
  out.k = p.y_strides[1];
  out.p = p.y_strides[2];
  out.q = p.y_strides[3];
  out.N = static_cast<int>(p.N);
  out.K = static_cast<int>(p.K);
  out.P = static_cast<int>(p.P);
  out.Q = static_cast<int>(p.Q);
  const bool aligned = reinterpret_cast<uintptr_t>(out.data) % 16 == 0;
  out.vectors = aligned && p.K % (sizeof(T) == 2 ? 8 : 2) == 0;
  out.words = out.k * static_cast<int64_t>(sizeof(T)) % 4 == 0;
  out.lines = tile.shape != Shape::kSquares;
  out.rows = tile.rows;
  out.columns = tile.columns;
  using D = Divider<int32_t>;
  out.pitch = D(tile.pitch);
  out.line_rows = D(tile.shape == Shape::kRun ? tile.plane_rows : INT32_MAX);
  out.squares_w = D(std::max(tile.columns / 8, 1));
  out.squares_h = D(std::max(tile.rows * 8 / tile.kind().block, 1));
  return out;
}

template <typename T>
Turn<T> make_turn(const ConvProblem& p, const Tile& tile, const T* x) {
  Turn<T> t{};
  t.x = x;
  t.end = reinterpret_cast<const char*>(x + max_offset(p.x_sizes(), p.x_strides) + 1);
  t.n = p.x_strides[0];
  t.c = p.x_strides[1];
  t.N = static_cast<int>(p.N);
  t.C = static_cast<int>(p.C);
  t.H = static_cast<int>(p.H);
  t.W = static_cast<int>(p.W);
  t.boxed = tile.loader == Loader::kTurnedBoxes;
  t.pieces = tile.pieces;
  t.positions = tile.positions;
  t.period = tile.pitch * tile.plane_rows;
  t.stride_h = static_cast<int>(p.stride_h);
  t.stride_w = static_cast<int>(p.stride_w);
  t.boxed_bytes = tile.pieces.image * tile.images;
  t.pitch = Divider<int32_t>(tile.pitch);
  t.plane_rows = Divider<int32_t>(tile.plane_rows);
  return t;
}

template <typename T>
Gather<T> make_gather(const ConvProblem& p, const Tile& tile, const T* x) {
  Gather<T> g{};
  g.x = x;
  g.n = p.x_strides[0];
  g.c = p.x_strides[1];
  g.h = p.x_strides[2];
  g.w = p.x_strides[3];
  g.N = static_cast<int>(p.N);
  g.C = static_cast<int>(p.C);
  g.H = static_cast<int>(p.H);
  g.W = static_cast<int>(p.W);
  g.positions = tile.positions;
  g.stride_h = static_cast<int>(p.stride_h);
  g.stride_w = static_cast<int>(p.stride_w);
  g.flat = tile.flat;
  g.flat_channels = static_cast<int>(p.C * p.R * p.S);
  g.dilation_h = static_cast<int>(p.dilation_h);
  g.dilation_w = static_cast<int>(p.dilation_w);
  g.pitch = Divider<int32_t>(tile.pitch);
  g.plane_rows = Divider<int32_t>(tile.plane_rows);
  g.by_C = Divider<int32_t>(p.C);
  g.by_S = Divider<int32_t>(p.S);
  return g;
}

template <typename T>
using KernelOf = void (*)(Params<T>);

template <typename T, Loader kLoader, bool kPlanar, size_t... kIndex>
KernelOf<T> kernel_at(int index, std::index_sequence<kIndex...>) {
  const auto address = [](auto number) -> KernelOf<T> {
    if constexpr (kKernels[number].planar == kPlanar) {
      return convolve<T, static_cast<int>(number), kLoader>;
    } else {
      return nullptr;
    }
  };
  static const KernelOf<T> kTable[] = {address(std::integral_constant<size_t, kIndex>())...};
  return kTable[index];
}

template <typename T>
KernelOf<T> kernel_for(const Tile& tile) {
  constexpr auto kAll = std::make_index_sequence<kKernelCount>();
  if (is_turned(tile.loader)) return kernel_at<T, Loader::kTurnedBoxes, true>(tile.kernel, kAll);
  if (tile.loader == Loader::kBoxes) return kernel_at<T, Loader::kBoxes, false>(tile.kernel, kAll);
  return tile.kind().planar ? kernel_at<T, Loader::kGathered, true>(tile.kernel, kAll)
                            : kernel_at<T, Loader::kGathered, false>(tile.kernel, kAll);
}

template <typename T, size_t... kIndex>
KernelOf<T> reducer_at(int index, std::index_sequence<kIndex...>) {
  static constexpr KernelOf<T> kTable[] = {add_splits<T, static_cast<int>(kIndex)>...};
  return kTable[index];
}

template <typename T>
void launch(const ConvProblem& asked, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  const ConvProblem problem = as_one_row(asked);
  const Tile tile = tile_of(problem, plan);
  const auto* x = static_cast<const T*>(operands.x);
  Params<T> p{};
  p.out = make_output<T>(problem, tile, operands);
  const T* w = packed_weight(problem, tile, static_cast<const T*>(operands.w), context);
  p.w = map_weight(problem, tile, w);
  switch (tile.loader) {
    case Loader::kBoxes:
      p.x = map_input(problem, tile, x);
      break;
    case Loader::kTurnedBoxes:
      p.x = map_pieces(problem, tile, x);
      p.turn = make_turn(problem, tile, x);
      break;
    case Loader::kTurnedSpans:
      if (tile.pieces.boxes) p.x = map_spans(problem, tile, x);
      p.turn = make_turn(problem, tile, x);
      break;
    case Loader::kGathered:
      p.gather = make_gather(problem, tile, x);
      break;
  }
  const bool one_tap = tile.flat;
  p.R = one_tap ? 1 : static_cast<int>(problem.R);
  p.S = one_tap ? 1 : static_cast<int>(problem.S);
  p.h = tile.h;
  p.w_axis = tile.w;
  p.stride_h = static_cast<int>(problem.stride_h);
  p.stride_w = static_cast<int>(problem.stride_w);
  p.dilation_h = static_cast<int>(problem.dilation_h);
  p.dilation_w = static_cast<int>(problem.dilation_w);
  p.pad_h = static_cast<int>(problem.pad_h);
  p.pad_w = static_cast<int>(problem.pad_w);
  p.rows = tile.rows;
  p.columns = tile.columns;
  p.images = tile.images;
  p.run = tile.shape == Shape::kRun ? tile.kind().pixels : 0;
  p.pitch = tile.pitch;
  p.x_stages = tile.x_stages;
  p.w_stages = tile.w_stages;
  p.boxed_out = tile.boxed_out && tile.splits == 1;
  if (p.boxed_out) p.y = map_output(problem, tile, p.out.data);
  p.staging_bytes = staging(problem, tile);
  p.plane_bytes = tile.plane_bytes();
  p.boxed_bytes = tile.positions * kRowBytes;
  for (int i = 0; i < tile.blocks(); ++i) {
    int position = i * tile.kind().block;
    if (tile.shape == Shape::kSquares) {
      const int high = tile.kind().block / 8, across = tile.columns / 8, down = tile.rows / high;
      const int column = i % across * 8, row = i / across % down * high, image = i / across / down;
      position = (image * tile.plane_rows + row) * tile.pitch + column;
    }
    p.block_at[i] = static_cast<uint32_t>(position * kRowBytes);
  }
  p.group_bytes =
      static_cast<uint32_t>((tile.shape == Shape::kSquares ? tile.pitch : 8) * kRowBytes);
  p.steps = tile.steps();
  p.splits = tile.splits;
  p.items = static_cast<int>(tile.tiles()) * tile.splits;
  p.chunks = tile.chunks;
  const int64_t channels = tile.flat ? problem.C * problem.R * problem.S : problem.C;
  const int64_t last = channels - int64_t{tile.chunks - 1} * (kRowBytes / sizeof(T));
  p.last_products = static_cast<int>((last * static_cast<int64_t>(sizeof(T)) + 31) / 32);
  using D = Divider<int32_t>;
  p.tiles_k = D(tile.tiles_k);
  p.tiles_q = D(tile.tiles_q);
  p.tiles_p = D(tile.tiles_p);
  p.tiles_n = D(tile.tiles_n);
  p.partial = reinterpret_cast<float*>(static_cast<char*>(context.workspace) +
                                       plan.workspace_bytes - partial_bytes(tile));

  const KernelOf<T> kernel = kernel_for<T>(tile);
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes),
      "implicit_gemm: shared memory");
  kernel<<<static_cast<unsigned>(plan.grid[0]), static_cast<unsigned>(plan.block),
           static_cast<size_t>(plan.shared_bytes), context.stream>>>(p);
  check_launch("implicit_gemm");
  if (tile.splits > 1) {
    constexpr auto kAll = std::make_index_sequence<kKernelCount>();
    const size_t staging = static_cast<size_t>(4 * staging_bytes<T>(tile.kind()));
    const Kernel& kind = tile.kind();
    const int64_t parts =
        int64_t{kWarpgroups} * kind.blocks() * (kind.columns() / split_columns<T>(kind));
    reducer_at<T>(
        tile.kernel,
        kAll)<<<static_cast<unsigned>(tile.tiles() * parts), 128, staging, context.stream>>>(p);
    check_launch("implicit_gemm add_splits");
  }
}

}  // namespace customconv::implicit_gemm
