// Starts the kernels that lay weights out as matrices.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "kernels/common/check.h"
#include "kernels/implicit_gemm/pack.cuh"
#include "kernels/implicit_gemm/pack_weights.h"

namespace customconv::implicit_gemm {

// The weight of an input gradient, with its channels as they were.
template <typename T>
WeightSource<T> stored_source(const Forward& p, const T* w) {
  const auto& strides = p.w_strides;
  WeightSource<T> from = weight_source(p, w);
  from.w = w;
  from.k = strides[1];
  from.c = strides[0];
  from.r = -strides[2];
  from.s = -strides[3];
  from.group = strides[1] * p.group_C();
  from.group_K = Divider<int32_t>(p.group_C());
  from.K = static_cast<int>(p.C);
  from.C = static_cast<int>(p.group_K());
  from.period_h = from.period_w = 1;
  from.tap_channels = Divider<int32_t>(from.C);
  return from;
}

template <typename T>
void pack_joined_weight(const ConvProblem& asked, const Forward& p, const PackedWeight& packed,
                        const T* w, T* to, cudaStream_t stream) {
  using D = Divider<int32_t>;
  const auto& strides = asked.w_strides;
  JoinedSource<T> from{};
  from.w = w;
  from.k = strides[0];
  from.c = strides[1];
  from.r = strides[2];
  from.s = strides[3];
  from.K = static_cast<int>(asked.K);
  from.R = static_cast<int>(asked.R);
  from.S = static_cast<int>(asked.S);
  from.step_h = static_cast<int>(p.step_h);
  from.step_w = static_cast<int>(p.step_w);
  from.taps_h = static_cast<int>(p.R);
  from.taps_w = static_cast<int>(p.S);
  from.by_C = D(asked.C);
  from.by_step_w = D(p.step_w);
  from.order = packed.order;
  // Threads that have all phases read each filter once, if there are enough of them.
  constexpr int64_t kEnough = 1 << 16;
  const int64_t phases = p.step_h * p.step_w, filters = packed.row * asked.C;
  const int64_t parts = filters >= kEnough ? 1 : phases;
  pack_joined<T>
      <<<static_cast<unsigned>(ceil_divide(filters * parts, kPackBlock)), kPackBlock, 0, stream>>>(
          static_cast<int>(filters * parts), static_cast<int>(phases / parts), D(packed.row), from,
          to);
  check_launch("implicit_gemm: the weight");
}

template <typename T>
void pack_weight_matrix(const Forward& p, bool transposed, const PackedWeight& packed, const T* w,
                        T* to, cudaStream_t stream) {
  using D = Divider<int32_t>;
  WeightSource<T> from = transposed ? stored_source(p, w) : weight_source(p, w);
  from.order = packed.order;
  const bool exchanged = std::abs(from.k) < std::abs(from.c) || from.period_h * from.period_w > 1;
  if (exchanged) {
    const int64_t squares_k = ceil_divide(from.K, kSquare),
                  squares_c = ceil_divide(packed.row, kSquare);
    // As many as share what is read, but no fewer blocks than two a multiprocessor.
    constexpr int64_t kEnough = 264;
    int64_t taps = from.taps_at_once();
    const auto blocks = [&] { return squares_k * squares_c * ceil_divide(from.taps, taps); };
    while (taps > kSquareTaps && blocks() < kEnough) taps = ceil_divide(taps, 2);
    pack_transposed<T><<<static_cast<unsigned>(blocks()), kPackBlock, 0, stream>>>(
        static_cast<int>(packed.row), static_cast<int>(taps), D(squares_k), D(squares_c),
        D(p.taps_w), from, to);
  } else {
    const int64_t threads = packed.rows * packed.row / from.taps_at_once();
    const auto blocks = std::min<int64_t>(ceil_divide(threads, kPackBlock), 4096);
    pack_matrix<T><<<static_cast<unsigned>(blocks), kPackBlock, 0, stream>>>(
        static_cast<int>(threads), D(packed.row), D(from.taps / from.taps_at_once()), D(p.taps_w),
        from, to);
  }
  check_launch("implicit_gemm: the weight");
}

}  // namespace customconv::implicit_gemm
