// The family's kernels: columns written, summed and rounded.
#pragma once

#include <cstdint>

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/im2col/columns.h"

namespace customconv::im2col {

// What the column kernels need to know of a problem. Offsets into x are Index; a chunk of columns
// never passes 2^31 entries.
template <typename Index>
struct Geometry {
  int group_C, R, S, H, W, P, Q;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  Index x_n, x_c, x_h, x_w;
  bool taps_first;     // rows are (r, s, c) in a group, else (c, r, s)
  bool channels_last;  // a row a pixel
  Divider<int32_t> by_Q, by_S, by_R, by_group_C, by_W, by_H, by_C, by_stride_h, by_stride_w;

  explicit Geometry(const ConvProblem& p)
      : group_C(static_cast<int>(p.group_C())),
        R(static_cast<int>(p.R)),
        S(static_cast<int>(p.S)),
        H(static_cast<int>(p.H)),
        W(static_cast<int>(p.W)),
        P(static_cast<int>(p.P)),
        Q(static_cast<int>(p.Q)),
        stride_h(static_cast<int>(p.stride_h)),
        stride_w(static_cast<int>(p.stride_w)),
        pad_h(static_cast<int>(p.pad_h)),
        pad_w(static_cast<int>(p.pad_w)),
        dilation_h(static_cast<int>(p.dilation_h)),
        dilation_w(static_cast<int>(p.dilation_w)),
        x_n(static_cast<Index>(p.x_strides[0])),
        x_c(static_cast<Index>(p.x_strides[1])),
        x_h(static_cast<Index>(p.x_strides[2])),
        x_w(static_cast<Index>(p.x_strides[3])),
        taps_first(dense_layout(p.w_sizes(), p.w_strides) == Layout::kNhwc),
        channels_last(is_channels_last(p)),
        by_Q(p.Q),
        by_S(p.S),
        by_R(p.R),
        by_group_C(p.group_C()),
        by_W(p.W),
        by_H(p.H),
        by_C(p.C),
        by_stride_h(p.stride_h),
        by_stride_w(p.stride_w) {}
};

// A part of the batch: images [image, image + images), of each the pixels [pixel, pixel + pixels).
struct Chunk {
  int64_t image, images;
  int pixel, pixels;
};

struct Tap {
  int c, r, s;  // c counts over all groups
};

template <typename Index>
__device__ Tap locate_tap(const Geometry<Index>& g, int row) {
  Tap tap;
  if (g.taps_first) {
    const int c = g.by_group_C.split(row);
    tap.s = g.by_S.split(row);
    tap.r = g.by_R.split(row);
    tap.c = row * g.group_C + c;
  } else {
    tap.s = g.by_S.split(row);
    tap.r = g.by_R.split(row);
    tap.c = row;
  }
  return tap;
}

// Sixteen bytes of columns: what a thread writes at once.
template <typename T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T v[kSize];
};

// Steps to the next row of the column matrix.
template <typename Index>
__device__ void advance(const Geometry<Index>& g, Tap& tap) {
  if (!g.taps_first) {
    if (++tap.s < g.S) return;
    tap.s = 0;
    if (++tap.r < g.R) return;
    tap.r = 0;
    ++tap.c;
    return;
  }
  const int next_group = (g.by_group_C.quotient(tap.c) + 1) * g.group_C;
  if (++tap.c < next_group) return;
  tap.c -= g.group_C;
  if (++tap.s < g.S) return;
  tap.s = 0;
  if (++tap.r < g.R) return;
  tap.r = 0;
  tap.c = next_group;
}

// Writes a chunk's columns, a pack of consecutive entries a thread; entries that fall into the
// padding are 0. Lines of the matrix are `packs` packs long.
template <typename T, typename Index>
__global__ void __launch_bounds__(kBlock)
    write_columns(Geometry<Index> g, int rows, Chunk chunk, Divider<int32_t> by_packs,
                  Divider<int32_t> by_lines, int count, bool load_packs, const T* __restrict__ x,
                  T* __restrict__ columns) {
  constexpr int kPack = Pack<T>::kSize;
  for (int64_t at = blockIdx.x * int64_t{kBlock} + threadIdx.x; at < count;
       at += int64_t{gridDim.x} * kBlock) {
    int n = static_cast<int>(at);
    const int first = by_packs.split(n) * kPack;  // of the line's entries
    const int line = by_lines.split(n);
    const T* image = x + static_cast<Index>(chunk.image + n) * g.x_n;
    Pack<T> pack;
    if (g.channels_last) {
      int p = line + chunk.pixel;
      const int q = g.by_Q.split(p);
      const int h0 = p * g.stride_h - g.pad_h;
      const int w0 = q * g.stride_w - g.pad_w;
      Tap tap = locate_tap(g, first);
      for (int i = 0; i < kPack; ++i) {
        const int h = h0 + tap.r * g.dilation_h;
        const int w = w0 + tap.s * g.dilation_w;
        const bool inside = h >= 0 && h < g.H && w >= 0 && w < g.W && first + i < rows;
        const T* from = image + tap.c * g.x_c + h * g.x_h + w * g.x_w;
        if (load_packs) {
          pack = inside ? *reinterpret_cast<const Pack<T>*>(from) : Pack<T>{};
          break;
        }
        pack.v[i] = inside ? *from : narrow<T>(0);
        advance(g, tap);
      }
    } else {
      const Tap tap = locate_tap(g, line);
      int p = first + chunk.pixel;
      int q = g.by_Q.split(p);
      const T* plane = image + tap.c * g.x_c;
      for (int i = 0; i < kPack; ++i) {
        const int h = p * g.stride_h - g.pad_h + tap.r * g.dilation_h;
        const int w = q * g.stride_w - g.pad_w + tap.s * g.dilation_w;
        const bool inside = h >= 0 && h < g.H && w >= 0 && w < g.W && first + i < chunk.pixels;
        pack.v[i] = inside ? plane[h * g.x_h + w * g.x_w] : narrow<T>(0);
        if (++q == g.Q) {
          q = 0;
          ++p;
        }
      }
    }
    reinterpret_cast<Pack<T>*>(columns)[at] = pack;
  }
}

// Adds up, for each input element of rows [first, first + height) of a chunk's images, the entries
// of the columns that it went into; always in the order of the taps.
template <typename T, typename Index>
__global__ void __launch_bounds__(kBlock)
    sum_columns(Geometry<Index> g, int rows, Chunk chunk, int first, int height,
                Divider<int32_t> by_height, int64_t count,
                const Accumulator<T>* __restrict__ columns, T* __restrict__ dx) {
  const int rs = g.R * g.S;
  for (int64_t at = blockIdx.x * int64_t{kBlock} + threadIdx.x; at < count;
       at += int64_t{gridDim.x} * kBlock) {
    // The planner keeps a chunk's part of dx under 2^31 elements.
    int n = static_cast<int>(at);
    int c, h, w;
    if (g.channels_last) {
      c = g.by_C.split(n);
      w = g.by_W.split(n);
      h = first + by_height.split(n);
    } else {
      w = g.by_W.split(n);
      h = first + by_height.split(n);
      c = g.by_C.split(n);
    }
    const int group = g.by_group_C.quotient(c);
    const int c_in_group = c - group * g.group_C;
    Accumulator<T> sum = 0;
    for (int r = 0; r < g.R; ++r) {
      int p = h + g.pad_h - r * g.dilation_h;
      if (p < 0 || g.by_stride_h.split(p) != 0 || p >= g.P) continue;
      for (int s = 0; s < g.S; ++s) {
        int q = w + g.pad_w - s * g.dilation_w;
        if (q < 0 || g.by_stride_w.split(q) != 0 || q >= g.Q) continue;
        const int tap = r * g.S + s;
        const int row = group * g.group_C * rs +
                        (g.taps_first ? tap * g.group_C + c_in_group : c_in_group * rs + tap);
        const int pixel = p * g.Q + q - chunk.pixel;
        sum += g.channels_last ? columns[(int64_t{n} * chunk.pixels + pixel) * rows + row]
                               : columns[(int64_t{n} * rows + row) * chunk.pixels + pixel];
      }
    }
    dx[static_cast<Index>(chunk.image + n) * g.x_n + c * g.x_c + h * g.x_h + w * g.x_w] =
        narrow<T>(sum);
  }
}

// Sets every output to its channel's bias; the products are added to it.
template <typename T>
__global__ void __launch_bounds__(kBlock) fill_bias(int64_t count, int64_t inner, int64_t K,
                                                    const T* __restrict__ bias, T* __restrict__ y) {
  for (int64_t at = blockIdx.x * int64_t{kBlock} + threadIdx.x; at < count;
       at += int64_t{gridDim.x} * kBlock) {
    y[at] = bias[at / inner % K];
  }
}

// Rounds a chunk's products plus the bias into y. Lines of `line` elements lie together in both,
// and in y `stride` elements apart: a channel's pixels, or with channels_last a pixel's channels.
template <typename T>
__global__ void __launch_bounds__(kBlock)
    add_bias(int64_t count, Divider<int64_t> by_line, int64_t stride, bool channels_last, int64_t K,
             const Accumulator<T>* __restrict__ products, const T* __restrict__ bias,
             T* __restrict__ y) {
  for (int64_t at = blockIdx.x * int64_t{kBlock} + threadIdx.x; at < count;
       at += int64_t{gridDim.x} * kBlock) {
    int64_t line = at;
    const int64_t in_line = by_line.split(line);
    const int64_t k = channels_last ? in_line : line % K;
    y[line * stride + in_line] = narrow<T>(products[at] + widen(bias[k]));
  }
}

// Where the operands of parts [first, first + count) of a weight gradient lie: for each part and
// group, its pixels of dy and of the columns, and its sum. Steps count elements.
template <typename T>
struct Operand {
  T* data;
  int64_t line, pixel, group;
};

template <typename T>
__global__ void __launch_bounds__(kBlock)
    list_parts(int64_t first, int64_t count, int64_t lines, int64_t length, int64_t groups,
               Operand<const T> dy, Operand<const T> columns, T* sums, int64_t weights,
               const T** dy_list, const T** columns_list, T** sums_list) {
  for (int64_t at = blockIdx.x * int64_t{kBlock} + threadIdx.x; at < count * groups;
       at += int64_t{gridDim.x} * kBlock) {
    const int64_t group = at % groups;
    const int64_t part = first + at / groups;
    const int64_t line = part % lines;
    const int64_t pixel = part / lines * length;
    const auto place = [&](const Operand<const T>& of) {
      return of.data + line * of.line + pixel * of.pixel + group * of.group;
    };
    dy_list[at] = place(dy);
    columns_list[at] = place(columns);
    sums_list[at] = sums + at / groups * weights + group * (weights / groups);
  }
}

// sum (+)= the parts. kLanes threads share a weight; what rounding takes from a thread's sum is
// carried along (Kahan, CACM 1965).
template <typename T>
__global__ void __launch_bounds__(kBlock)
    add_parts(int64_t weights, int64_t count, bool first, const T* __restrict__ parts,
              T* __restrict__ sum) {
  constexpr int kWeights = 32, kLanes = kBlock / kWeights;
  __shared__ T sums[kLanes][kWeights];
  const int lane = threadIdx.x / kWeights, column = threadIdx.x % kWeights;
  for (int64_t at = blockIdx.x * int64_t{kWeights}; at < weights;
       at += int64_t{gridDim.x} * kWeights) {
    const int64_t weight = at + column;
    T total = 0, lost = 0;
    if (weight < weights) {
      for (int64_t part = lane; part < count; part += kLanes) {
        const T next = parts[part * weights + weight] - lost;
        const T longer = total + next;
        lost = (longer - total) - next;
        total = longer;
      }
    }
    sums[lane][column] = total;
    __syncthreads();
    if (lane == 0 && weight < weights) {
      for (int other = 1; other < kLanes; ++other) total += sums[other][column];
      sum[weight] = first ? total : sum[weight] + total;
    }
    __syncthreads();  // the sums are read before the next ones are written
  }
}

// The summed weight gradient, which has the weight's own layout, in the weight's dtype.
template <typename T>
__global__ void __launch_bounds__(kBlock)
    narrow_sum(int64_t count, const Accumulator<T>* __restrict__ sum, T* __restrict__ dw) {
  for (int64_t at = blockIdx.x * int64_t{kBlock} + threadIdx.x; at < count;
       at += int64_t{gridDim.x} * kBlock) {
    dw[at] = narrow<T>(sum[at]);
  }
}

}  // namespace customconv::im2col
