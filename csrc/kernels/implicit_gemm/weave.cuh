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
  ptx::wait_on_dependent_grids();
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
  Divider<int32_t> by_row, by_H, by_C;      // vectors, or elements, of a row; rows; and planes
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

// A row that is stored, and where the next element of it is read.
template <typename T>
struct SpreadRow {
  int n, c, h;
  const T* from;
  int pixel, element;

  // The row of this number, from element `x` on.
  __device__ SpreadRow(const Spread<T>& p, int32_t number, int x) {
    n = number;
    h = p.by_H.split(n);
    c = p.by_C.split(n);
    int32_t row = h + p.first_h;
    const int step = p.step_h.split(row);
    from = p.from + n * p.n + c * p.c + row * p.row + step * p.step;
    pixel = x + p.first;
    element = p.run.split(pixel);
  }

  __device__ T next(const Spread<T>& p) {
    const T value = from[pixel * p.pixel + element * p.element];
    if (++element == p.run.divisor()) {
      element = 0;
      ++pixel;
    }
    return value;
  }
};

// Scale, bias and activation of a vector. `channel(i)` is that of element `i`.
template <typename T, int kVector, typename Channel>
__device__ inline void finish(const Epilogue& epilogue, const Channel& channel,
                              T (&values)[kVector]) {
  float results[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    results[i] = widen(values[i]);
    if (epilogue.scale != nullptr) {
      results[i] *= channel_value<T>(epilogue, epilogue.scale, channel(i));
    }
    if (epilogue.bias != nullptr) {
      results[i] += channel_value<T>(epilogue, epilogue.bias, channel(i));
    }
  }
  activate<kVector>(results, epilogue.activation, epilogue.negative_slope);
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] = narrow<T>(results[i]);
}

// Each thread stores a vector of a row, which goes on in the next row unless `kWholeRows`. A weight
// of zero times what is not finite is not a number: such sums are summed again.
template <typename T, int kVector, bool kWholeRows>
__global__ void __launch_bounds__(kWeaveBlock) spread_phases(const __grid_constant__ Spread<T> p) {
  const int at = blockIdx.x * kWeaveBlock + threadIdx.x;
  if (at >= p.count) return;
  int32_t number = kWholeRows ? at : at * kVector;
  const int x = p.by_row.split(number) * (kWholeRows ? kVector : 1);
  const SpreadRow<T> row(p, number, x);
  // Elements of the vector that are left in its first row; the others are in the one after it.
  const int left = kWholeRows ? kVector : p.by_row.divisor() - x;
  const SpreadRow<T> after = left < kVector ? SpreadRow<T>(p, number + 1, 0) : row;
  alignas(kVector * sizeof(T)) T values[kVector];
  ptx::wait_on_dependent_grids();
  if (kVector > 1 && p.at_once) {
    *reinterpret_cast<uint4*>(values) =
        *reinterpret_cast<const uint4*>(row.from + row.pixel * p.pixel + row.element);
  } else {
    SpreadRow<T> source = row;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i == left) source = after;
      values[i] = source.next(p);
    }
  }
  const auto row_of = [&](int i) -> const SpreadRow<T>& { return i < left ? row : after; };
  // Splits an element's place in its row into the pixel and the channel.
  const auto channel_of = [&](int i, int32_t& w) {
    w = i < left ? x + i : i - left;
    return row_of(i).c + p.by_channels.split(w);
  };
  if (p.repairs) {
    for (int i = 0; i < kVector; ++i) {
      if (isfinite(widen(values[i]))) continue;
      int32_t w;
      const int c = channel_of(i, w);
      values[i] = narrow<T>(sum_pixel(p.gradient, row_of(i).n, c, row_of(i).h, w));
    }
  }
  if (p.finishes) {
    int32_t w;
    finish(p.epilogue, [&](int i) { return channel_of(i, w); }, values);
  }
  T* const to = kWholeRows ? p.to + row.n * p.to_n + row.c * p.to_c + row.h * p.to_h + x
                           : p.to + int64_t{at} * kVector;
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
  const Shape5 &x_strides = asked.x_strides, &strides = p.y_strides;
  const bool planes = asked.C > 1 && x_strides[1] != 1;
  const int64_t channels = planes ? 1 : asked.C, row = asked.W * channels;
  const int64_t run = p.step_w * channels, first = asked.pad_w % p.step_w * channels;
  const auto whole = [](int64_t count, int64_t stride) {
    return count == 1 || stride % kVector == 0;
  };
  const bool aligned = reinterpret_cast<uintptr_t>(to) % 16 == 0;
  const bool whole_rows = aligned && row % kVector == 0 && whole(asked.N, x_strides[0]) &&
                          whole(asked.H, x_strides[2]) && (!planes || whole(asked.C, x_strides[1]));
  // Of other rows, vectors may hold the end of one and the beginning of the next.
  const bool dense =
      aligned && !whole_rows && row >= kVector && asked.x_count() % kVector == 0 &&
      asked.x_count() <= INT32_MAX &&
      strides_match(asked.x_sizes(), x_strides, planes ? Layout::kNchw : Layout::kNhwc);
  const bool vectors = whole_rows || dense;
  Spread<T> spread{};
  spread.from = from;
  spread.to = to;
  const int64_t rows = asked.N * (planes ? asked.C : 1) * asked.H;
  spread.count = static_cast<int>(rows * row / (vectors ? kVector : 1));
  spread.by_row = D(whole_rows ? row / kVector : row);
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
  spread.at_once = whole_rows && !planes && run % kVector == 0 && first % kVector == 0;
  spread.repairs = asked.R % p.step_h != 0 || asked.S % p.step_w != 0;
  spread.gradient = gradient_of(asked, y, w);
  spread.finishes = !epilogue.is_empty();
  spread.epilogue = epilogue;
  start("implicit_gemm: the phases",
        {ceil_divide(spread.count, kWeaveBlock), kWeaveBlock, 0, stream, /*early=*/true},
        whole_rows ? spread_phases<T, kVector, true>
        : dense    ? spread_phases<T, kVector, false>
                   : spread_phases<T, 1, true>,
        spread);
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
