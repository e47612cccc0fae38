// What the boxes kernels share: tiles of images, brought to shared memory by
// TMA, zeros around them, and a thread's view of them, patch by patch.
#pragma once

#include <type_traits>

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/depthwise/boxes/geometry.h"
#include "kernels/epilogue.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::depthwise::boxes {

// Where pixels are in a stage's boxes; bytes.
struct BoxParams {
  Divider<int32_t> columns;  // of a box
  int count, row_bytes, image_bytes, bytes, all_bytes;

  // Seen from the row's beginning.
  __device__ int column_at(int pixel_bytes, int32_t column) const {
    const int own = columns.split(column);
    return column * bytes + own * pixel_bytes;
  }
};

template <typename T>
struct Params {
  CUtensorMap in, gradient;  // the second is `out`, of a weight gradient
  T* out;
  int64_t out_n, out_h, out_w;  // strides
  T* weight;
  int64_t weight_k, weight_r, weight_s;
  Epilogue epilogue;
  float* partial;  // of a weight gradient whose blocks leave parts, else null
  bool clustered;  // blocks that share channels are a cluster
  int N, C;
  Axis h, w;
  Work work;
  int patch_rows;  // of a tile, those of all images
  int pixel_bytes;
  BoxParams in_box, out_box;
  int tiles, tile_blocks;
  Divider<int32_t> neighbours;  // blocks: a cluster's, or those of one chunk each
  Divider<int32_t> pairs, rows, columns, tiles_h, tiles_w, kernel, by_S;
};

struct Memory {
  template <typename T>
  __device__ Memory(const Params<T>& p, char* memory)
      : stages(memory),
        floats(reinterpret_cast<float*>(memory + p.work.filter_at)),
        full(reinterpret_cast<ptx::Barrier*>(memory + p.work.barriers_at)),
        empty(full + kMostStages) {}

  char* stages;
  float* floats;
  ptx::Barrier *full, *empty;  // of the stages
};

// An image, and a row and a column of patches.
struct Place {
  int n, h, w;
};
template <typename T>
__device__ inline Place place_of(const Params<T>& p, int32_t tile) {
  const int w = p.tiles_w.split(tile) * p.columns.divisor();
  const int h = p.tiles_h.split(tile) * p.rows.divisor();
  return {tile * p.work.tile.images, h, w};
}

// The block's share: of the chunks one, of its tiles every so-manieth.
template <typename T>
struct Share {
  __device__ explicit Share(const Params<T>& p) {
    int32_t rest = static_cast<int>(blockIdx.x);
    const int own = p.neighbours.split(rest);
    channel = (p.clustered ? rest : own) * p.work.tile.channels;
    first_tile = p.clustered ? own : rest;
  }
  int channel, first_tile;
};

template <typename T>
__device__ inline void init_barriers(const Params<T>& p, const Memory& memory) {
  if (threadIdx.x == 0) {
    ptx::prefetch_tma_descriptor(&p.in);
    for (int i = 0; i < kMostStages; ++i) {
      ptx::init_barrier(&memory.full[i], 1);
      ptx::init_barrier(&memory.empty[i], p.work.threads / 32);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();
}

// Brings the boxes that begin at an image's pixel.
template <typename T>
__device__ inline void bring(const Params<T>& p, const CUtensorMap& map, const BoxParams& box,
                             ptx::Barrier* full, int channel, int w, int h, int n, char* to) {
  if (!p.work.tile.merged) return ptx::tma_load(to, &map, full, channel, w, h, n);
  const int across = box.columns.divisor();
#pragma unroll 1
  for (int i = 0; i < box.count; ++i) {
    ptx::tma_load(to + i * box.bytes, &map, full, (w + i * across) * p.C, h, n);
  }
}

// The loader's warp; one of its threads starts the copies.
template <bool kOfWeights, typename T>
__device__ inline void load_tiles(const Params<T>& p, const Memory& memory, const Share<T>& share) {
  const bool elected = ptx::elect_one();
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = share.first_tile; tile < p.tiles; tile += p.tile_blocks) {
    const Place at = place_of(p, tile);
    ptx::Barrier* const full = &memory.full[state.stage];
    ptx::wait(&memory.empty[state.stage], state.parity ^ 1);
    if (elected) {
      char* to = memory.stages + state.stage * p.work.stage_bytes;
      ptx::arrive_and_expect_tx(full, p.in_box.all_bytes + (kOfWeights ? p.out_box.all_bytes : 0));
      bring(p, p.in, p.in_box, full, share.channel, p.w.origin + at.w * p.w.advance,
            p.h.origin + at.h * p.h.advance, at.n, to);
      if (kOfWeights) {
        bring(p, p.gradient, p.out_box, full, share.channel, at.w * kPatch, at.h * kPatch, at.n,
              to + p.in_box.count * p.in_box.bytes);
      }
    }
    state.advance(p.work.stages);
  }
}

// A thread's patches of every tile: of a column of patches every so-manieth row, all images' rows
// being counted. Its pair of channels is the same in all.
struct Lane {
  template <typename T>
  __device__ explicit Lane(const Params<T>& p, const Share<T>& share) {
    int32_t rest = static_cast<int>(threadIdx.x);
    pair = p.pairs.split(rest) * 2;
    column = p.columns.split(rest);
    const bool idle = rest >= p.work.down || share.channel + pair >= p.C;
    row = idle ? p.patch_rows : rest;
  }
  int pair;         // its first channel, of the block's
  int column, row;  // of the first patch
};

// Calls `each` for every patch of the thread that has a pixel: with its place in the image, and in
// the tile, and the tile's stage.
template <typename T, typename Each>
__device__ inline void walk_tiles(const Params<T>& p, const Memory& memory, const Share<T>& share,
                                  const Lane& lane, const Each& each) {
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = share.first_tile; tile < p.tiles; tile += p.tile_blocks) {
    const Place at = place_of(p, tile);
    const char* stage = memory.stages + state.stage * p.work.stage_bytes;
    ptx::wait(&memory.full[state.stage], state.parity);
    const int end = at.w + lane.column < p.w.patches ? p.patch_rows : 0;
#pragma unroll 1
    for (int row = lane.row; row < end; row += p.work.down) {
      int32_t n = row;
      const int h = p.rows.split(n);
      const Place own{n, h, lane.column}, where{at.n + n, at.h + h, at.w + lane.column};
      if (where.n < p.N && where.h < p.h.patches) each(where, own, stage);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::arrive(&memory.empty[state.stage]);
    state.advance(p.work.stages);
  }
}

// Two neighbouring channels.
template <typename T>
using Pair = std::conditional_t<sizeof(T) == 2, uint32_t, float2>;

template <typename T>
__device__ inline float2 widen_pair(Pair<T> pair) {
  if constexpr (sizeof(T) == 4) {
    return pair;
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  }
}
template <typename T>
__device__ inline Pair<T> narrow_pair(float2 v) {
  if constexpr (sizeof(T) == 4) {
    return v;
  } else {
    return pack_pair<T>(v.x, v.y);
  }
}
template <typename T>
__device__ inline float2 read_pair(const void* from) {
  return widen_pair<T>(*static_cast<const Pair<T>*>(from));
}

__device__ inline void multiply_add(float2 a, float2 b, float2& sum) {
  sum.x = fmaf(a.x, b.x, sum.x);
  sum.y = fmaf(a.y, b.y, sum.y);
}

// Where the groups of columns of a patch's window are, seen from their row's beginning.
template <Walk kWalk, int kTaps>
struct Columns {
  static constexpr int kGroup = group_of(kWalk);
  static constexpr int kCount = (window_of(kWalk, kTaps) + kGroup - 1) / kGroup;

  template <typename T>
  __device__ Columns(const Params<T>& p, const Lane& lane) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int column = lane.column * p.w.advance + i * kGroup;
      offset[i] =
          p.in_box.column_at(p.pixel_bytes, column) + lane.pair * static_cast<int>(sizeof(T));
    }
  }
  template <typename T>
  __device__ int place(const Params<T>& p, int column) const {
    return offset[column / kGroup] + column % kGroup * p.pixel_bytes;
  }
  int offset[kCount];
};

// Where the rows of a tile's window begin.
template <typename T>
__device__ inline const char* window_at(const Params<T>& p, const char* stage, const Place& own) {
  return stage + own.n * p.in_box.image_bytes + own.h * p.h.advance * p.in_box.row_bytes;
}

// Goes through the window of a tile's patch, row by row. `meet` gets the row and the column of an
// output and of the tap by which it meets a pixel, and the pixel's values.
template <typename T, Walk kWalk, int kTaps, typename Meet>
__device__ inline void walk_window(const Params<T>& p, const Columns<kWalk, kTaps>& columns,
                                   const char* stage, const Place& own, const Meet& meet) {
  constexpr int kWindow = window_of(kWalk, kTaps);
  const char* const row = window_at(p, stage, own);
  const char* from[kWindow];
#pragma unroll
  for (int c = 0; c < kWindow; ++c) from[c] = row + columns.place(p, c);
#pragma unroll
  for (int i = 0; i < kWindow; ++i) {
    float2 value[kWindow];
#pragma unroll
    for (int c = 0; c < kWindow; ++c) value[c] = read_pair<T>(from[c] + i * p.in_box.row_bytes);
#pragma unroll
    for (int t = 0; t < kPatch; ++t) {
      const int r = tap_of(kWalk, kTaps, i, t);
      if (r < 0 || r >= kTaps) continue;
#pragma unroll
      for (int j = 0; j < kPatch; ++j) {
#pragma unroll
        for (int c = 0; c < kWindow; ++c) {
          const int s = tap_of(kWalk, kTaps, c, j);
          if (s >= 0 && s < kTaps) meet(t, j, r, s, value[c]);
        }
      }
    }
  }
}

}  // namespace customconv::depthwise::boxes
