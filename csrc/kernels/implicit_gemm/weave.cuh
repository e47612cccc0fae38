#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/common/activate.cuh"
#include "kernels/common/channel_value.cuh"
#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/common/start.h"
#include "kernels/implicit_gemm/weave.h"
#include "kernels/ptx/grid.cuh"

namespace customconv::implicit_gemm {

constexpr int kWeaveBlock = 256;

template <typename T>
struct Weave {
  const T* phases;
  T* planes;
  int count;                        // of vectors
  Divider<int32_t> W, H;            // columns and rows of a plane
  Divider<int32_t> step_h, step_w;  // pixels from one of a phase to the next
  int P, Q;                         // of a phase
  int64_t plane;                    // elements from one plane to the next
  int64_t first[kMostPhases];       // of the phase at each place; -1 where none has taps
};

// Each thread stores a vector of kPixels, which may go on in the next row unless `kWholeRows`.
template <typename T, int kPixels, bool kWholeRows>
__global__ void __launch_bounds__(kWeaveBlock) weave(const __grid_constant__ Weave<T> p) {
  const int at = blockIdx.x * kWeaveBlock + threadIdx.x;
  if (at >= p.count) return;
  int32_t plane = at * kPixels;
  int w = p.W.split(plane), h = p.H.split(plane);
  T* const to = p.planes + plane * p.plane + h * p.W.divisor() + w;
  alignas(kPixels * sizeof(T)) T pixels[kPixels];
  ptx::await_dependency();
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    int32_t row = h, column = w;
    const int place_h = p.step_h.split(row), place_w = p.step_w.split(column);
    const int64_t first = p.first[place_h * p.step_w.divisor() + place_w];
    const T* from = p.phases + (int64_t{plane} * p.P + row) * p.Q + column;
    pixels[i] = first < 0 ? narrow<T>(0.0f) : from[first];
    ++w;
    if (kWholeRows || w < p.W.divisor()) continue;
    w = 0;
    if (++h < p.H.divisor()) continue;
    h = 0;
    ++plane;
  }
  if constexpr (kPixels == 1) {
    *to = pixels[0];
  } else {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(pixels);
  }
}

// The operands of an input gradient, with their strides.
template <typename T>
struct Gradient {
  const T *y, *w;
  int64_t y_n, y_k, y_p, y_q, w_k, w_c, w_r, w_s;
  int K, P, Q, R, S;
  int pad_h, pad_w, dilation_h, dilation_w;
  Divider<int32_t> stride_h, stride_w;
};

// A pixel of an input gradient, from its own taps alone.
template <typename T>
__device__ float sum_pixel(const Gradient<T>& g, int n, int c, int h, int w) {
  float sum = 0;
  for (int r = 0; r < g.R; ++r) {
    int32_t p = h + g.pad_h - r * g.dilation_h;
    if (p < 0 || g.stride_h.split(p) != 0 || p >= g.P) continue;
    for (int s = 0; s < g.S; ++s) {
      int32_t q = w + g.pad_w - s * g.dilation_w;
      if (q < 0 || g.stride_w.split(q) != 0 || q >= g.Q) continue;
      const T* y = g.y + n * g.y_n + p * g.y_p + q * g.y_q;
      const T* weight = g.w + c * g.w_c + r * g.w_r + s * g.w_s;
      for (int k = 0; k < g.K; ++k) sum = fmaf(widen(y[k * g.y_k]), widen(weight[k * g.w_k]), sum);
    }
  }
  return sum;
}

// What is read: channels of phases (row, column, channel), in planes or channels-last.
template <typename T>
struct Spread {
  const T* from;
  T* to;
  int count;                                // of vectors
  Divider<int32_t> by_row, by_H, by_C;      // vectors of a row that is stored, rows, and planes
  Divider<int32_t> by_channels;             // of a pixel that is stored, side by side
  Divider<int32_t> step_h, run;             // rows of a phase's pixel; elements of a row of it
  int first_h, first;                       // rows and elements that a row begins behind a pixel
  int64_t n, c, row, step, pixel, element;  // strides of what is read: `step` of rows of a pixel
  int64_t to_n, to_c, to_h;                 // and of what is stored
  bool at_once;                             // vectors are read as they are stored
  bool repairs;                             // phases have weights of zero
  Gradient<T> gradient;
  bool finishes;  // there is an epilogue
  Epilogue epilogue;
};

// Scale, bias and activation of a vector that begins at `x` of a row, in plane `c`.
template <typename T, int kVector>
__device__ inline void finish(const Spread<T>& p, int c, int x, T (&values)[kVector]) {
  const Epilogue& epilogue = p.epilogue;
  float results[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    int32_t element = x + i;
    const int channel = c + p.by_channels.split(element);
    results[i] = widen(values[i]);
    if (epilogue.scale != nullptr) {
      results[i] *= channel_value<T>(epilogue, epilogue.scale, channel);
    }
    if (epilogue.bias != nullptr) {
      results[i] += channel_value<T>(epilogue, epilogue.bias, channel);
    }
  }
  activate<kVector>(results, epilogue.activation, epilogue.negative_slope);
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] = narrow<T>(results[i]);
}

// Each thread stores a vector of a row. A weight of zero times what is not finite is not a number:
// such sums are summed again.
template <typename T, int kVector>
__global__ void __launch_bounds__(kWeaveBlock) spread_phases(const __grid_constant__ Spread<T> p) {
  const int at = blockIdx.x * kWeaveBlock + threadIdx.x;
  if (at >= p.count) return;
  int32_t n = at;
  const int x = p.by_row.split(n) * kVector, h = p.by_H.split(n), c = p.by_C.split(n);
  int32_t row = h + p.first_h, pixel = x + p.first;
  const int step = p.step_h.split(row);
  int element = p.run.split(pixel);
  const T* const from = p.from + n * p.n + c * p.c + row * p.row + step * p.step;
  alignas(kVector * sizeof(T)) T values[kVector];
  ptx::await_dependency();
  if (kVector > 1 && p.at_once) {
    *reinterpret_cast<uint4*>(values) =
        *reinterpret_cast<const uint4*>(from + pixel * p.pixel + element);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[i] = from[pixel * p.pixel + element * p.element];
      if (++element < p.run.divisor()) continue;
      element = 0;
      ++pixel;
    }
  }
  if (p.repairs) {
    for (int i = 0; i < kVector; ++i) {
      if (isfinite(widen(values[i]))) continue;
      int32_t w = x + i;
      const int own_c = c + p.by_channels.split(w);
      values[i] = narrow<T>(sum_pixel(p.gradient, n, own_c, h, w));
    }
  }
  if (p.finishes) finish(p, c, x, values);
  T* const to = p.to + n * p.to_n + c * p.to_c + h * p.to_h + x;
  if constexpr (kVector == 1) {
    *to = values[0];
  } else {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values);
  }
}

template <typename T>
Gradient<T> gradient_of(const ConvProblem& p, const T* y, const T* w) {
  using D = Divider<int32_t>;
  const auto small = [](int64_t value) { return static_cast<int>(value); };
  return {y,
          w,
          p.y_strides[0],
          p.y_strides[1],
          p.y_strides[2],
          p.y_strides[3],
          p.w_strides[0],
          p.w_strides[1],
          p.w_strides[2],
          p.w_strides[3],
          small(p.K),
          small(p.P),
          small(p.Q),
          small(p.R),
          small(p.S),
          small(p.pad_h),
          small(p.pad_w),
          small(p.dilation_h),
          small(p.dilation_w),
          D(p.stride_h),
          D(p.stride_w)};
}

template <typename T>
void spread_joined_phases(const ConvProblem& asked, const Forward& p, const T* from, const T* y,
                          const T* w, T* to, const Epilogue& epilogue, cudaStream_t stream) {
  using D = Divider<int32_t>;
  constexpr int64_t kVector = 16 / static_cast<int64_t>(sizeof(T));
  const Shape4 &x_strides = asked.x_strides, &strides = p.y_strides;
  const bool planes = asked.C > 1 && x_strides[1] != 1;
  const int64_t channels = planes ? 1 : asked.C, row = asked.W * channels;
  const int64_t run = p.step_w * channels, first = asked.pad_w % p.step_w * channels;
  const auto whole = [](int64_t count, int64_t stride) {
    return count == 1 || stride % kVector == 0;
  };
  const bool vectors = row % kVector == 0 && whole(asked.N, x_strides[0]) &&
                       whole(asked.H, x_strides[2]) && (!planes || whole(asked.C, x_strides[1])) &&
                       reinterpret_cast<uintptr_t>(to) % 16 == 0;
  const int64_t units = row / (vectors ? kVector : 1);
  Spread<T> spread{};
  spread.from = from;
  spread.to = to;
  spread.count = static_cast<int>(asked.N * (planes ? asked.C : 1) * asked.H * units);
  spread.by_row = D(units);
  spread.by_H = D(asked.H);
  spread.by_C = D(planes ? asked.C : 1);
  spread.by_channels = D(channels);
  spread.step_h = D(p.step_h);
  spread.run = D(run);
  spread.first_h = static_cast<int>(asked.pad_h % p.step_h);
  spread.first = static_cast<int>(first);
  spread.n = strides[0];
  spread.c = strides[1];
  spread.row = strides[2];
  spread.step = p.step_w * asked.C * strides[1];
  spread.pixel = strides[3];
  spread.element = planes ? asked.C * strides[1] : 1;
  spread.to_n = x_strides[0];
  spread.to_c = x_strides[1];
  spread.to_h = x_strides[2];
  spread.at_once = !planes && run % kVector == 0 && first % kVector == 0;
  spread.repairs = asked.R % p.step_h != 0 || asked.S % p.step_w != 0;
  spread.gradient = gradient_of(asked, y, w);
  spread.finishes = !epilogue.is_empty();
  spread.epilogue = epilogue;
  start("implicit_gemm: the phases",
        {ceil_divide(spread.count, kWeaveBlock), kWeaveBlock, 0, stream, /*early=*/true},
        vectors ? spread_phases<T, kVector> : spread_phases<T, 1>, spread);
}

template <typename T>
void weave_phases(const ConvProblem& asked, const Forward& problem, const T* phases, T* planes,
                  bool early, cudaStream_t stream) {
  constexpr int kPixels = 16 / static_cast<int>(sizeof(T));
  // Planes of some rows of an image are further apart: a vector must not go on in the next one.
  const int64_t pixels = asked.H * asked.W, plane = asked.C > 1 ? asked.x_strides[1] : pixels;
  const bool dense = plane == pixels;
  const bool whole =
      dense ? asked.x_count() % kPixels == 0 : pixels % kPixels == 0 && plane % kPixels == 0;
  const bool vectors = whole && reinterpret_cast<uintptr_t>(planes) % 16 == 0;
  using D = Divider<int32_t>;
  Weave<T> p{};
  p.phases = phases;
  p.planes = planes;
  p.count = static_cast<int>(asked.x_count() / (vectors ? kPixels : 1));
  p.W = D(asked.W);
  p.H = D(asked.H);
  p.step_h = D(problem.step_h);
  p.step_w = D(problem.step_w);
  p.P = static_cast<int>(ceil_divide(asked.H, problem.step_h));
  p.Q = static_cast<int>(ceil_divide(asked.W, problem.step_w));
  p.plane = plane;
  std::fill(p.first, p.first + kMostPhases, -1);
  for (int i = 0; i < problem.phases; ++i) {
    p.first[problem.phase[i].place] = problem.phase[i].offset;
  }
  start("implicit_gemm: the phases",
        {ceil_divide(p.count, kWeaveBlock), kWeaveBlock, 0, stream, early},
        !vectors                 ? weave<T, 1, false>
        : asked.W % kPixels == 0 ? weave<T, kPixels, true>
                                 : weave<T, kPixels, false>,
        p);
}

}  // namespace customconv::implicit_gemm
