// Starts the main loop, behind what packs its operands.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/common/parts.cuh"
#include "kernels/common/start.h"
#include "kernels/implicit_gemm/pack_weights.h"
#include "kernels/implicit_gemm/sm90/fill_params.cuh"
#include "kernels/implicit_gemm/sm90/kernels.h"
#include "kernels/implicit_gemm/sm90/launch.h"
#include "kernels/implicit_gemm/sm90/pack_input.cuh"
#include "kernels/implicit_gemm/sm90/payload.h"
#include "kernels/implicit_gemm/weave.h"

namespace customconv::implicit_gemm::sm90 {

template <typename T>
Kernel kernel_of(const Tile& tile, bool has_epilogue) {
  if constexpr (sizeof(T) == 2) {
    if (tile.weights_as_stored) return kernel_of<T, false, true>(tile);
  }
  return is_fused(tile.loader, tile.store, tile.stream_k, has_epilogue)
             ? kernel_of<T, true, false>(tile)
             : kernel_of<T, false, false>(tile);
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
