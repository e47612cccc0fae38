// The weights in the order in which blocks read them: of each slice, phase, chunk of channels and
// step what all lanes multiply, for each group and tile of sixteen channels that are computed.
// Behind them, of each phase, step and unit of a lane, how far from a pixel's first unit that lies.
#pragma once

#include "kernels/common/divide.cuh"
#include "kernels/grouped/input.cuh"
#include "kernels/ptx/grid.cuh"

namespace customconv::grouped {

constexpr int kPackThreads = 256;

// A phase's taps, and the place in this phase of what is counted through all of them.
struct PhaseTaps {
  Taps h, w;
  Divider<int32_t> by_w;  // taps of a row
  int count, steps;
  int place;
};
// `pieces`: of a tap's channels; `step_pieces`: of a step, which counts for `of_a_step` places.
__device__ inline PhaseTaps phase_of(const AxisParams& h, const AxisParams& w, int pieces,
                                     int step_pieces, int place, int of_a_step) {
  for (int phase_h = 0;; ++phase_h) {
    for (int phase_w = 0; phase_w < w.phases; ++phase_w) {
      const Taps &own_h = h.taps[phase_h], &own_w = w.taps[phase_w];
      const int count = own_h.count * own_w.count;
      const int steps = (count * pieces + step_pieces - 1) / step_pieces;
      if (place < steps * of_a_step) {
        return {own_h, own_w, w.by_count[phase_w], count, steps, place};
      }
      place -= steps * of_a_step;
    }
  }
}

// A filter as it lies in memory.
template <typename T>
struct Filter {
  const T* weight;
  int64_t group_stride, k_stride, c_stride, r_stride, s_stride;
  int groups, C, K;
  AxisParams h, w;

  // By its number among the phase's taps.
  __device__ T at(const PhaseTaps& phase, int group, int k, int c, int tap) const {
    int32_t r = tap;
    const int s = phase.by_w.split(r);
    return operand(weight[group * group_stride + k * k_stride + c * c_stride +
                          (phase.h.first + r * phase.h.step) * r_stride +
                          (phase.w.first + s * phase.w.step) * s_stride]);
  }
};

template <typename T>
struct WeightParams {
  Filter<T> filter;
  Work work;
  int64_t slice_lanes;  // of a slice, all phases: sixteen bytes each
  int64_t all;
  int table;  // its entries

  // A step counts for `of_a_step` places.
  __device__ PhaseTaps phase_at(int place, int of_a_step) const {
    return phase_of(filter.h, filter.w, work.units, kStepUnits, place, of_a_step);
  }
};

template <typename T>
__device__ inline int table_entry(const WeightParams<T>& p, int number) {
  const PhaseTaps phase = p.phase_at(number, kStepUnits);
  const int tap = phase.place / p.work.units, unit = phase.place % p.work.units;
  if (tap >= phase.count) return -1;
  int32_t r = tap;
  const int s = phase.by_w.split(r);
  const int slot =
      class_slot(p.filter.h, phase.h.offset + r * phase.h.offset_step) * p.work.tile.pitch +
      class_slot(p.filter.w, phase.w.offset + s * phase.w.offset_step);
  const int each = p.work.slot_bytes / kUnitBytes;
  return (unit / each * p.work.plane + slot) * p.work.slot_bytes + unit % each * kUnitBytes;
}

// A lane's unit of a channel's weights, zeros where there is none.
template <typename T>
__device__ inline uint2 weight_unit(const WeightParams<T>& p, const PhaseTaps& phase, int group,
                                    int k, int tap, int c) {
  constexpr int kElements = kUnitBytes / static_cast<int>(sizeof(T));
  const Filter<T>& filter = p.filter;
  alignas(kUnitBytes) T values[kElements];
  const bool exists = tap < phase.count && group < filter.groups && k < filter.K;
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    values[e] =
        exists && c + e < filter.C ? filter.at(phase, group, k, c + e, tap) : narrow<T>(0.0f);
  }
  return *reinterpret_cast<const uint2*>(values);
}

template <typename T>
__global__ void __launch_bounds__(kPackThreads)
    pack_weights(const __grid_constant__ WeightParams<T> p, uint4* __restrict__ packed) {
  constexpr int kElements = kUnitBytes / static_cast<int>(sizeof(T));
  ptx::launch_dependent_grids();
  const int64_t i = int64_t{blockIdx.x} * kPackThreads + threadIdx.x;
  if (i >= p.all) {
    const auto number = static_cast<int>(i - p.all);
    if (number < p.table) reinterpret_cast<int*>(packed + p.all)[number] = table_entry(p, number);
    return;
  }
  const int64_t slice = i / p.slice_lanes;
  const int block = p.work.groups * p.work.channel_tiles * 32;  // lanes of a step
  const PhaseTaps phase =
      p.phase_at(static_cast<int>(i - slice * p.slice_lanes), p.work.chunks * block);
  const int rest = phase.place, lane = rest % 32, tile = rest / 32 % p.work.channel_tiles;
  const int own_group = rest / 32 / p.work.channel_tiles % p.work.groups;
  const int step = rest / block % phase.steps, chunk = rest / block / phase.steps;
  const int unit = step * kStepUnits + lane % 4, tap = unit / p.work.units;
  const int c = (chunk * p.work.units + unit % p.work.units) * kElements;
  const int group = static_cast<int>(slice / p.work.parts) * p.work.groups + own_group;
  const int k =
      (static_cast<int>(slice % p.work.parts) * p.work.channel_tiles + tile) * kChannelTile +
      lane / 4;
  const uint2 near = weight_unit(p, phase, group, k, tap, c);
  const uint2 far = weight_unit(p, phase, group, k + kChannelTile / 2, tap, c);
  packed[i] = {near.x, far.x, near.y, far.y};
}

}  // namespace customconv::grouped
