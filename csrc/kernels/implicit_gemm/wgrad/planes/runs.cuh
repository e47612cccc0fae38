// Brings runs of pixels of x and of dy, and says where each pixel's taps are.
#pragma once

#include "kernels/implicit_gemm/wgrad/planes/rows.cuh"
#include "kernels/implicit_gemm/wgrad/planes/units.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm::wgrad::planes {

// A pixel of dy, and of x what the first of a thread block's taps meets there.
struct Meeting {
  int p, q, h, w;

  template <typename T>
  __device__ Meeting(const Params<T>& params, const Share& share, int first, int32_t pixel) {
    q = params.by_Q.split(pixel);
    p = pixel;
    h = p * params.stride_h + share.r * params.dilation_h - params.pad_h;
    w = q * params.stride_w + first * params.dilation_w - params.pad_w;
  }
};

// The class of a channel in memory, and how many pixels after whole 16 bytes its planes begin.
template <typename T>
__device__ inline int slack_of(int number, int64_t stride) {
  return number * static_cast<int>(stride) & (kUnit<T> - 1);
}
template <typename T>
__device__ inline int begin_of_class(int number, int64_t stride) {
  return number * static_cast<int>(stride) & -kUnit<T>;
}

// The pixel where a tile begins, and so many places before it that are of another plane: where a
// thread block has output channels of one class.
struct Beginning {
  int pixel, before;

  template <typename T>
  __device__ Beginning(const Params<T>& p, const Share& share, int place) {
    const int first = place - slack_of<T>(share.k_class, p.y_k);
    pixel = max(first, 0);
    before = pixel - first;
  }
};

// The pixel of a plane where a tile's run of x begins.
template <typename T>
__device__ inline int begin_of_run(const Params<T>& p, const Meeting& first, int before, int run) {
  return (first.h + run * p.dilation_h) * p.W + first.w - before;
}

// A whole warp; each thread starts the copies of a class, as to start one takes a hundred clocks.
// Runs of dy that come in classes are brought by others.
template <typename T, int kKernel>
__device__ inline void load_runs(const Params<T>& p, const Memory& memory, const Share& share,
                                 int lane) {
  constexpr Kernel kKind = kKernels[kKernel];
  const int tap = first_tap(p, share.chunk, kKind.taps);
  const int k = (share.group * p.group_K + share.k) / p.y_classes;
  const int c = (share.group * p.group_C + share.c) / p.x_classes;
  const int bytes = p.brought_y + share.boxes_c * p.brought_x;
  const int channels = kBlock / p.x_classes;
  const int own = begin_of_class<T>(lane, p.x_c), own_y = begin_of_class<T>(share.k_class, p.y_k);
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    const Origin at(p, tile);
    const Beginning begin(p, share, at.q);
    const Meeting first(p, share, tap, begin.pixel);
    ptx::Barrier* full = &memory.full[state.stage];
    char* const y = memory.stages + state.stage * p.stage_bytes;
    char* x = y + p.x_at + lane * channels * p.x_channel;
    ptx::wait(&memory.empty[state.stage], state.parity ^ 1);
    if (lane == 0) ptx::arrive_and_expect_tx(full, bytes);
    __syncwarp();
    if (!p.orders && lane < p.slabs) {
      ptx::tma_load(y + lane * p.slab_bytes, &p.y_map, full, at.q + lane * p.y_columns + own_y, k,
                    at.n);
    }
    if (lane < p.x_classes) {
#pragma unroll 1
      for (int block = 0; block < share.boxes_c; ++block) {
#pragma unroll 1
        for (int run = 0; run < p.x_runs; ++run) {
          const int from = (begin_of_run(p, first, begin.before, run) & -kUnit<T>)+own;
#pragma unroll 1
          for (int box = 0; box < p.x_boxes; ++box, x += kBlock * p.x_channel) {
            ptx::tma_load(x, &p.x_map, full, from + box * p.box_step, c + block * channels, at.n);
          }
        }
      }
    }
    state.advance(p.stages);
  }
}

// Puts a run of dy that came in classes in order.
template <typename T, int kKernel>
__device__ inline void order_classes(const Params<T>& p, const char* raw, char* stage, int first,
                                     int thread, int threads) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kChannels = kKind.k_blocks * kBlock, kBatch = kKind.loader_registers > 40 ? 4 : 2;
  constexpr bool kHalves = kKind.halves;
  const int of_class = kChannels / p.y_classes;
  each_place(p.y_inner, thread, threads, [&](int unit, int batch, int apart) {
    const uint4 mask = mask_of<T>(p.pixels - first - unit * kUnit<T>);
#pragma unroll 1
    for (int row = batch * kBatch; row < kChannels; row += apart * kBatch) {
      const int number = row / of_class;  // of all of them
      const int slack = slack_of<T>(number, p.y_k) * static_cast<int>(sizeof(T));
      const char* from = raw + row * p.y_channel + unit * kUnitBytes;
      uint4 own[kBatch][2];
#pragma unroll
      for (int i = 0; i < kBatch * 2; ++i) {
        own[i / 2][i % 2] =
            *reinterpret_cast<const uint4*>(from + i / 2 * p.y_channel + i % 2 * kUnitBytes);
      }
      int k = (row - number * of_class) * p.y_classes + number;
#pragma unroll
      for (int i = 0; i < kBatch; ++i, k += p.y_classes) {
        const uint4 found = shifted(own[i][0], own[i][1], slack);
        const uint4 v =
            make_uint4(found.x & mask.x, found.y & mask.y, found.z & mask.z, found.w & mask.w);
        char* const to = in_slab(p, stage, unit, k);
        if constexpr (kHalves) {
          halve_unit(ptx::shared_address(to), p.low_y, v);
        } else {
          *reinterpret_cast<uint4*>(to) = v;
        }
      }
    }
  });
}

// Fills in the table of a tile of runs, with what each four lanes of a step need: the places of
// their first pixel, or two, in elements, and ones for each tap that is inside of the image there.
template <typename T, int kKernel>
__device__ inline void fill_table(const Params<T>& p, const Share& share, char* table,
                                  const Beginning& begin, int thread, int threads) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kPixels = kUnit<T> / 4, kBits = 32 / kPixels;
  const int first = first_tap(p, share.chunk, kKind.taps);
  const int box_elements = kBlock * p.x_channel / static_cast<int>(sizeof(T));
  const Meeting at(p, share, first, begin.pixel);
#pragma unroll 1
  for (int i = thread; i < p.filter_rows * p.table_units * 4; i += threads) {
    int32_t row = i / 4;
    const int unit = p.by_table_units.split(row);
    const int run = p.x_runs > 1 ? row : 0;
    const int slack = begin_of_run(p, at, begin.before, run) & (kUnit<T> - 1);
    uint32_t places = 0, masks[kKind.taps] = {};
#pragma unroll
    for (int j = 0; j < kPixels; ++j) {
      const int pixel = begin.pixel - begin.before + unit * kUnit<T> + i % 4 * kPixels + j;
      const bool exists = pixel >= 0 && pixel < p.pixels;
      const Meeting own(p, share, first, exists ? pixel : begin.pixel);
      const int h = own.h + row * p.dilation_h;
      // Words hold pairs: one that the first pixel ends is where it would be.
      const int before = exists ? begin.before : pixel < 0 ? begin.before + pixel : 0;
      int32_t place = (h - at.h - run * p.dilation_h) * p.W + own.w - at.w + before;
      const int box = min(p.by_box_step.quotient(place), p.x_boxes - 1);
      place += box * (box_elements - p.box_step) + slack;
      places |= static_cast<uint32_t>(place) << j * kBits;
#pragma unroll
      for (int tap = 0; tap < kKind.taps; ++tap) {
        const int w = own.w + tap * p.dilation_w;
        const bool inside = exists && h >= 0 && h < p.H && w >= 0 && w < p.W;
        if (inside) masks[tap] |= ~0u >> (32 - kBits) << j * kBits;
      }
    }
    const uint32_t to = ptx::shared_address(table);
    if constexpr (kKind.taps == 1) {
      ptx::store_shared(to + i * 8, make_uint2(places, masks[0]));
    } else {
      static_assert(kKind.taps == 3);
      ptx::store_shared(to + i * 16, make_uint4(places, masks[0], masks[1], masks[2]));
    }
  }
}

// Threads beside the one that loads runs: they fill in the table of each tile. Where dy comes in
// classes they bring it, two tiles at a time, and put it in order.
template <typename T, int kKernel>
__device__ inline void arrange_runs(const Params<T>& p, const Memory& memory, const Share& share,
                                    int thread) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kThreads = kKind.loaders - 32, kChannels = kKind.k_blocks * kBlock;
  const auto raw_of = [&](int state) { return memory.raw + state * p.raw_bytes; };
  const int of_class = kChannels / p.y_classes;
  const int k = (share.group * p.group_K + share.k) / p.y_classes;
  // The first threads start the copy of a class each.
  const auto bring = [&](int tile, int state) {
    if (thread >= p.y_classes || !p.orders || tile >= p.tiles) return;
    const Origin at(p, tile);
    ptx::Barrier* full = &memory.raw_full[state];
    if (thread == 0) ptx::arrive_and_expect_tx(full, kChannels * p.y_channel);
    ptx::tma_load(raw_of(state) + thread * of_class * p.y_channel, &p.y_map, full,
                  at.q + begin_of_class<T>(thread, p.y_k), k, at.n);
  };
  bring(share.split, 0);
  bring(share.split + p.splits, 1);
  ptx::PipelineState state, raw;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    const Origin at(p, tile);
    char* const stage = memory.stages + state.stage * p.stage_bytes;
    ptx::wait(&memory.empty[state.stage], state.parity ^ 1);
    // Tables of whole planes are all alike.
    if (p.by_tiles_q.divisor() > 1 || tile < share.split + p.stages * p.splits) {
      fill_table<T, kKernel>(p, share, stage + p.table_at, {p, share, at.q}, thread, kThreads);
    }
    if (p.orders) {
      ptx::wait(&memory.raw_full[raw.stage], raw.parity);
      order_classes<T, kKernel>(p, raw_of(raw.stage), stage, at.q, thread, kThreads);
      ptx::fence_shared_writes();
    }
    ptx::arrive(&memory.full[state.stage]);
    if (kKind.halves && !p.orders) halve_copies(p, memory, share, state, thread, kThreads);
    state.advance(p.stages);
    if (p.orders) {
      ptx::named_barrier_sync<kThreads>(kLoaderBarrier);  // all have read it
      bring(tile + kRawStages * p.splits, raw.stage);
      raw.advance(kRawStages);
    }
  }
}

}  // namespace customconv::implicit_gemm::wgrad::planes
