// The kernels of threads, and their launcher.
#pragma once

#include <utility>

#include "kernels/depthwise/kinds.h"
#include "kernels/depthwise/start.cuh"
#include "kernels/depthwise/threads/filter.cuh"
#include "kernels/depthwise/threads/gradient.cuh"
#include "kernels/depthwise/threads/store.cuh"

namespace customconv::depthwise::threads {

template <typename T, Order kOrder, Walk kWalk, int kCount, int kKept, int kShape>
__global__ void __launch_bounds__(kThreads, blocks_of(kOrder, kKept))
    convolve(const __grid_constant__ Params<T> p) {
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kColumns = columns_of(kOrder, kCount, sizeof(T));
  Item item = item_of<kOrder, kKept, kColumns>(p, static_cast<int>(blockIdx.x), thread);
  if constexpr (kOrder == Order::kWindows) {
    if (!item.exists) return;
    float sum[kKept][kColumns] = {};
    sum_windows<kCount, kShape>(p, item, sum);
    store_item<kOrder>(p, item, sum);
  } else if constexpr (kOrder == Order::kLines) {
    float sum[1][kColumns] = {};
    if (item.exists) {
      sum_line<kLineTaps[kShape]>(p, item, sum[0]);
    } else {
      item.q = p.Q;  // it has nothing to store
    }
    store_item<kOrder>(p, item, sum);
  } else if constexpr (is_planar(kOrder)) {
    if (!item.exists) return;
    float sum[kKept][kColumns] = {};
    for (int source = 0; source < p.sources; ++source) {
      float part[kKept][kColumns] = {};
      sum_columns<kOrder, kWalk, kCount>(p, item, source, 0, p.S, nullptr, part);
      add_all(part, sum);
    }
    store_item<kOrder>(p, item, sum);
  } else {
    extern __shared__ __align__(16) float filters[];
    float sum[kKept][width_of(kOrder)] = {};
    const int sources = kOrder == Order::kChannels ? 1 : p.sources;  // vectors have one
    for (int source = 0; source < sources; ++source) {
      float part[kKept][width_of(kOrder)] = {};
      for (int s = 0; s < p.S; s += p.stage_columns) {
        if (source + s > 0) __syncthreads();  // the last ones are no longer read
        stage_filters<kOrder>(p, item, source, s, thread, filters);
        __syncthreads();
        const int end = min(s + p.stage_columns, p.S);
        if (item.exists) {
          sum_columns<kOrder, kWalk, kCount>(p, item, source, s, end, filters, part);
        }
      }
      add_all(part, sum);
    }
    if (item.exists) store_item<kOrder>(p, item, sum);
  }
}

template <typename T, Order kOrder, Walk kWalk, int kCount, int kKept, int kShape>
__global__ void __launch_bounds__(kThreads, gradient_blocks_of(kCount))
    sum_weights(const __grid_constant__ Params<T> p) {
  extern __shared__ __align__(16) float totals[];
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kAcross = gradient_columns(kOrder, kCount, kShape), kWidth = width_of(kOrder);
  const Share share = share_of<kCount, kAcross>(p, static_cast<int>(blockIdx.x));
  float sum[kCount][kAcross][kWidth] = {};
  sum_share<kOrder, kWalk, kShape, kCount, kKept>(p, share, thread, sum);
  const float* flat = &sum[0][0][0];
#pragma unroll
  for (int i = 0; i < kCount * kAcross * kWidth; ++i) totals[i * kThreads + thread] = flat[i];
  __syncthreads();
  store_share<kOrder, kCount, kAcross, kWidth>(p, share, thread, totals);
}

template <typename T>
using KernelOf = void (*)(Params<T>);

template <typename T, bool kOfWeights, int kIndex>
constexpr KernelOf<T> one_kernel() {
  constexpr Variant v = Variant::at(kIndex);
  if constexpr (!has_kernel(v)) {
    return nullptr;
  } else if constexpr (!kOfWeights) {
    return convolve<T, v.order, v.walk, kTaps[v.taps], v.kept(), v.shape>;
  } else if constexpr (v.walk != Walk::kHalf) {
    return sum_weights<T, v.order, v.walk, kTaps[v.taps], v.kept(), v.shape>;
  } else {
    return nullptr;
  }
}
template <typename T, bool kOfWeights, size_t... kIndex>
KernelOf<T> kernel_at(int index, std::index_sequence<kIndex...>) {
  static constexpr KernelOf<T> kTable[] = {
      one_kernel<T, kOfWeights, static_cast<int>(kIndex)>()...};
  return kTable[index];
}

// The widest unit of columns that all rows of an image can be stored by.
template <typename T>
int store_unit_of(const Geometry& g, const T* out) {
  for (const int64_t unit : {8, 4, 2}) {
    const auto whole = [unit](int64_t size, int64_t stride) {
      return size == 1 || stride % unit == 0;
    };
    const bool aligned = reinterpret_cast<uintptr_t>(out) % (unit * sizeof(T)) == 0;
    const int64_t bytes = unit * static_cast<int64_t>(sizeof(T));
    if (aligned && bytes >= 4 && bytes <= 16 && g.out[3] == 1 && g.Q % unit == 0 &&
        whole(g.N, g.out[0]) && whole(g.K, g.out[1]) && whole(g.P, g.out[2])) {
      return static_cast<int>(unit);
    }
  }
  return 1;
}

template <typename T>
Params<T> make_params(const Geometry& g, const Work& work, const T* in, T* weight, T* out,
                      const Epilogue& epilogue) {
  using D = Divider<int32_t>;
  const auto small = [](int64_t value) { return static_cast<int>(value); };
  Params<T> p{};
  p.in = in;
  p.weight = weight + g.weight_offset;
  p.out = out;
  p.epilogue = epilogue;
  p.in_stride = {g.in[0], g.in[1], g.in[2], g.in[3]};
  p.out_stride = {g.out[0], g.out[1], g.out[2], g.out[3]};
  p.weight_k = g.weight_k;
  p.weight_r = small(g.weight_r);
  p.weight_s = small(g.weight_s);
  p.K = small(g.K);
  p.H = small(g.H);
  p.W = small(g.W);
  p.P = small(g.P);
  p.Q = small(g.Q);
  p.R = small(g.R);
  p.S = small(g.S);
  p.step_h = small(g.step_h);
  p.step_w = small(g.step_w);
  p.pad_h = small(g.pad_h);
  p.pad_w = small(g.pad_w);
  p.dilation_h = small(g.dilation_h);
  p.dilation_w = small(g.dilation_w);
  p.transposed = g.transposed;
  p.sources = small(g.sources);
  p.first_row = work.first_row;
  p.items = small(work.items);
  p.stage_columns = work.stage_columns;
  p.store_unit = store_unit_of(g, out);
  p.channels = D(g.K);
  p.multiplier = D(g.multiplier);
  p.columns = D(work.columns);
  p.strips = D(work.strips);
  p.vectors = D(work.vectors);
  p.units = D(work.units);
  p.by_step_h = D(g.step_h);
  p.by_step_w = D(g.step_w);
  p.filter_rows = D(work.filter_rows);
  p.by_stage_columns = D(work.stage_columns);
  p.chunks_r = D(work.chunks_r);
  p.chunks_s = D(work.chunks_s);
  return p;
}

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  using D = Divider<int32_t>;
  constexpr auto kAll = std::make_index_sequence<kVariantCount>();
  const Geometry geometry = geometry_of(problem);
  const auto way = plan.payload.as<ThreadsPlan>();
  const Variant v = variant_of(way);
  const Work work = work_of(geometry, v, way.vectors, sizeof(T));
  const LaunchShape shape = shape_of(problem, work, plan.splits);
  const Tensors<T> tensors(problem.pass, operands);
  Params<T> params =
      make_params<T>(geometry, work, tensors.in, tensors.weight, tensors.out, operands.epilogue);
  params.partial = parts_of(shape, context);
  params.splits = D(plan.splits);
  const KernelOf<T> kernel = problem.pass == Pass::kWgrad ? kernel_at<T, true>(v.index(), kAll)
                                                          : kernel_at<T, false>(v.index(), kAll);
  start_plan(shape, plan.splits, context, kernel, params, tensors.weight, problem.w_count(),
             {D(1), D(geometry.K), D(geometry.S), geometry.weight_k, 0, geometry.weight_r,
              geometry.weight_s});
}

}  // namespace customconv::depthwise::threads
