// The kernel for Hopper: one warpgroup loads, two multiply (wgmma) from where the loads put it.
#pragma once

#include "kernels/implicit_gemm/epilogue.cuh"
#include "kernels/implicit_gemm/gather.cuh"
#include "kernels/implicit_gemm/turn.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm {

template <typename T>
struct Params {
  CUtensorMap x, w, y;
  Output<T> out;
  union {  // as the loader is
    Gather<T> gather;
    Turn<T> turn;
  };
  int R, S;
  Axis h, w_axis;
  int stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w;
  int rows, columns, images, run;  // of a tile; `run`: its positions where tiles are parts of a run
  int pitch;
  int x_stages, w_stages;
  bool boxed_out;
  int plane_bytes, boxed_bytes;
  int staging_bytes;               // of all stores
  uint32_t block_at[kMostBlocks];  // in a plane, of a block's first pixel
  uint32_t group_bytes;            // from eight of its pixels to the next eight
  int items, steps, splits;
  int chunks, last_products;  // of the last chunk, which may hold few channels
  Divider<int32_t> tiles_k, tiles_q, tiles_p, tiles_n;
  float* partial;
};

// What a thread block does next: a tile, and of its sum the steps [first, last).
struct Work {
  Corner at;
  int first, last;
};

template <typename T>
__device__ inline Work work_at(const Params<T>& p, int item, int channels) {
  Work work;
  int32_t rest = item;
  work.at.k = p.tiles_k.split(rest) * channels;
  const int q = p.tiles_q.split(rest);
  work.at.q = q * p.columns;
  work.at.p = p.tiles_p.split(rest) * p.rows;
  work.at.n = p.tiles_n.split(rest) * p.images;
  work.at.line = 0;
  if (p.run > 0) {
    work.at.q = 0;
    work.at.line = q * p.run;
  }
  work.first = static_cast<int>(int64_t{p.steps} * rest / p.splits);
  work.last = static_cast<int>(int64_t{p.steps} * (rest + 1) / p.splits);
  return work;
}

// A position in a ring of stages, and the parity of the round it is in.
struct Place {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A step: a chunk of channels of one plane.
struct Step {
  int chunk, plane_h, plane_w;
  template <typename T>
  __device__ Step(const Params<T>& p, int index) {
    plane_w = index % p.w_axis.planes;
    plane_h = index / p.w_axis.planes % p.h.planes;
    chunk = index / (p.w_axis.planes * p.h.planes);
  }
  template <typename T>
  __device__ void advance(const Params<T>& p) {
    if (++plane_w < p.w_axis.planes) return;
    plane_w = 0;
    if (++plane_h < p.h.planes) return;
    plane_h = 0;
    ++chunk;
  }
};

struct Shared {
  char* planes;
  char* weights;
  char* staging;
  char* pieces;
  int64_t* offsets;  // of the pixels of a tile, for each warpgroup
  ptx::Barrier* x_full;
  ptx::Barrier* x_empty;
  ptx::Barrier* w_full;
  ptx::Barrier* w_empty;
  ptx::Barrier* piece_full;
  ptx::Barrier* piece_empty;
};

// A thread block's steps, one tile after the other: every agent walks through the same.
template <typename T>
class Walk {
 public:
  __device__ Walk(const Params<T>& p, int channels)
      : step(p, 0), p_(p), channels_(channels), item_(blockIdx.x) {
    begin();
  }
  __device__ bool is_over() const { return item_ >= p_.items; }
  __device__ bool is_new_tile() const { return index_ == work.first; }
  __device__ Corner plane() const {
    Corner at = work.at;
    at.p = at.p * p_.stride_h - p_.pad_h + step.plane_h * p_.dilation_h;
    at.q = at.q * p_.stride_w - p_.pad_w + step.plane_w * p_.dilation_w;
    return at;
  }
  // Pieces of the step's channels.
  __device__ int pieces() const {
    return step.chunk + 1 == p_.chunks ? p_.last_products : kRowBytes / kPieceBytes;
  }
  __device__ void advance() {
    step.advance(p_);
    if (++index_ < work.last) return;
    item_ += gridDim.x;
    begin();
  }

  Work work;
  Step step;

 private:
  __device__ void begin() {
    if (is_over()) return;
    work = work_at(p_, item_, channels_);
    index_ = work.first;
    step = Step(p_, index_);
  }

  const Params<T>& p_;
  int channels_, item_, index_ = 0;
};

// The weights of one tap after the other; called by one thread.
template <typename T, int kChannels>
__device__ inline void load_weights(const Params<T>& p, const Shared& shared) {
  constexpr int kChunk = kRowBytes / static_cast<int>(sizeof(T));
  constexpr int kBytes = kChannels * kRowBytes;
  Place w;
  for (Walk<T> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    const int k = walk.work.at.k, c = walk.step.chunk * kChunk;
    for (int r = walk.step.plane_h; r < p.R; r += p.h.planes) {
      for (int s = walk.step.plane_w; s < p.S; s += p.w_axis.planes) {
        ptx::wait(&shared.w_empty[w.stage], w.parity ^ 1);
        ptx::arrive_expecting(&shared.w_full[w.stage], kBytes);
        ptx::copy_box(shared.weights + w.stage * kBytes, &p.w, &shared.w_full[w.stage], c,
                      r * p.S + s, k);
        w.advance(p.w_stages);
      }
    }
  }
}

// Planes in boxes; called by one thread.
template <typename T, int kChannels>
__device__ inline void load_planes(const Params<T>& p, const Shared& shared) {
  constexpr int kChunk = kRowBytes / static_cast<int>(sizeof(T));
  Place x;
  for (Walk<T> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    const Corner at = walk.plane();
    ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
    ptx::arrive_expecting(&shared.x_full[x.stage], p.boxed_bytes);
    ptx::copy_box(shared.planes + x.stage * p.plane_bytes, &p.x, &shared.x_full[x.stage],
                  walk.step.chunk * kChunk, at.q, at.p, at.n);
    x.advance(p.x_stages);
  }
}

// Pieces of planes; called by one thread.
template <typename T, int kChannels>
__device__ inline void load_pieces(const Params<T>& p, const Shared& shared) {
  constexpr int kPieces = kRowBytes / kPieceBytes;
  constexpr int kPiece = kPieceBytes / static_cast<int>(sizeof(T));
  const Turn<T>& turn = p.turn;
  Place place;
  for (Walk<T> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    const Corner at = walk.plane();
    const Spans<T> spans(turn, at, walk.step.chunk);
    for (int piece = 0; piece < walk.pieces(); piece += turn.pieces.count) {
      const int c = (walk.step.chunk * kPieces + piece) * kPiece;
      char* to = shared.pieces + place.stage * turn.pieces.bytes;
      ptx::Barrier* full = &shared.piece_full[place.stage];
      ptx::wait(&shared.piece_empty[place.stage], place.parity ^ 1);
      if (turn.boxed) {
        ptx::expect_bytes(full, turn.boxed_bytes);
        ptx::copy_box(to, &p.x, full, first_column<T>(at.q), at.p, c, at.n);
      } else {
        copy_spans(turn, &p.x, at, spans, piece, c, to, full);
      }
      ptx::arrive(full);
      place.advance(turn.pieces.stages);
    }
  }
}

// Turns pieces, as they arrive, into planes.
template <typename T, int kChannels, int kThreads>
__device__ inline void turn_planes(const Params<T>& p, const Shared& shared, int thread) {
  constexpr int kPieces = kRowBytes / kPieceBytes;
  constexpr int kPiece = kPieceBytes / static_cast<int>(sizeof(T));
  const Turn<T>& turn = p.turn;
  const bool one_plane = p.h.planes * p.w_axis.planes == 1;
  Turner<T, kThreads> turner(turn, thread);
  Place x, place;
  for (Walk<T> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    if (walk.is_new_tile() || !one_plane) turner.set(walk.plane());
    char* plane = shared.planes + x.stage * p.plane_bytes;
    ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
    for (int piece = 0; piece < walk.pieces(); piece += turn.pieces.count) {
      ptx::wait(&shared.piece_full[place.stage], place.parity);
      turner.turn(piece, min(turn.pieces.count, walk.pieces() - piece),
                  turn.C - (walk.step.chunk * kPieces + piece) * kPiece,
                  shared.pieces + place.stage * turn.pieces.bytes, plane);
      ptx::arrive(&shared.piece_empty[place.stage]);
      place.advance(turn.pieces.stages);
    }
    ptx::fence_shared_writes();
    ptx::arrive_warp(&shared.x_full[x.stage]);
    x.advance(p.x_stages);
  }
}

template <typename T, int kChannels>
__device__ inline void gather_planes(const Params<T>& p, const Shared& shared, int thread) {
  Place x;
  for (Walk<T> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
    gather_plane(p.gather, walk.plane(), walk.step.chunk, shared.planes + x.stage * p.plane_bytes,
                 thread);
    ptx::fence_shared_writes();
    ptx::arrive_warp(&shared.x_full[x.stage]);
    x.advance(p.x_stages);
  }
}

// Adds a tap's products over the first kPieces pieces of its channels. `pixels`: where the tap's
// blocks of pixels are in shared memory. No branch may come between the products of a group: the
// compiler would make several groups of it.
template <typename T, int kKernel, int kPieces>
__device__ inline void add_tap(
    float (&sum)[kKernels[kKernel].blocks()][kKernels[kKernel].columns() / 2], uint32_t filters,
    const uint32_t (&pixels)[kKernels[kKernel].blocks()], uint32_t group_bytes, int accumulate) {
  constexpr Kernel kKind = kKernels[kKernel];
  ptx::begin_products();
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const uint64_t f = ptx::describe_rows(filters + piece * kPieceBytes, 8 * kRowBytes);
#pragma unroll
    for (int b = 0; b < kKind.blocks(); ++b) {
      const uint64_t x = ptx::describe_rows(pixels[b] + piece * kPieceBytes, group_bytes);
      ptx::Product<T, kKind.columns()>::add(sum[b], kKind.planar ? f : x, kKind.planar ? x : f,
                                            piece > 0 || accumulate);
    }
  }
  ptx::commit_products();
}

template <typename T, int kKernel>
__device__ inline void multiply(const Params<T>& p, const Shared& shared, int warpgroup) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kBlocks = kKind.blocks();
  constexpr int kSums = kKind.columns() / 2;
  constexpr int kProducts = kRowBytes / kPieceBytes;
  constexpr int kWeightBytes = kKind.channels * kRowBytes;
  const bool leader = threadIdx.x % 128 == 0;
  const int first_block = warpgroup / kKind.channel_groups() * kBlocks;
  const uint32_t group =
      warpgroup % kKind.channel_groups() * kInstructionRows * kRowBytes;  // of channels
  int64_t* offsets = shared.offsets + warpgroup * kMostPixels;
  Place x, w;
  for (int item = blockIdx.x; item < p.items; item += gridDim.x) {
    const Work work = work_at(p, item, kKind.channels);
    Step step(p, work.first);
    float sum[kBlocks][kSums];
    int accumulate = 0;
    ptx::Barrier* w_done = nullptr;  // what the products under way still read
    ptx::Barrier* x_done = nullptr;
    const auto completed = [&] {
      if (leader && w_done != nullptr) ptx::arrive(w_done);
      if (leader && x_done != nullptr) ptx::arrive(x_done);
      x_done = nullptr;
    };
    for (int i = work.first; i < work.last; ++i, step.advance(p)) {
      ptx::wait(&shared.x_full[x.stage], x.parity);
      const uint32_t plane = ptx::shared_address(shared.planes + x.stage * p.plane_bytes);
      const int products = step.chunk + 1 == p.chunks ? p.last_products : kProducts;
      uint32_t row = 0;
      for (int r = step.plane_h; r < p.R; r += p.h.planes, row += p.h.step * p.pitch * kRowBytes) {
        uint32_t tap = row;
        for (int s = step.plane_w; s < p.S;
             s += p.w_axis.planes, tap += p.w_axis.step * kRowBytes) {
          ptx::wait(&shared.w_full[w.stage], w.parity);
          const uint32_t filters =
              ptx::shared_address(shared.weights + w.stage * kWeightBytes) + group;
          uint32_t pixels[kBlocks];
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) pixels[b] = plane + tap + p.block_at[first_block + b];
          switch (products) {
            case 4:
              add_tap<T, kKernel, 4>(sum, filters, pixels, p.group_bytes, accumulate);
              break;
            case 3:
              add_tap<T, kKernel, 3>(sum, filters, pixels, p.group_bytes, accumulate);
              break;
            case 2:
              add_tap<T, kKernel, 2>(sum, filters, pixels, p.group_bytes, accumulate);
              break;
            default:
              add_tap<T, kKernel, 1>(sum, filters, pixels, p.group_bytes, accumulate);
          }
          // While the first products are under way.
          if (kKind.planar && accumulate == 0) {
            find_offsets<T, kKind.block>(p.out, work.at, first_block, kBlocks, offsets);
          }
          accumulate = 1;
          ptx::await_products<1>();
          completed();
          w_done = &shared.w_empty[w.stage];
          w.advance(p.w_stages);
        }
      }
      x_done = &shared.x_empty[x.stage];
      x.advance(p.x_stages);
    }
    ptx::await_products<0>();
    completed();
    if (p.splits > 1) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int64_t place = (int64_t{item} * kWarpgroups + warpgroup) * kBlocks + b;
        float* to = p.partial + place * (128 * kSums) + threadIdx.x % 128;
#pragma unroll
        for (int j = 0; j < kSums; ++j) to[j * 128] = sum[b][j];
      }
      continue;
    }
    finish<T, kKernel>(p.out, p.boxed_out ? &p.y : nullptr, work.at, sum, warpgroup, offsets,
                       shared.staging + warpgroup * (p.staging_bytes / kWarpgroups));
  }
  if (p.boxed_out && leader) ptx::await_store_reads();
}

template <typename T, int kKernel, Loader kLoader>
__global__ void __launch_bounds__(threads_of(kKernels[kKernel], kLoader), 1)
    convolve(const __grid_constant__ Params<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kChannels = kKernels[kKernel].channels;
  constexpr bool kFilled = kLoader != Loader::kBoxes;
  constexpr int kFetchers = fetchers(kKernels[kKernel], kLoader);
  constexpr int kTurnThreads = turners(kKernels[kKernel], kLoader);
  constexpr int kFillThreads = is_turned(kLoader) ? kTurnThreads : kGatherThreads;
  extern __shared__ __align__(1024) char memory[];
  Shared shared;
  shared.planes = memory;
  shared.staging = shared.planes + p.x_stages * p.plane_bytes;
  shared.weights = shared.staging + p.staging_bytes;
  shared.pieces = shared.weights + p.w_stages * kChannels * kRowBytes;
  shared.x_full = reinterpret_cast<ptx::Barrier*>(
      shared.pieces + (is_turned(kLoader) ? p.turn.pieces.stages * p.turn.pieces.bytes : 0));
  shared.x_empty = shared.x_full + kMostStages;
  shared.w_full = shared.x_empty + kMostStages;
  shared.w_empty = shared.w_full + kMostStages;
  shared.piece_full = shared.w_empty + kMostStages;
  shared.piece_empty = shared.piece_full + kMostStages;
  shared.offsets = reinterpret_cast<int64_t*>(shared.x_full + kBarrierBytes / 8);

  if (threadIdx.x == 0) {
    for (int i = 0; i < p.x_stages; ++i) {
      ptx::init_barrier(&shared.x_full[i], kFilled ? kFillThreads / 32 : 1);
      ptx::init_barrier(&shared.x_empty[i], kWarpgroups);
    }
    for (int i = 0; i < p.w_stages; ++i) {
      ptx::init_barrier(&shared.w_full[i], 1);
      ptx::init_barrier(&shared.w_empty[i], kWarpgroups);
    }
    if constexpr (is_turned(kLoader)) {
      for (int i = 0; i < p.turn.pieces.stages; ++i) {
        ptx::init_barrier(&shared.piece_full[i], 1);
        ptx::init_barrier(&shared.piece_empty[i], kFillThreads);
      }
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();
  const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warpgroup < kFetchers) {
    ptx::give_registers<!kFilled ? 40 : kFetchers == 1 ? 104 : 88>();
    if (warp == 0) {
      if (lane == 0) load_weights<T, kChannels>(p, shared);
    } else if constexpr (is_turned(kLoader)) {
      if (warp == 1) {
        if (lane == 0) load_pieces<T, kChannels>(p, shared);
      } else {
        const int thread = threadIdx.x - (128 * kFetchers - kTurnThreads);
        if (thread >= 0) turn_planes<T, kChannels, kTurnThreads>(p, shared, thread);
      }
    } else if constexpr (kLoader == Loader::kGathered) {
      gather_planes<T, kChannels>(p, shared, threadIdx.x - 32);
    } else if (threadIdx.x == 32) {
      load_planes<T, kChannels>(p, shared);
    }
  } else {
    // As many as the fetchers gave.
    ptx::take_registers<!kFilled ? 232 : kFetchers == 1 ? 200 : 168>();
    multiply<T, kKernel>(p, shared, warpgroup - kFetchers);
  }
#endif
}

// Adds up the parts of a tile's sums, always in the same order, and stores them. A block of threads
// has a part of a warpgroup's sums: so many columns of the instruction.
template <typename T>
constexpr int split_columns(const Kernel& kind) {
  return kind.planar ? kSliceBytes / static_cast<int>(sizeof(T)) : 32;
}

template <typename T, int kKernel>
__global__ void __launch_bounds__(128) add_splits(const __grid_constant__ Params<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kColumns = split_columns<T>(kKind);
  constexpr int kParts = kKind.columns() / kColumns;  // of a block's sums
  constexpr int kSums = kColumns / 2;
  constexpr int kBlocks = kKind.blocks();
  constexpr int kAtOnce = 4;
  extern __shared__ __align__(1024) char memory[];
  const int tiles = p.items / p.splits;
  const int part = blockIdx.x % kParts, b = blockIdx.x / kParts % kBlocks;
  const int warpgroup = blockIdx.x / (kParts * kBlocks) % kWarpgroups;
  const int tile = blockIdx.x / (kParts * kBlocks * kWarpgroups);
  const Corner at = work_at(p, tile, kKind.channels).at;
  const int block = warpgroup / kKind.channel_groups() * kBlocks + b;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float sum[kSums] = {};
  for (int first = 0; first < p.splits; first += kAtOnce) {
    float more[kAtOnce][kSums];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= p.splits) continue;
      const int64_t item = int64_t{first + i} * tiles + tile;
      const int64_t place = (item * kWarpgroups + warpgroup) * kBlocks + b;
      const float* from = p.partial + (place * kParts + part) * (128 * kSums) + threadIdx.x;
#pragma unroll
      for (int j = 0; j < kSums; ++j) more[i][j] = from[j * 128];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= p.splits) continue;
#pragma unroll
      for (int j = 0; j < kSums; ++j) sum[j] += more[i][j];
    }
  }
  if constexpr (kKind.planar) {
    __shared__ int64_t offsets[kColumns];
    if (threadIdx.x < kColumns) {
      offsets[threadIdx.x] =
          pixel_offset<T, kKind.block>(p.out, at, block, part * kColumns + threadIdx.x);
    }
    __syncthreads();
    const int k = at.k + warpgroup % kKind.channel_groups() * kInstructionRows;
    add_bias<true>(p.out, k, sum);
    store_planes(p.out, k + warp * kWarpChannels, sum, offsets, lane,
                 memory + warp * staging_bytes<T>(kKind));
  } else {
    Corner corner = at;
    corner.k += part * kColumns;
    add_bias<false>(p.out, corner.k, sum);
    store_channels<kColumns>(p.out, corner, sum, block, warp, lane,
                             memory + warp * staging_bytes<T>(kKind));
  }
#endif
}

}  // namespace customconv::implicit_gemm
