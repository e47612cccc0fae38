// Direct convolution: fprop and dgrad give one output element to a thread, wgrad one to a block (in
// NHWC a few).
//
// Any strides of any tensor, any stride, padding, dilation and groups, images and volumes. It is
// the portable path and the oracle that other families are held against, so it is kept plain.
//
// One body serves both: with kDeep it has a depth, else constants of one stand for it, and nothing
// is left of them in the machine's code.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/common/check.h"
#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/direct/order.h"
#include "kernels/launch.h"

namespace customconv::direct {

// A tensor in device memory. Strides are 64-bit where an offset can pass 2^31.
template <typename Index, bool kDeep>
struct Strides {
  static constexpr int kCount = kDeep ? 5 : 4;
  Index v[kCount];
  explicit Strides(const Shape5& s) {
    for (int i = 0; i < kCount; ++i) v[i] = static_cast<Index>(s[i]);
  }
  // Where a slice begins.
  __device__ Index slice(Index d) const {
    if constexpr (kDeep) return d * v[4];
    return 0;
  }
};

// The third dimension of volumes.
template <bool kDeep>
struct Depth {
  int D, T, O;
  int stride_d, pad_d, dilation_d;
  Divider<int64_t> by_depth;  // of the output, or of the pixels of a weight gradient

  Depth(const ConvProblem& p, int64_t depth)
      : D(static_cast<int>(p.D)),
        T(static_cast<int>(p.T)),
        O(static_cast<int>(p.O)),
        stride_d(static_cast<int>(p.stride_d)),
        pad_d(static_cast<int>(p.pad_d)),
        dilation_d(static_cast<int>(p.dilation_d)),
        by_depth(depth) {}
};
template <>
struct Depth<false> {
  static constexpr int D = 1, T = 1, O = 1;
  static constexpr int stride_d = 1, pad_d = 0, dilation_d = 1;

  Depth(const ConvProblem&, int64_t) {}
};

template <typename Index, bool kDeep>
struct Params : Depth<kDeep> {
  Index group_C, group_K;
  int H, W, R, S, P, Q;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int64_t count;  // elements of the output
  Strides<Index, kDeep> x, w, y;
  // The output's dimensions, fastest first, in the order that threads take them; depth follows h.
  Divider<Index> inner, middle, outer;
  bool channels_inner;
  Divider<Index> per_group;  // output channels of a group

  Params(const ConvProblem& p, const Shape5& sizes, Order order, int64_t channels_per_group)
      : Depth<kDeep>(p, sizes[4]),
        group_C(static_cast<Index>(p.group_C())),
        group_K(static_cast<Index>(p.group_K())),
        H(static_cast<int>(p.H)),
        W(static_cast<int>(p.W)),
        R(static_cast<int>(p.R)),
        S(static_cast<int>(p.S)),
        P(static_cast<int>(p.P)),
        Q(static_cast<int>(p.Q)),
        stride_h(static_cast<int>(p.stride_h)),
        stride_w(static_cast<int>(p.stride_w)),
        pad_h(static_cast<int>(p.pad_h)),
        pad_w(static_cast<int>(p.pad_w)),
        dilation_h(static_cast<int>(p.dilation_h)),
        dilation_w(static_cast<int>(p.dilation_w)),
        count(sizes[0] * sizes[1] * sizes[2] * sizes[3] * sizes[4]),
        x(p.x_strides),
        w(p.w_strides),
        y(p.y_strides),
        channels_inner(order == Order::kChannels),
        per_group(channels_per_group) {
    inner = Divider<Index>(channels_inner ? sizes[1] : sizes[3]);
    middle = Divider<Index>(channels_inner ? sizes[3] : sizes[2]);
    outer = Divider<Index>(channels_inner ? sizes[2] : sizes[1]);
  }
};

template <typename Index>
struct Coordinates {
  Index n, c, d, h, w;
};

// Returns the depth of an element whose pixel was split off, and leaves what is outside of it.
template <typename Index, bool kDeep>
__device__ Index split_depth(const Params<Index, kDeep>& p, Index& i) {
  if constexpr (kDeep) return p.by_depth.split(i);
  return 0;
}

// Where the i-th element of the output lies.
template <typename Index, bool kDeep>
__device__ Coordinates<Index> locate(const Params<Index, kDeep>& p, Index i) {
  Coordinates<Index> at;
  if (p.channels_inner) {
    at.c = p.inner.split(i);
    at.w = p.middle.split(i);
    at.h = p.outer.split(i);
    at.d = split_depth(p, i);
  } else {
    at.w = p.inner.split(i);
    at.h = p.middle.split(i);
    at.d = split_depth(p, i);
    at.c = p.outer.split(i);
  }
  at.n = i;
  return at;
}

// Sums over this many channels and a row of taps are formed apart and then added: long sums stay
// accurate.
constexpr int kChannelBlock = 8;

template <typename T, typename Index, bool kDeep>
__global__ void __launch_bounds__(kBlock)
    fprop(Params<Index, kDeep> p, const T* __restrict__ x, const T* __restrict__ w,
          const T* __restrict__ bias, T* __restrict__ y) {
  using Acc = Accumulator<T>;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const auto [n, k, out_d, out_h, out_w] = locate(p, static_cast<Index>(i));
    const Index group = p.per_group.quotient(k);
    const int d0 = static_cast<int>(out_d) * p.stride_d - p.pad_d;
    const int h0 = static_cast<int>(out_h) * p.stride_h - p.pad_h;
    const int w0 = static_cast<int>(out_w) * p.stride_w - p.pad_w;
    const T* xn = x + n * p.x.v[0] + group * p.group_C * p.x.v[1];
    const T* wk = w + k * p.w.v[0];
    Acc sum = 0;
    for (Index c0 = 0; c0 < p.group_C; c0 += kChannelBlock) {
      const Index c1 = min(c0 + kChannelBlock, p.group_C);
      for (int t = 0; t < p.T; ++t) {
        const int d = d0 + t * p.dilation_d;
        if (d < 0 || d >= p.D) continue;
        for (int r = 0; r < p.R; ++r) {
          const int h = h0 + r * p.dilation_h;
          if (h < 0 || h >= p.H) continue;
          Acc part = 0;
          for (int s = 0; s < p.S; ++s) {
            const int col = w0 + s * p.dilation_w;
            if (col < 0 || col >= p.W) continue;
            const Index x_at = p.x.slice(d) + h * p.x.v[2] + col * p.x.v[3];
            const Index w_at = p.w.slice(t) + r * p.w.v[2] + s * p.w.v[3];
            for (Index c = c0; c < c1; ++c) {
              part += widen(xn[x_at + c * p.x.v[1]]) * widen(wk[w_at + c * p.w.v[1]]);
            }
          }
          sum += part;
        }
      }
    }
    if (bias != nullptr) sum += widen(bias[k]);
    y[n * p.y.v[0] + k * p.y.v[1] + p.y.slice(out_d) + out_h * p.y.v[2] + out_w * p.y.v[3]] =
        narrow<T>(sum);
  }
}

template <typename T, typename Index, bool kDeep>
__global__ void __launch_bounds__(kBlock) dgrad(Params<Index, kDeep> p, const T* __restrict__ dy,
                                                const T* __restrict__ w, T* __restrict__ dx) {
  using Acc = Accumulator<T>;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const auto [n, c, in_d, in_h, in_w] = locate(p, static_cast<Index>(i));
    const Index group = p.per_group.quotient(c);
    const Index k_first = group * p.group_K;
    const T* dyn = dy + n * p.y.v[0] + k_first * p.y.v[1];
    const T* wc = w + k_first * p.w.v[0] + (c - group * p.group_C) * p.w.v[1];
    Acc sum = 0;
    for (Index k0 = 0; k0 < p.group_K; k0 += kChannelBlock) {
      const Index k1 = min(k0 + kChannelBlock, p.group_K);
      for (int t = 0; t < p.T; ++t) {
        const int d = static_cast<int>(in_d) + p.pad_d - t * p.dilation_d;
        const int out_d = d / p.stride_d;
        if (d < 0 || out_d >= p.O || out_d * p.stride_d != d) continue;
        for (int r = 0; r < p.R; ++r) {
          const int h = static_cast<int>(in_h) + p.pad_h - r * p.dilation_h;
          const int out_h = h / p.stride_h;
          if (h < 0 || out_h >= p.P || out_h * p.stride_h != h) continue;
          Acc part = 0;
          for (int s = 0; s < p.S; ++s) {
            const int col = static_cast<int>(in_w) + p.pad_w - s * p.dilation_w;
            const int out_w = col / p.stride_w;
            if (col < 0 || out_w >= p.Q || out_w * p.stride_w != col) continue;
            const Index y_at = p.y.slice(out_d) + out_h * p.y.v[2] + out_w * p.y.v[3];
            const Index w_at = p.w.slice(t) + r * p.w.v[2] + s * p.w.v[3];
            for (Index k = k0; k < k1; ++k) {
              part += widen(dyn[y_at + k * p.y.v[1]]) * widen(wc[w_at + k * p.w.v[0]]);
            }
          }
          sum += part;
        }
      }
    }
    dx[n * p.x.v[0] + c * p.x.v[1] + p.x.slice(in_d) + in_h * p.x.v[2] + in_w * p.x.v[3]] =
        narrow<T>(sum);
  }
}

// Pixels that a thread adds up before it adds to the total, for the same reason.
constexpr int kPixelsPerPart = 32;

struct WeightAt {
  int64_t k;  // or a block of output channels
  int c, t, r, s;
};

// The i-th weight in the order (k, c, t, r, s).
template <typename Index, bool kDeep>
__device__ WeightAt locate_weight(const Params<Index, kDeep>& p, int64_t i) {
  WeightAt at;
  at.s = static_cast<int>(i % p.S);
  i /= p.S;
  at.r = static_cast<int>(i % p.R);
  i /= p.R;
  at.t = static_cast<int>(i % p.T);
  i /= p.T;
  at.c = static_cast<int>(i % p.group_C);
  at.k = i / p.group_C;
  return at;
}

// Block (i, split) adds up a share of the pixels for one weight of kChannels output channels; its
// threads are kChannels side by side, which share pixels. Without splits it writes dw, otherwise
// its part goes to `parts`, in the order (k, c, t, r, s), and wgrad_reduce adds the parts.
template <typename T, typename Index, bool kDeep, int kChannels>
__global__ void __launch_bounds__(kBlock)
    wgrad(Params<Index, kDeep> p, int64_t K, int64_t blocks, int64_t pixels,
          const T* __restrict__ dy, const T* __restrict__ x, T* __restrict__ dw,
          Accumulator<T>* __restrict__ parts) {
  using Acc = Accumulator<T>;
  constexpr int kStep = kBlock / kChannels;  // pixels that a block takes at a time
  __shared__ Acc sums[kBlock];
  const int64_t share = (pixels + gridDim.y - 1) / gridDim.y;
  const int64_t first = blockIdx.y * share;
  const int64_t last = min(first + share, pixels);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const auto [k_block, c, t, r, s] = locate_weight(p, block);
    const int64_t k = k_block * kChannels + threadIdx.x % kChannels;
    Acc sum = 0;
    if (k < K) {
      const Index channel = static_cast<Index>(k);
      const T* xc = x + (p.per_group.quotient(channel) * p.group_C + c) * p.x.v[1];
      const T* dyk = dy + channel * p.y.v[1];
      int64_t pixel = first + threadIdx.x / kChannels;
      while (pixel < last) {
        Acc part = 0;
        for (int i = 0; i < kPixelsPerPart && pixel < last; ++i, pixel += kStep) {
          Index n = static_cast<Index>(pixel);
          const Index out_w = p.inner.split(n);
          const Index out_h = p.middle.split(n);
          const Index out_d = split_depth(p, n);
          const int d = static_cast<int>(out_d) * p.stride_d - p.pad_d + t * p.dilation_d;
          const int h = static_cast<int>(out_h) * p.stride_h - p.pad_h + r * p.dilation_h;
          const int col = static_cast<int>(out_w) * p.stride_w - p.pad_w + s * p.dilation_w;
          if (d < 0 || d >= p.D || h < 0 || h >= p.H || col < 0 || col >= p.W) continue;
          const Acc grad =
              widen(dyk[n * p.y.v[0] + p.y.slice(out_d) + out_h * p.y.v[2] + out_w * p.y.v[3]]);
          part += grad * widen(xc[n * p.x.v[0] + p.x.slice(d) + h * p.x.v[2] + col * p.x.v[3]]);
        }
        sum += part;
      }
    }
    sums[threadIdx.x] = sum;
    for (int half = kBlock / 2; half >= kChannels; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x < kChannels && k < K) {
      const int64_t weight = (((k * p.group_C + c) * p.T + t) * p.R + r) * p.S + s;
      if (parts != nullptr) {
        parts[blockIdx.y * p.count + weight] = sums[threadIdx.x];
      } else {
        dw[static_cast<Index>(k) * p.w.v[0] + c * p.w.v[1] + p.w.slice(t) + r * p.w.v[2] +
           s * p.w.v[3]] = narrow<T>(sums[threadIdx.x]);
      }
    }
    __syncthreads();  // the sums are read before the next ones are written
  }
}

template <typename T, typename Index, bool kDeep>
__global__ void __launch_bounds__(kBlock)
    wgrad_reduce(Params<Index, kDeep> p, int64_t splits, const Accumulator<T>* __restrict__ parts,
                 T* __restrict__ dw) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.count;
       i += int64_t{gridDim.x} * blockDim.x) {
    Accumulator<T> sum = 0;
    for (int64_t split = 0; split < splits; ++split) sum += parts[split * p.count + i];
    const auto [k, c, t, r, s] = locate_weight(p, i);
    dw[static_cast<Index>(k) * p.w.v[0] + c * p.w.v[1] + p.w.slice(t) + r * p.w.v[2] +
       s * p.w.v[3]] = narrow<T>(sum);
  }
}

template <typename T, typename Index, bool kDeep>
void launch_indexed(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
                    const LaunchContext& context) {
  const dim3 grid(static_cast<unsigned>(plan.blocks / plan.splits),
                  static_cast<unsigned>(plan.splits));
  const Order order = plan.payload.as<DirectPlan>().order;
  const auto* x = static_cast<const T*>(operands.x);
  const auto* w = static_cast<const T*>(operands.w);
  const auto* y = static_cast<const T*>(operands.y);
  switch (problem.pass) {
    case Pass::kFprop: {
      const Params<Index, kDeep> params(problem, problem.y_sizes(), order, problem.group_K());
      fprop<T, Index, kDeep><<<grid, kBlock, 0, context.stream>>>(
          params, x, w, static_cast<const T*>(operands.epilogue.bias), static_cast<T*>(operands.y));
      check_launch("direct fprop");
      return;
    }
    case Pass::kDgrad: {
      const Params<Index, kDeep> params(problem, problem.x_sizes(), order, problem.group_C());
      dgrad<T, Index, kDeep>
          <<<grid, kBlock, 0, context.stream>>>(params, y, w, static_cast<T*>(operands.x));
      check_launch("direct dgrad");
      return;
    }
    case Pass::kWgrad: {
      Params<Index, kDeep> params(problem, problem.w_sizes(), order, problem.group_K());
      params.inner = Divider<Index>(problem.Q);  // pixels are numbered (n, o, p, q)
      params.middle = Divider<Index>(problem.P);
      if constexpr (kDeep) params.by_depth = Divider<Index>(problem.O);
      auto* dw = static_cast<T*>(operands.w);
      auto* parts = plan.splits > 1 ? static_cast<Accumulator<T>*>(context.workspace) : nullptr;
      const auto kernel = order == Order::kChannels ? wgrad<T, Index, kDeep, kWgradChannels>
                                                    : wgrad<T, Index, kDeep, 1>;
      kernel<<<grid, kBlock, 0, context.stream>>>(params, problem.K, wgrad_blocks(problem, order),
                                                  wgrad_pixels(problem), y, x, dw, parts);
      check_launch("direct wgrad");
      if (parts != nullptr) {
        const int64_t blocks = std::min<int64_t>(ceil_divide(problem.w_count(), kBlock), 65535);
        wgrad_reduce<T, Index, kDeep><<<static_cast<unsigned>(blocks), kBlock, 0, context.stream>>>(
            params, plan.splits, parts, dw);
        check_launch("direct wgrad_reduce");
      }
      return;
    }
  }
}

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  if (problem.is_deep()) {
    launch_indexed<T, int64_t, true>(problem, plan, operands, context);
  } else if (plan.payload.as<DirectPlan>().wide) {
    launch_indexed<T, int64_t, false>(problem, plan, operands, context);
  } else {
    launch_indexed<T, int32_t, false>(problem, plan, operands, context);
  }
}

}  // namespace customconv::direct
