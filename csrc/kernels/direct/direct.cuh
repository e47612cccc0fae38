// Direct convolution: fprop and dgrad give one output element to a thread, wgrad one to a block (in
// NHWC a few).
//
// Any strides of any tensor, any stride, padding, dilation and groups. It is the portable path and
// the oracle that other families are held against, so it is kept plain.
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
template <typename Index>
struct Strides {
  Index v[4];
  explicit Strides(const Shape4& s) {
    for (int i = 0; i < 4; ++i) v[i] = static_cast<Index>(s[i]);
  }
};

template <typename Index>
struct Params {
  Index group_C, group_K;
  int H, W, R, S, P, Q;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int64_t count;  // elements of the output
  Strides<Index> x, w, y;
  // The output's dimensions, fastest first, in the order that threads take them.
  Divider<Index> inner, middle, outer;
  bool channels_inner;
  Divider<Index> per_group;  // output channels of a group

  Params(const ConvProblem& p, const Shape4& sizes, Order order, int64_t channels_per_group)
      : group_C(static_cast<Index>(p.group_C())),
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
        count(sizes[0] * sizes[1] * sizes[2] * sizes[3]),
        x(p.x_strides),
        w(p.w_strides),
        y(p.y_strides),
        channels_inner(order == Order::kChannels),
        per_group(channels_per_group) {
    const auto [n, c, h, w_] = sizes;
    (void)n;
    inner = Divider<Index>(channels_inner ? c : w_);
    middle = Divider<Index>(channels_inner ? w_ : h);
    outer = Divider<Index>(channels_inner ? h : c);
  }
};

template <typename Index>
struct Coordinates {
  Index n, c, h, w;
};

// Where the i-th element of the output lies.
template <typename Index>
__device__ Coordinates<Index> locate(const Params<Index>& p, Index i) {
  Coordinates<Index> at;
  if (p.channels_inner) {
    at.c = p.inner.split(i);
    at.w = p.middle.split(i);
    at.h = p.outer.split(i);
  } else {
    at.w = p.inner.split(i);
    at.h = p.middle.split(i);
    at.c = p.outer.split(i);
  }
  at.n = i;
  return at;
}

// Sums over this many channels and a row of taps are formed apart and then added: long sums stay
// accurate.
constexpr int kChannelBlock = 8;

template <typename T, typename Index>
__global__ void __launch_bounds__(kBlock)
    fprop(Params<Index> p, const T* __restrict__ x, const T* __restrict__ w,
          const T* __restrict__ bias, T* __restrict__ y) {
  using Acc = Accumulator<T>;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const auto [n, k, out_h, out_w] = locate(p, static_cast<Index>(i));
    const Index group = p.per_group.quotient(k);
    const int h0 = static_cast<int>(out_h) * p.stride_h - p.pad_h;
    const int w0 = static_cast<int>(out_w) * p.stride_w - p.pad_w;
    const T* xn = x + n * p.x.v[0] + group * p.group_C * p.x.v[1];
    const T* wk = w + k * p.w.v[0];
    Acc sum = 0;
    for (Index c0 = 0; c0 < p.group_C; c0 += kChannelBlock) {
      const Index c1 = min(c0 + kChannelBlock, p.group_C);
      for (int r = 0; r < p.R; ++r) {
        const int h = h0 + r * p.dilation_h;
        if (h < 0 || h >= p.H) continue;
        Acc part = 0;
        for (int s = 0; s < p.S; ++s) {
          const int col = w0 + s * p.dilation_w;
          if (col < 0 || col >= p.W) continue;
          const Index x_at = h * p.x.v[2] + col * p.x.v[3];
          const Index w_at = r * p.w.v[2] + s * p.w.v[3];
          for (Index c = c0; c < c1; ++c) {
            part += widen(xn[x_at + c * p.x.v[1]]) * widen(wk[w_at + c * p.w.v[1]]);
          }
        }
        sum += part;
      }
    }
    if (bias != nullptr) sum += widen(bias[k]);
    y[n * p.y.v[0] + k * p.y.v[1] + out_h * p.y.v[2] + out_w * p.y.v[3]] = narrow<T>(sum);
  }
}

template <typename T, typename Index>
__global__ void __launch_bounds__(kBlock)
    dgrad(Params<Index> p, const T* __restrict__ dy, const T* __restrict__ w, T* __restrict__ dx) {
  using Acc = Accumulator<T>;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const auto [n, c, in_h, in_w] = locate(p, static_cast<Index>(i));
    const Index group = p.per_group.quotient(c);
    const Index k_first = group * p.group_K;
    const T* dyn = dy + n * p.y.v[0] + k_first * p.y.v[1];
    const T* wc = w + k_first * p.w.v[0] + (c - group * p.group_C) * p.w.v[1];
    Acc sum = 0;
    for (Index k0 = 0; k0 < p.group_K; k0 += kChannelBlock) {
      const Index k1 = min(k0 + kChannelBlock, p.group_K);
      for (int r = 0; r < p.R; ++r) {
        const int h = static_cast<int>(in_h) + p.pad_h - r * p.dilation_h;
        const int out_h = h / p.stride_h;
        if (h < 0 || out_h >= p.P || out_h * p.stride_h != h) continue;
        Acc part = 0;
        for (int s = 0; s < p.S; ++s) {
          const int col = static_cast<int>(in_w) + p.pad_w - s * p.dilation_w;
          const int out_w = col / p.stride_w;
          if (col < 0 || out_w >= p.Q || out_w * p.stride_w != col) continue;
          const Index y_at = out_h * p.y.v[2] + out_w * p.y.v[3];
          const Index w_at = r * p.w.v[2] + s * p.w.v[3];
          for (Index k = k0; k < k1; ++k) {
            part += widen(dyn[y_at + k * p.y.v[1]]) * widen(wc[w_at + k * p.w.v[0]]);
          }
        }
        sum += part;
      }
    }
    dx[n * p.x.v[0] + c * p.x.v[1] + in_h * p.x.v[2] + in_w * p.x.v[3]] = narrow<T>(sum);
  }
}

// Pixels that a thread adds up before it adds to the total, for the same reason.
constexpr int kPixelsPerPart = 32;

struct WeightAt {
  int64_t k;  // or a block of output channels
  int c, r, s;
};

// The i-th weight in the order (k, c, r, s).
template <typename Index>
__device__ WeightAt locate_weight(const Params<Index>& p, int64_t i) {
  WeightAt at;
  at.s = static_cast<int>(i % p.S);
  i /= p.S;
  at.r = static_cast<int>(i % p.R);
  i /= p.R;
  at.c = static_cast<int>(i % p.group_C);
  at.k = i / p.group_C;
  return at;
}

// Block (i, split) adds up a share of the pixels for one weight of kChannels output channels; its
// threads are kChannels side by side, which share pixels. Without splits it writes dw, otherwise
// its part goes to `parts`, in the order (k, c, r, s), and wgrad_reduce adds the parts.
template <typename T, typename Index, int kChannels>
__global__ void __launch_bounds__(kBlock)
    wgrad(Params<Index> p, int64_t K, int64_t blocks, int64_t pixels, const T* __restrict__ dy,
          const T* __restrict__ x, T* __restrict__ dw, Accumulator<T>* __restrict__ parts) {
  using Acc = Accumulator<T>;
  constexpr int kStep = kBlock / kChannels;  // pixels that a block takes at a time
  __shared__ Acc sums[kBlock];
  const int64_t share = (pixels + gridDim.y - 1) / gridDim.y;
  const int64_t first = blockIdx.y * share;
  const int64_t last = min(first + share, pixels);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const auto [k_block, c, r, s] = locate_weight(p, block);
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
          const int h = static_cast<int>(out_h) * p.stride_h - p.pad_h + r * p.dilation_h;
          const int col = static_cast<int>(out_w) * p.stride_w - p.pad_w + s * p.dilation_w;
          if (h < 0 || h >= p.H || col < 0 || col >= p.W) continue;
          const Acc grad = widen(dyk[n * p.y.v[0] + out_h * p.y.v[2] + out_w * p.y.v[3]]);
          part += grad * widen(xc[n * p.x.v[0] + h * p.x.v[2] + col * p.x.v[3]]);
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
      const int64_t weight = ((k * p.group_C + c) * p.R + r) * p.S + s;
      if (parts != nullptr) {
        parts[blockIdx.y * p.count + weight] = sums[threadIdx.x];
      } else {
        dw[static_cast<Index>(k) * p.w.v[0] + c * p.w.v[1] + r * p.w.v[2] + s * p.w.v[3]] =
            narrow<T>(sums[threadIdx.x]);
      }
    }
    __syncthreads();  // the sums are read before the next ones are written
  }
}

template <typename T, typename Index>
__global__ void __launch_bounds__(kBlock)
    wgrad_reduce(Params<Index> p, int64_t splits, const Accumulator<T>* __restrict__ parts,
                 T* __restrict__ dw) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.count;
       i += int64_t{gridDim.x} * blockDim.x) {
    Accumulator<T> sum = 0;
    for (int64_t split = 0; split < splits; ++split) sum += parts[split * p.count + i];
    const auto [k, c, r, s] = locate_weight(p, i);
    dw[static_cast<Index>(k) * p.w.v[0] + c * p.w.v[1] + r * p.w.v[2] + s * p.w.v[3]] =
        narrow<T>(sum);
  }
}

template <typename T, typename Index>
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
      const Params<Index> params(problem, problem.y_sizes(), order, problem.group_K());
      fprop<T, Index><<<grid, kBlock, 0, context.stream>>>(
          params, x, w, static_cast<const T*>(operands.epilogue.bias), static_cast<T*>(operands.y));
      check_launch("direct fprop");
      return;
    }
    case Pass::kDgrad: {
      const Params<Index> params(problem, problem.x_sizes(), order, problem.group_C());
      dgrad<T, Index>
          <<<grid, kBlock, 0, context.stream>>>(params, y, w, static_cast<T*>(operands.x));
      check_launch("direct dgrad");
      return;
    }
    case Pass::kWgrad: {
      Params<Index> params(problem, problem.w_sizes(), order, problem.group_K());
      params.inner = Divider<Index>(problem.Q);  // pixels are numbered (n, p, q)
      params.middle = Divider<Index>(problem.P);
      auto* dw = static_cast<T*>(operands.w);
      auto* parts = plan.splits > 1 ? static_cast<Accumulator<T>*>(context.workspace) : nullptr;
      const auto kernel =
          order == Order::kChannels ? wgrad<T, Index, kWgradChannels> : wgrad<T, Index, 1>;
      kernel<<<grid, kBlock, 0, context.stream>>>(params, problem.K, wgrad_blocks(problem, order),
                                                  problem.N * problem.P * problem.Q, y, x, dw,
                                                  parts);
      check_launch("direct wgrad");
      if (parts != nullptr) {
        const int64_t blocks = std::min<int64_t>(ceil_divide(problem.w_count(), kBlock), 65535);
        wgrad_reduce<T, Index><<<static_cast<unsigned>(blocks), kBlock, 0, context.stream>>>(
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
  if (plan.payload.as<DirectPlan>().wide) {
    launch_indexed<T, int64_t>(problem, plan, operands, context);
  } else {
    launch_indexed<T, int32_t>(problem, plan, operands, context);
  }
}

}  // namespace customconv::direct
