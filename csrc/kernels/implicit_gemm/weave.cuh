#pragma once

#include <algorithm>
#include <cstdint>

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
