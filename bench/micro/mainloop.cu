// A main loop for forward convolutions in float16 and TF32 on one loader: TMA's im2col mode.
//
// A tile is a run of `kM` positions by `kN` output channels. Positions are those of a grid of
// `pitch` columns and `period` rows an image, as im2col mode traverses it. There are two grids:
// - dense: the output's pixels. A stage is one tap of a tile, 64 channels of pixels and of weights.
// - padded: the input's pixels with the padding behind each row and each image. A stage of pixels
//   holds all taps: a tap is the same stage some rows further on. Weights have a ring of their own.
//   Positions in the padding are not stored.
//
// Planes (NCHW) are packed first: a kernel writes some images as NHWC into a workspace, from which
// the main loop reads; it stores planes. The two alternate, so that the workspace stays in L2.
//
// A cluster of two blocks may share pixels (for different output channels) or weights (for
// different pixels): each loads half of them for both. Or the blocks of a cluster split the sums of
// a tile.
//
// mainloop.cuh has what loads and multiplies, mainloop_store.cuh what stores.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/common/map.cuh"
#include "kernels/common/start.h"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/prefetch.cuh"
#include "mainloop.cuh"
#include "mainloop_store.cuh"
#include "program.cuh"

namespace customconv::micro {

// Planes of some images, (N, C, pixels), to (N, pixels, row) with zeros behind the last channel;
// a block has 64 pixels by 64 channels. Images of whole 16 bytes are read 16 bytes at a time.
template <typename T>
__global__ void __launch_bounds__(256)
    pack(const T* __restrict__ x, T* __restrict__ packed, int C, int pixels, int row) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T)), kPitch = 64 + kVector;
  __shared__ __align__(16) T tile[64][kPitch];
  ptx::start_dependents();
  const int first = blockIdx.x * 64, first_c = blockIdx.y * 64;
  const T* from = x + (static_cast<int64_t>(blockIdx.z) * C + first_c) * pixels + first;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  if (pixels % kVector == 0) {
    constexpr int kUnits = 64 / kVector;  // of a channel
#pragma unroll
    for (int i = threadIdx.x; i < 64 * kUnits; i += 256) {
      const int c = i / kUnits, at = i % kUnits * kVector;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (first_c + c < C && first + at < pixels) {
        v = *reinterpret_cast<const uint4*>(from + static_cast<int64_t>(c) * pixels + at);
      }
      *reinterpret_cast<uint4*>(&tile[c][at]) = v;
    }
  } else {
    T v[8][2];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int c = warp + j * 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = lane + i * 32;
        const bool exists = first_c + c < C && first + at < pixels;
        v[j][i] = exists ? from[static_cast<int64_t>(c) * pixels + at] : T(0);
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) tile[warp + j * 8][lane + i * 32] = v[j][i];
    }
  }
  __syncthreads();
  constexpr int kUnits = 64 / kVector;  // of a pixel's 64 channels
#pragma unroll
  for (int i = threadIdx.x; i < 64 * kUnits; i += 256) {
    // A warp has two units of 16 pixels: whole sectors, and few conflicts of banks.
    const int pixel = i / 32 % 4 * 16 + i / 2 % 16, unit = i / 128 * 2 + i % 2;
    if (first + pixel >= pixels || first_c + unit * kVector >= row) continue;
    alignas(16) T channels[kVector];
#pragma unroll
    for (int e = 0; e < kVector; ++e) channels[e] = tile[unit * kVector + e][pixel];
    const int64_t at = (static_cast<int64_t>(blockIdx.z) * pixels + first + pixel) * row;
    *reinterpret_cast<uint4*>(packed + at + first_c + unit * kVector) =
        *reinterpret_cast<const uint4*>(channels);
  }
}

// Brings the first stages of a tile near, while their tensor maps are on their way: a thread asks
// for a row of each stage.
template <int kM, int kN>
__device__ inline void prefetch_stages(const Params& p, const Tile& tile, int thread, int threads) {
  for (int i = thread; i < kM + kN; i += threads) {
    const char* from;
    int next = kRowBytes, count = p.prefetched;  // from a stage to the next: channels, or a tap
    if (i < kM) {
      const Place place(p, tile.position + i);
      const int h = place.row * p.stride - p.pad, w = place.column * p.stride - p.pad;
      if (place.n >= p.N || h < 0 || w < 0 || h >= p.H || w >= p.W)
        continue;  // the first tap is in the padding
      from = p.pixels + ((static_cast<int64_t>(place.n) * p.H + h) * p.W + w) * p.pixel_bytes;
      if (p.groups > 1) {
        next = p.dilation * p.pixel_bytes;
        count = min(count, (p.W - w + p.dilation - 1) / p.dilation);
      }
    } else {
      if (tile.k + i - kM >= p.K) continue;
      from = p.filters + static_cast<int64_t>(tile.k + i - kM) * p.filter_bytes;
      if (p.groups > 1) next = p.tap_bytes;
    }
    for (int stage = 0; stage < count; ++stage) ptx::prefetch_line(from + stage * next);
  }
}

template <typename T, int kWarpgroups, int kBlocks, int kN, int kOccupancy, bool kDense,
          bool kPlanes>
__global__ void __launch_bounds__(128 * (1 + kWarpgroups), kOccupancy)
    convolve(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kM = kWarpgroups * kBlocks * 64;
  constexpr int kThreads = 128 * (1 + kWarpgroups);
  extern __shared__ __align__(1024) char dynamic[];
  const Memory memory(p, dynamic, kWarpgroups * kStagingBytes, kN * kRowBytes);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int sharing = p.share_x * p.share_w, cluster = sharing * p.splits;
  const bool stamped = p.stamps != nullptr && blockIdx.x == 0;
  const int first = static_cast<int>(blockIdx.x) / cluster;
  const int stride = static_cast<int>(gridDim.x) / cluster;
  int rank = 0;
  if (warp == 0) {
    if (stamped && lane == 0) p.stamps[0] = clock64();
    if (lane == 0) ptx::prefetch_map(&p.x);
    if (lane == 1) ptx::prefetch_map(&p.w);
    const int of_x = kWarpgroups * (kDense ? sharing : p.share_x);
    if (lane < kMostStages) {
      ptx::init_barrier(memory.x_full + lane, 1);
      ptx::init_barrier(memory.x_empty + lane, of_x);
      if (!kDense) {
        ptx::init_barrier(memory.w_full + lane, 1);
        ptx::init_barrier(memory.w_empty + lane, kWarpgroups * p.share_w);
      }
    }
    ptx::fence_barrier_init();
    __syncwarp();
  }
  if (cluster > 1) rank = ptx::cluster_rank();
  if (sharing > 1) {
    ptx::meet_cluster();
  } else if (warp == 0) {
    ptx::arrive_threads(kStartBarrier, kThreads);  // it goes on at once
  } else {
    ptx::sync_threads(kStartBarrier, kThreads);
  }

  if (warp < 4) {
    if (warp == 0) {
      if (p.early) ptx::await_dependency();
      PixelLoader<T, kM, kN, kDense> loader(p, memory, rank, lane);
      for (int item = first; item < p.items; item += stride) {
        loader.load(Tile(p, item, rank, kM, kN), Range(p, rank));
      }
      if (sharing > 1) loader.finish();
    } else if (!kDense && warp == 1) {
      ptx::Turn turn;
      for (int item = first; item < p.items; item += stride) {
        load_weights<T, kN>(p, memory, Tile(p, item, rank, kM, kN), rank, turn);
      }
      if (sharing > 1) await_readers(memory.w_empty, p.w_stages, turn);
    }
  } else {
    const int group = warp / 4 - 1, own_row = group * kBlocks * 64;
    if (kDense && p.prefetched > 0) {
      prefetch_stages<kM, kN>(p, Tile(p, first, rank, kM, kN), threadIdx.x - 128,
                              128 * kWarpgroups);
    }
    const bool leads = warp % 4 == 0 && ptx::elect_one();
    const bool stamps = stamped && group == 0 && leads;
    Multiplier<T, kBlocks, kN, kDense> multiplier(p, memory, own_row);
    char* staging = memory.staging + group * kStagingBytes;
    for (int item = first; item < p.items; item += stride) {
      const Tile tile(p, item, rank, kM, kN);
      float sum[kBlocks][kN / 2];
      if (stamps && item == first) {
        ptx::wait(memory.x_full, 0);
        p.stamps[1] = clock64();
      }
      const Range steps(p, rank);
      multiplier.multiply(sum, steps.last - steps.first);
      if (stamps && item == first) p.stamps[2] = clock64();
      if (kDense && !kPlanes && p.splits > 1) {
        store_splits<T, kWarpgroups, kBlocks, kN>(p, tile, sum, memory.weights, group, rank, true);
        return;
      }
      if constexpr (kPlanes) {
        store_planes<T, kBlocks, kN, kDense>(p, tile, sum, staging, own_row, 1 + group);
      } else {
        store_channels<T, kBlocks, kN, kDense>(p, tile, sum, staging, own_row, 1 + group, leads);
      }
      if (stamps && item == first) p.stamps[3] = clock64();
    }
    if (leads) ptx::await_store_reads();
    if (stamps) p.stamps[4] = clock64();
  }
  if (kDense && p.splits > 1) {  // of the loading warps, which hold no sums
    float none[kBlocks][kN / 2];
    store_splits<T, kWarpgroups, kBlocks, kN>(p, Tile(p, first, rank, kM, kN), none, memory.weights,
                                              0, rank, false);
  }
#endif
}

// A tile is warpgroups x blocks x 64 positions by n channels; so many thread blocks run on an SM.
// `planes`: there are kernels that store planes.
struct Shape {
  int warpgroups, blocks, n, occupancy;
  bool planes;
  constexpr int m() const { return warpgroups * blocks * 64; }
};
constexpr Shape kShapes[] = {
    {2, 2, 128, 1, true},  {2, 1, 256, 1, true}, {2, 1, 128, 1, true},
    {3, 1, 128, 1, false}, {2, 2, 64, 1, true},  {2, 1, 64, 2, true},
    {1, 1, 128, 2, false}, {1, 1, 64, 2, false}, {1, 1, 256, 1, false},
};
constexpr int kShapeCount = static_cast<int>(sizeof(kShapes) / sizeof(Shape));

template <typename T, int kTile, bool kDense, bool kPlanes>
int launch(Params& p, int sms, cudaStream_t stream) {
  constexpr Shape kShape = kShapes[kTile];
  constexpr int kStaging = kShape.warpgroups * kStagingBytes, kWeights = kShape.n * kRowBytes;
  constexpr int kRoom = (228 / kShape.occupancy - 1) * 1024 - 1024 - kStaging;
  if (kDense) {
    p.x_stages = p.w_stages = std::min(kRoom / (p.x_bytes + kWeights), kMostStages);
  } else {
    p.w_stages = 4;
    p.x_stages = std::min((kRoom - p.w_stages * kWeights) / p.x_bytes, 4);
    if (p.x_stages >= 2) {
      p.w_stages = std::min((kRoom - p.x_stages * p.x_bytes) / kWeights, kMostStages);
    }
  }
  if (p.x_stages < (kDense ? 3 : 2)) return kDoesNotFit;
  if (p.splits > 1) {
    constexpr int kSums = kShape.m() * kShape.n * 4;
    if (p.x_stages * (p.x_bytes + kWeights) < kSums || kPlanes || !kDense) return kDoesNotFit;
  }
  const int cluster = p.share_x * p.share_w * p.splits;
  const int clusters = p.splits > 1 ? p.items : std::min(p.items, sms * kShape.occupancy / cluster);
  start(
      "convolve",
      {clusters * cluster, 128 * (1 + kShape.warpgroups),
       1024 + kStaging + p.x_stages * p.x_bytes + p.w_stages * kWeights, stream, p.early, cluster},
      convolve<T, kShape.warpgroups, kShape.blocks, kShape.n, kShape.occupancy, kDense, kPlanes>,
      p);
  return 0;
}
template <typename T, bool kPlanes, int kTile = 0>
int launch_tile(int tile, Params& p, bool dense, int sms, cudaStream_t stream) {
  if constexpr (kTile < kShapeCount) {
    if (tile != kTile) return launch_tile<T, kPlanes, kTile + 1>(tile, p, dense, sms, stream);
    if constexpr (!kPlanes || kShapes[kTile].planes) {
      return dense ? launch<T, kTile, true, kPlanes>(p, sms, stream)
                   : launch<T, kTile, false, kPlanes>(p, sms, stream);
    }
  }
  return kDoesNotFit;
}

struct Problem {
  int N, C, H, W, K, R, S, stride, pad, dilation;
  int P() const { return (H + 2 * pad - dilation * (R - 1) - 1) / stride + 1; }
  int Q() const { return (W + 2 * pad - dilation * (S - 1) - 1) / stride + 1; }
};

// Some images; `row` is the elements of an input pixel.
template <typename T, bool kPlanes>
int convolve_images(int tile, bool dense, int share, int prefetched, const Problem& from,
                    const void* x, int row, const void* w, void* y, bool early, int sms,
                    long long* stamps, cudaStream_t stream) {
  constexpr int kSize = static_cast<int>(sizeof(T)), kChannels = kRowChannels<T>;
  if (tile < 0 || tile >= kShapeCount || (!dense && from.stride > 1)) return kDoesNotFit;
  const Shape shape = kShapes[tile];
  const int N = from.N, H = from.H, W = from.W, K = from.K, R = from.R, S = from.S;
  const int pad = from.pad, dilation = from.dilation;
  Params p{};
  p.out = y;
  p.early = early;
  p.N = N;
  p.K = K;
  p.S = S;
  p.stride = from.stride;
  p.P = from.P();
  p.Q = from.Q();
  if (p.stride > 8 || (!dense && (p.P > H + pad || p.Q > W + pad))) return kDoesNotFit;
  const int pitch = dense ? p.Q : W + pad, period = dense ? p.P : H + pad;
  p.image = pitch * period;
  p.splits = share >= 4 ? share / 2 : 1;
  p.share_x = share == 1 ? 2 : 1;
  p.share_w = share == 2 ? 2 : 1;
  p.chunks = (from.C + kChannels - 1) / kChannels;
  p.groups = dense ? R * S : 1;
  if (p.splits > p.chunks * p.groups) return kDoesNotFit;
  p.taps_h = dense ? 1 : R;
  p.taps_w = dense ? 1 : S;
  p.step_h = dilation * pitch * kRowBytes;
  p.step_w = dilation * kRowBytes;
  p.pad = dense ? pad : 0;
  p.dilation = dilation;
  p.halo = dense ? 0 : pad * pitch + pad;
  const int span = dense ? 0 : dilation * ((R - 1) * pitch + S - 1);
  const int parts = p.share_x * ((shape.m() + span + 256 * p.share_x - 1) / (256 * p.share_x));
  p.copy_rows = ((shape.m() + span + parts - 1) / parts + 7) / 8 * 8;
  p.x_bytes = parts * p.copy_rows * kRowBytes;
  p.copies = parts / p.share_x;
  const int tiles_m = (N * p.image + shape.m() - 1) / shape.m(),
            tiles_k = (K + shape.n - 1) / shape.n;
  const int items_k = (tiles_k + p.share_x - 1) / p.share_x;
  p.items = (tiles_m + p.share_w - 1) / p.share_w * items_k;
  p.pixels = static_cast<const char*>(x);
  p.filters = static_cast<const char*>(w);
  p.prefetched = std::min(prefetched, p.groups > 1 ? S : p.chunks);
  p.H = H;
  p.W = W;
  p.pixel_bytes = row * kSize;
  p.tap_bytes = from.C * kSize;
  p.filter_bytes = R * S * from.C * kSize;
  p.by_pitch = Divider<int32_t>(pitch);
  p.by_period = Divider<int32_t>(period);
  p.by_tiles_k = Divider<int32_t>(items_k);
  p.stamps = stamps;

  const cuuint64_t c = row, in = from.C, k = K, taps = R * S;
  p.boxes = dense && R * S == 1 && pad == 0 && p.stride == 1;
  if (p.boxes) {
    const cuuint64_t pixels = cuuint64_t(N) * H * W;
    const Boxes<3> boxes{{c, pixels, 1},
                         {c * kSize, c * kSize * pixels},
                         {cuuint32_t(kChannels), cuuint32_t(p.copy_rows), 1},
                         {1, 1, 1}};
    p.x = make_map(x, kMapType<T>, boxes);
  } else {
    // The corners of the box in which the first tap of each position lies.
    Im2col pixels{N, H, W, row, {-p.pad, -p.pad}, {pad, pad}, p.stride, kChannels, p.copy_rows};
    if (dense) {
      pixels.upper[0] -= dilation * (S - 1);
      pixels.upper[1] -= dilation * (R - 1);
    }
    p.x = map_im2col<T>(x, pixels);
  }
  const Boxes<3> filters{{in, taps, k},
                         {in * kSize, in * taps * kSize},
                         {cuuint32_t(kChannels), 1, cuuint32_t(shape.n / p.share_w)},
                         {1, 1, 1}};
  p.w = make_map(w, kMapType<T>, filters);
  if (!kPlanes) {
    const auto type = kSize == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : kMapType<T>;
    const cuuint64_t pixels = cuuint64_t(N) * p.P * p.Q, all = k * kSize * pixels;
    const Boxes<4> slabs{
        {k, pixels, 1, 1}, {k * kSize, all, all}, {cuuint32_t(kChannels), 64, 1, 1}, {1, 1, 1, 1}};
    p.y = make_map(y, type, slabs);
  }
  return launch_tile<T, kPlanes>(tile, p, dense, sms, stream);
}

// `only_pack`: leaves out all but the kernels that pack.
template <typename T>
int convolve_planes(int tile, bool dense, int images, bool only_pack, const Problem& p,
                    const void* x, const void* w, void* y, void* workspace, int sms,
                    cudaStream_t stream) {
  constexpr int kUnit = 16 / static_cast<int>(sizeof(T));
  const int row = (p.C + kUnit - 1) / kUnit * kUnit, pixels = p.H * p.W;
  for (int n = 0; n < p.N; n += images) {
    Problem part = p;
    part.N = std::min(images, p.N - n);
    const dim3 blocks((pixels + 63) / 64, (row + 63) / 64, part.N);
    const T* from = static_cast<const T*>(x) + static_cast<int64_t>(n) * p.C * pixels;
    pack<T><<<blocks, 256, 0, stream>>>(from, static_cast<T*>(workspace), p.C, pixels, row);
    check_launch("pack");
    if (only_pack) continue;
    T* to = static_cast<T*>(y) + static_cast<int64_t>(n) * p.P() * p.Q() * p.K;
    const int status = convolve_images<T, true>(tile, dense, 0, 0, part, workspace, row, w, to,
                                                /*early=*/true, sms, nullptr, stream);
    if (status != 0) return status;
  }
  return 0;
}

}  // namespace customconv::micro

using namespace customconv::micro;

extern "C" int tile_count() { return kShapeCount; }
extern "C" int tile_positions(int tile) { return kShapes[tile].m(); }
extern "C" int tile_channels(int tile) { return kShapes[tile].n; }

// Strides are of the dense grid only. `size`: bytes of an element. `share`: 0 none, 1 pixels, 2
// weights; 4, 8 or 16: two, four or eight blocks split a tile's sums. `prefetched`: stages that
// threads prefetch.
extern "C" int convolve_forward(int tile, int dense, int share, int prefetched, int size,
                                const void* x, const void* w, void* y, int N, int C, int H, int W,
                                int K, int R, int S, int stride, int pad, int dilation, int sms,
                                long long* stamps, void* stream) {
  return guarded([&] {
    const Problem p{N, C, H, W, K, R, S, stride, pad, dilation};
    const auto convolve =
        size == 2 ? convolve_images<__half, false> : convolve_images<float, false>;
    return convolve(tile, dense != 0, share, prefetched, p, x, C, w, y, /*early=*/false, sms,
                    stamps, static_cast<cudaStream_t>(stream));
  });
}

// The same of planes, so many images at a time; weights are as above, channels last.
extern "C" int convolve_planes_forward(int tile, int dense, int images, int only_pack, int size,
                                       const void* x, const void* w, void* y, void* workspace,
                                       int N, int C, int H, int W, int K, int R, int S, int stride,
                                       int pad, int dilation, int sms, void* stream) {
  return guarded([&] {
    const Problem p{N, C, H, W, K, R, S, stride, pad, dilation};
    const auto convolve = size == 2 ? convolve_planes<__half> : convolve_planes<float>;
    return convolve(tile, dense != 0, images, only_pack != 0, p, x, w, y, workspace, sms,
                    static_cast<cudaStream_t>(stream));
  });
}
