// The weight gradient of images of 16-bit elements: boxes of both come as in boxes.cuh, warps
// multiply them where they lie, pixel by pixel. What warps and blocks share is as in gradient.cuh,
// but the warps that share pixels and the blocks of a cluster add up their sums: a cluster leaves
// one part, or stores the result where it is the only one of a slice.
#pragma once

#include "kernels/common/scalar.cuh"
#include "kernels/grouped/box.cuh"
#include "kernels/grouped/gradient.cuh"
#include "kernels/grouped/planes.cuh"
#include "kernels/grouped/strips.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::grouped {

// Where a row or column of a set's sums goes in the result, seen from the set's first, and the
// group that it is of.
struct alignas(16) SumPlace {
  int64_t offset;
  int group;
};
static_assert(sizeof(SumPlace) == kSumPlaceBytes);
constexpr int kNoRow = INT32_MAX, kNoColumn = -1;  // groups

template <typename T>
struct GradientBoxParams {
  CUtensorMap in, out;
  Image<T> in_image, out_image;          // what they are of
  PlaneBox in_box, out_box;              // where threads bring them
  StripBox in_strip_box, out_strip_box;  // where they are made of strips
  GradientShares shares;
  TileParams tile;
  GradientBoxWork work;
  int stage_bytes, brought_bytes;
  int warps;                 // that multiply
  int pixels;                // of a tile, in whole steps
  Divider<int32_t> by_rows;  // of a set's pairs
  T* weight;                 // none where clusters leave parts
  int64_t weight_k, weight_c, weight_r, weight_s;
};

// A block's shared memory.
struct GradientBoxMemory {
  template <typename T>
  __device__ GradientBoxMemory(const GradientBoxParams<T>& p, char* memory)
      : stages(memory),
        boxes(memory + p.work.boxes_at),
        zeros(memory + p.work.zeros_at),
        spots(reinterpret_cast<Spot*>(memory + p.work.positions_at)),
        pixels(reinterpret_cast<int*>(spots + p.pixels)),
        table(reinterpret_cast<int*>(memory + p.work.table_at)),
        rows(reinterpret_cast<SumPlace*>(memory + p.work.places_at)),
        columns(rows + p.by_rows.divisor() * kOctet),
        full(reinterpret_cast<ptx::Barrier*>(memory + p.work.barriers_at)),
        empty(full + kMostStages),
        listed(empty + kMostStages),
        list(memory + p.work.list_at),
        out_list(memory + p.work.out_list_at) {}

  char *stages, *boxes, *zeros;  // boxes where they are made of strips
  Spot* spots;                   // of a tile's positions
  int* pixels;                   // of their first pixels the rows, in bytes
  int* table;                  // of the rows of sums: how far from a pixel's row those of `in` are
  SumPlace *rows, *columns;    // of a set's sums: of every row and column of octets eight
  ptx::Barrier *full, *empty;  // of the stages
  ptx::Barrier* listed;        // the places of sums
  char *list, *out_list;       // how boxes are brought, where TMA does not

  __device__ Brought* brought() const { return reinterpret_cast<Brought*>(list); }
  __device__ Brought* out_brought() const { return reinterpret_cast<Brought*>(out_list); }
};

template <typename T>
__device__ inline RunPlace run_place(const GradientBoxParams<T>& p, const Place& at) {
  return {p.in_strip_box, at.h * p.tile.h.step + p.tile.h.first,
          at.w * p.tile.w.step + p.tile.w.first};
}

// Lists where the rows of every set's pairs are; behind a set's last row, some that exist.
template <typename T>
__device__ inline void list_gradient_rows(const Crew& crew, const GradientBoxParams<T>& p,
                                          const Share& share, int pairs, int* table) {
  const GradientShares& shares = p.shares;
  const Taps &h = p.tile.h.taps[0], &w = p.tile.w.taps[0];
#pragma unroll 1
  for (int i = crew.thread; i < p.by_rows.divisor() * shares.cut.sets; i += crew.threads) {
    int32_t set = i;
    int32_t tap = min(p.by_rows.split(set), shares.cut.taps * shares.cut.octets - 1);
    const int piece = set * shares.cut.octets + shares.by_octets.split(tap);
    tap = min(share.tap + tap, shares.kernel - 1);
    const int s = shares.by_S.split(tap);
    table[i] = piece_place(piece, p.work.box_bytes) +
               rows_between(p.tile, h.offset + tap * h.offset_step, w.offset + s * w.offset_step) *
                   p.work.row_bytes;
  }
}

// The positions of a tile, and of their first pixels the rows; a row of zeros for pixels that do
// not exist.
template <typename T>
__device__ inline void list_pixels(const Crew& crew, const GradientBoxParams<T>& p,
                                   const GradientBoxMemory& memory) {
  list_positions(crew, p.tile, 0, 0, 0, p.pixels, memory.spots);
#pragma unroll 1
  for (int i = crew.thread; i < p.pixels; i += crew.threads) {
    memory.pixels[i] = i < p.tile.pixels ? box_row(p.tile, i) * p.work.row_bytes : 0;
  }
  if (crew.thread < kBoxRowBytes / 4) reinterpret_cast<int*>(memory.zeros)[crew.thread] = 0;
}

// The rows of dy behind a tile's last position, which no box brings.
template <typename T>
__device__ inline void clear_behind(const Crew& crew, const GradientBoxParams<T>& p,
                                    const GradientBoxMemory& memory) {
  const int behind = (p.pixels - p.tile.pixels) * p.work.row_bytes / kPieceBytes;
#pragma unroll 1
  for (int i = crew.thread; i < p.work.stages * p.work.out_boxes * behind; i += crew.threads) {
    const int stage = i / behind / p.work.out_boxes, box = i / behind % p.work.out_boxes;
    char* to = memory.stages + stage * p.stage_bytes + p.work.boxes * p.work.box_bytes +
               box * p.work.out_box_bytes + p.tile.pixels * p.work.row_bytes;
    reinterpret_cast<uint4*>(to)[i % behind] = uint4{};
  }
}

// A whole warp; one of the threads starts the copies.
template <typename T, bool kStrips>
__device__ inline void load_gradient_boxes(const GradientBoxParams<T>& p,
                                           const GradientBoxMemory& memory, const Share& share) {
  const bool elected = ptx::elect_one();
  const int channel = share.set * p.shares.cut.C + share.octet * kOctet;
  const int out_channel = share.set * p.shares.cut.K + share.column * kOctet;
  ptx::PipelineState state;
  for (int tile = share.split; tile < p.tile.tiles; tile += p.shares.splits) {
    const Place at = place_of(p.tile, tile);
    ptx::Barrier* full = &memory.full[state.stage];
    ptx::wait(&memory.empty[state.stage], state.parity ^ 1);
    if (elected) {
      char* to = memory.stages + state.stage * p.stage_bytes;
      ptx::arrive_and_expect_tx(full, p.brought_bytes);
      if constexpr (kStrips) {
        bring_strips<T>(p.in_strip_box, p.in, full, channel, at.n, run_place(p, at), to);
        bring_strips<T>(p.out_strip_box, p.out, full, out_channel, at.n,
                        {p.out_strip_box, at.h, at.w}, to + p.work.strips.bytes);
      } else {
        bring_tile<T>(p.tile, p.in, full, channel, at, p.work.boxes, p.work.box_bytes, to,
                      p.work.row_bytes);
        bring_boxes<T>(p.out, full, out_channel, at.w, at.h, at.n, p.work.out_boxes,
                       p.work.out_box_bytes, to + p.work.boxes * p.work.box_bytes);
      }
    }
    state.advance(p.work.stages);
  }
}

// The same by threads.
template <typename T>
__device__ inline void load_gradient_planes(const GradientBoxParams<T>& p,
                                            const GradientBoxMemory& memory, const Share& share) {
  const Crew crew = producers(kMostThreads);
  const GradientShares& shares = p.shares;
  const PlaneCopies<T> copies(crew, p.in_image, p.in_box,
                              share.set * shares.cut.C + share.octet * kOctet,
                              shares.cut.sets * shares.cut.octets, p.work.box_bytes);
  const PlaneCopies<T> out_copies(crew, p.out_image, p.out_box,
                                  share.set * shares.cut.K + share.column * kOctet,
                                  shares.cut.sets * shares.cut.columns, p.work.out_box_bytes);
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = share.split; tile < p.tile.tiles; tile += shares.splits) {
    const Place at = place_of(p.tile, tile);
    crew.sync();  // the lists of the tile before are no longer read
    find_vectors(crew, p.in_box, p.in_image, p.tile.h.in, p.tile.w.in, p.tile.N, at.n,
                 at.h * p.tile.h.step + p.tile.h.first, at.w * p.tile.w.step + p.tile.w.first,
                 memory.brought());
    find_vectors(crew, p.out_box, p.out_image, p.tile.h.out, p.tile.w.out, p.tile.N, at.n, at.h,
                 at.w, memory.out_brought());
    crew.sync();
    char* to = memory.stages + state.stage * p.stage_bytes;
    ptx::wait(&memory.empty[state.stage], state.parity ^ 1);
    copies.bring(memory.brought(), to);
    out_copies.bring(memory.out_brought(), to + p.work.boxes * p.work.box_bytes);
    ptx::arrive(&memory.full[state.stage]);
    state.advance(p.work.stages);
  }
}

// Adds a stage's pixels: a warp's share of the steps. `row`: how far from a pixel's row those of
// the pairs are that a lane points at. Pixels that do not exist are zeros in dy; in x some may,
// which meet dy elsewhere: there zeros are read instead, for a NaN times zero is a NaN.
template <typename T, int kPairs, int kColumns>
__device__ inline void add_box_pixels(const GradientBoxParams<T>& p,
                                      const GradientBoxMemory& memory, const Place& at,
                                      uint32_t stage, uint32_t columns, int first_step,
                                      const int (&row)[kPairs], float (&sum)[kPairs][kColumns][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int left_n = p.tile.N - at.n, left_h = p.tile.h.out - at.h, left_w = p.tile.w.out - at.w;
  const bool whole = p.pixels == p.tile.pixels && left_n >= p.tile.images &&
                     left_h >= p.tile.h.most && left_w >= p.tile.w.most;
  const uint32_t zeros = ptx::shared_address(memory.zeros);
  const uint32_t swizzled = swizzled_bits(p.work.row_bytes);
  // Matrices: pixels 0 to 7 of the first and second row of a pair, then pixels 8 to 15.
  const int own = lane / 16 * 8 + lane % 8;
#pragma unroll 1
  for (int first = first_step * kStepPixels; first < p.pixels;
       first += p.shares.pixel_warps * kStepPixels) {
    bool exists = true;
    if (!whole) {
      const Spot spot = memory.spots[first + own];
      exists = spot.n() < left_n && spot.h < left_h && spot.w() < left_w;
    }
    const uint32_t pixel = stage + memory.pixels[first + own];
    uint32_t column[kColumns][2];
    const uint32_t from = columns + first * p.work.row_bytes;
    if constexpr (kColumns == 1) {
      ptx::load_transposed_matrices(swizzle(from, swizzled), column[0]);
    } else {
#pragma unroll
      for (int j = 0; j < kColumns; j += 2) {
        // Matrices of two neighbouring octets: lanes 16 to 31 point at the second.
        uint32_t both[4];
        ptx::load_transposed_matrices(swizzle(from + j * kPieceBytes, swizzled), both);
#pragma unroll
        for (int i = 0; i < 4; ++i) column[j + i / 2][i % 2] = both[i];
      }
    }
    // Some at a time, so that loads overlap.
    constexpr int kAtOnce = kPairs % 3 == 0 ? 3 : kPairs;
#pragma unroll
    for (int i = 0; i < kPairs; i += kAtOnce) {
      uint32_t operand[kAtOnce][4];
#pragma unroll
      for (int at_once = 0; at_once < kAtOnce; ++at_once) {
        // Zeros in the banks where the pixel would be.
        const uint32_t from = swizzle(pixel + row[i + at_once], swizzled);
        ptx::load_transposed_matrices(exists ? from : zeros + (from & swizzled), operand[at_once]);
      }
#pragma unroll
      for (int at_once = 0; at_once < kAtOnce; ++at_once) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          ptx::multiply_add<T>(sum[i + at_once][j], operand[at_once], column[j][0], column[j][1]);
        }
      }
    }
  }
}

// Those that bring boxes list meanwhile where sums go.
template <typename T>
__device__ inline void list_places(const Crew& crew, const GradientBoxParams<T>& p,
                                   const GradientBoxMemory& memory, const Share& share) {
  const GradientShares& shares = p.shares;
#pragma unroll 1
  for (int i = crew.thread; i < p.by_rows.divisor() * kOctet; i += crew.threads) {
    const int row = i / kOctet;
    int32_t tap = row;
    const int octet = share.octet + shares.by_octets.split(tap);
    tap += share.tap;
    int32_t group = octet * kOctet + i % kOctet;
    const bool exists =
        row < shares.cut.taps * shares.cut.octets && tap < shares.kernel && group < shares.cut.C;
    const int c = shares.by_C.split(group), s = shares.by_S.split(tap);
    memory.rows[i] = {c * p.weight_c + tap * p.weight_r + s * p.weight_s, exists ? group : kNoRow};
  }
#pragma unroll 1
  for (int i = crew.thread; i < shares.cut.columns * kOctet; i += crew.threads) {
    const int k = share.column * kOctet + i;
    memory.columns[i] = {k * p.weight_k, k < shares.cut.K ? shares.by_K.quotient(k) : kNoColumn};
  }
  ptx::arrive(memory.listed);
}

// Stores a total of sums in the result. `number`: of a warp's sums, and of those of the same
// pixels.
template <typename T, int kPairs, int kColumns>
__device__ inline void store_result(const GradientBoxParams<T>& p, const GradientBoxMemory& memory,
                                    const Share& share, int number, const float (&total)[4]) {
  const GradientShares& shares = p.shares;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kCount = kPairs * kColumns;
  const int i = number % kCount, warp = number / kCount * shares.pixel_warps;
  const GradientOwn of = gradient_own_of(shares, kPairs, kColumns, warp);
  const int set = share.set + of.set, left = shares.groups - set * shares.cut.pack;
  const int64_t first = set * shares.cut.K * p.weight_k;
  const SumPlace* rows = memory.rows + (of.pair + i / kColumns) * 2 * kOctet + lane / 4;
  const SumPlace* columns = memory.columns + (of.column + i % kColumns) * kOctet + lane % 4 * 2;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const SumPlace column = columns[e];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const SumPlace row = rows[half * kOctet];
      if (row.group != column.group || row.group >= left) continue;
      p.weight[first + row.offset + column.offset] = narrow<T>(total[half * 2 + e]);
    }
  }
}

// Adds up the sums of warps that share pixels and of a cluster's blocks, always in the same order,
// each block a share, and stores them: in the result, or as lanes have them in a part.
template <typename T, int kPairs, int kColumns>
__device__ inline void store_total(const GradientBoxParams<T>& p, const GradientBoxMemory& memory,
                                   const Share& share, const GradientOwn& own,
                                   const float (&sum)[kPairs][kColumns][4]) {
  constexpr int kCount = kPairs * kColumns;
  const GradientShares& shares = p.shares;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, apart = p.warps * 32;
  const int cluster = shares.cluster.divisor();
  const int all = shares.by_pixel_warps.quotient(p.warps) * kCount;  // of a block
  float4* const part = reinterpret_cast<float4*>(shares.partial) + share.part * p.work.part +
                       int64_t{share.slice} * all * 32 + lane;
  if (p.weight == nullptr && cluster == 1 && shares.pixel_warps == 1) {
    float4* const to = part + own.number * kCount * 32;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      to[i * 32] = *reinterpret_cast<const float4*>(sum[i / kColumns][i % kColumns]);
    }
    return;
  }
  float4* const place = reinterpret_cast<float4*>(memory.stages);
  ptx::named_barrier_sync(1, apart);  // the stages are no longer read
  if (p.weight != nullptr) ptx::wait(memory.listed, 0);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    place[i * apart + thread] = *reinterpret_cast<const float4*>(sum[i / kColumns][i % kColumns]);
  }
  if (cluster > 1) {
    ptx::sync_cluster();
  } else {
    ptx::named_barrier_sync(1, apart);
  }
#pragma unroll 1
  for (int number = thread / 32 * cluster + share.rank; number < all; number += p.warps * cluster) {
    const float4* from =
        place + number % kCount * apart + number / kCount * shares.pixel_warps * 32 + lane;
    float total[4] = {};
    const auto add = [&](const float4& other) {
      total[0] += other.x;
      total[1] += other.y;
      total[2] += other.z;
      total[3] += other.w;
    };
#pragma unroll 1
    for (int pixels = 0; pixels < shares.pixel_warps; ++pixels, from += 32) {
      if (cluster == 1) {
        add(*from);
        continue;
      }
      float4 others[kMostClustered];
#pragma unroll
      for (int rank = 0; rank < kMostClustered; ++rank) {
        if (rank < cluster) {
          others[rank] = ptx::load_cluster(ptx::cluster_address(ptx::shared_address(from), rank));
        }
      }
#pragma unroll
      for (int rank = 0; rank < kMostClustered; ++rank) {
        if (rank < cluster) add(others[rank]);
      }
    }
    if (p.weight == nullptr) {
      part[number * 32] = *reinterpret_cast<const float4*>(total);
    } else {
      store_result<T, kPairs, kColumns>(p, memory, share, number, total);
    }
  }
  if (cluster == 1) return;
  __syncwarp();
  ptx::meet_cluster();  // a block's sums are read until here
}

// Where the result has a sum of a part.
struct SumOfPart {
  GradientShares shares;
  int pairs, columns;                               // of a warp
  Divider<int32_t> by_count, by_columns, by_warps;  // a warp's sums, and warps of the same pixels
  int64_t k, c, r, s;                               // strides

  // -1: nowhere.
  __device__ int64_t operator()(int64_t number) const {
    const int e = static_cast<int>(number % 4), lane = static_cast<int>(number / 4 % 32);
    auto rest = static_cast<int32_t>(number / 128);
    int32_t pair = by_count.split(rest);
    const int column = by_columns.split(pair);
    const int warp = by_warps.split(rest) * shares.pixel_warps;
    const GradientOwn own = gradient_own_of(shares, pairs, columns, warp);
    Share share;
    find_slice(shares, rest, share);
    const int set = share.set + own.set;
    SumRow at = sum_row_of(shares, share, set, (own.pair + pair) * 2 + e / 2, lane);
    const int own_k = sum_column_of(share.column + own.column + column, lane) + e % 2;
    if (!at.exists || !meet(shares, at, own_k)) return -1;
    const int own_s = shares.by_S.split(at.tap);
    return (set * shares.cut.K + own_k) * k + at.c * c + at.tap * r + own_s * s;
  }
};

template <typename T, int kIndex, Loading kLoading>
__global__ void __launch_bounds__(kMostThreads + box_loaders(kLoading, sizeof(T)),
                                  kGradientBoxKernels[kIndex].box_blocks())
    sum_boxes(const __grid_constant__ GradientBoxParams<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kPairs = kGradientBoxKernels[kIndex].pairs;
  constexpr int kColumns = kGradientBoxKernels[kIndex].channels;
  extern __shared__ __align__(1024) char boxes[];
  const GradientBoxMemory memory(p, boxes);
  const Share share = share_of(p.shares);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // The same for all threads of a warp, and the compiler is told so.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (p.weight == nullptr) ptx::launch_dependent_grids();
  constexpr bool kPlanes = kLoading == Loading::kThreads, kStrips = kLoading == Loading::kStrips;
  constexpr int kLoaders = box_loaders(kLoading, sizeof(T));
  using Registers =
      BoxRegisters<box_producers(sizeof(T)), kGradientBoxKernels[kIndex].box_blocks()>;
  const int first_loader = kPlanes ? kMostThreads / 32 : p.warps;
  if (warp >= first_loader) {
    const bool is_first = threadIdx.x == first_loader * 32;
    if (is_first) ptx::init_barrier(memory.listed, kLoaders);
    init_stages(memory.full, memory.empty, is_first, kLoaders, kPlanes ? kLoaders : 1, p.warps);
    if constexpr (kPlanes) {
      Registers::give();
      load_gradient_planes(p, memory, share);
    } else {
      load_gradient_boxes<T, kStrips>(p, memory, share);
    }
    if (p.weight == nullptr) return;
    list_places({static_cast<int>(threadIdx.x) - first_loader * 32, kLoaders, 0}, p, memory, share);
    return;
  }
  if constexpr (kPlanes) Registers::take();
  if (warp >= p.warps) return;
  // While the first boxes are on their way.
  const GradientOwn own = gradient_own_of(p.shares, kPairs, kColumns, warp);
  const Crew crew = consumers(p.warps * 32);
  list_gradient_rows(crew, p, share, kPairs, memory.table);
  list_pixels(crew, p, memory);
  if constexpr (kStrips) {
    list_strips<T>(crew, p.in_strip_box, {memory.list + kNowhereBytes, p.in_strip_box});
    list_strips<T>(crew, p.out_strip_box, {memory.out_list, p.out_strip_box});
    clear_boxes(crew, memory.boxes,
                p.work.boxes * p.work.box_bytes + p.work.out_boxes * p.work.out_box_bytes);
  } else {
    clear_behind(crew, p, memory);
  }
  await_stages(kLoaders, p.warps);
  int row[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    row[i] = memory.table[own.set * 2 * kPairs * p.shares.cut.pair_warps + (own.pair + i) * 2 +
                          lane / 8 % 2];
  }
  const uint32_t stages = ptx::shared_address(memory.stages);
  // A lane's row of dy, of the first pixels of a tile: lanes 16 to 31 point at the second octet.
  const int piece = own.set * p.shares.cut.columns + own.column + (kColumns > 1 ? lane / 16 : 0);
  const uint32_t columns = p.work.boxes * p.work.box_bytes +
                           piece_place(piece, p.work.out_box_bytes) + lane % 16 * p.work.row_bytes;
  float sum[kPairs][kColumns][4] = {};
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = share.split; tile < p.tile.tiles; tile += p.shares.splits) {
    const Place at = place_of(p.tile, tile);
    uint32_t stage = stages + state.stage * p.stage_bytes;
    ptx::wait(&memory.full[state.stage], state.parity);
    const auto leave_stage = [&] {
      __syncwarp();
      if (lane == 0) ptx::arrive(&memory.empty[state.stage]);
    };
    if constexpr (kStrips) {
      const uint32_t boxes = ptx::shared_address(memory.boxes);
      const uint32_t nowhere = ptx::shared_address(memory.list);
      crew.sync();  // the boxes of the tile before are no longer read
      turn_strips<T>(crew, p.in_strip_box, {memory.list + kNowhereBytes, p.in_strip_box},
                     run_place(p, at), stage, boxes, nowhere);
      turn_strips<T>(crew, p.out_strip_box, {memory.out_list, p.out_strip_box},
                     {p.out_strip_box, at.h, at.w}, stage + p.work.strips.bytes,
                     boxes + p.work.boxes * p.work.box_bytes, nowhere);
      leave_stage();
      crew.sync();
      stage = boxes;
    }
    add_box_pixels<T>(p, memory, at, stage, stage + columns, own.pixels, row, sum);
    if constexpr (!kStrips) leave_stage();
    state.advance(p.work.stages);
  }
  store_total(p, memory, share, own, sum);
#endif
}

}  // namespace customconv::grouped
