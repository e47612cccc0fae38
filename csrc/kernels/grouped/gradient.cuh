// The weight gradient. A block goes through some of the tiles and keeps the sums of some channels
// and taps in its warps' registers; another kernel adds up the blocks of each.
#pragma once

#include "kernels/grouped/input.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::grouped {

// How blocks and warps share the sums.
struct GradientShares {
  float* partial;    // by part, tap, k and c
  int groups, K, C;  // of a group
  int kernel;
  GradientCut cut;
  int pixel_warps;
  int splits;
  Divider<int32_t> cluster, slices;  // neighbours in the grid
  Divider<int32_t> octet_parts, column_parts, tap_parts;
  Divider<int32_t> by_octets, by_C, by_K, by_S;
  Divider<int32_t> by_pixel_warps, by_pair_warps, by_column_warps;
};

template <typename T>
struct GradientParams {
  GradientShares shares;
  TileParams tile;
  Image<T> in, out;
  GradientWork work;
  int pixels;  // of a tile, in whole steps
};

// What a block sums: of a slice a share of the tiles.
struct Share {
  int set, octet, column, tap;  // the first ones
  int slice, split;
  int rank, part;  // in its cluster, and the cluster's number
};
__device__ inline void find_slice(const GradientShares& p, int32_t slice, Share& share) {
  share.tap = p.tap_parts.split(slice) * p.cut.taps;
  share.octet = p.octet_parts.split(slice) * p.cut.octets;
  share.column = p.column_parts.split(slice) * p.cut.columns;
  share.set = slice * p.cut.sets;
}
__device__ inline Share share_of(const GradientShares& p) {
  Share share;
  auto rest = static_cast<int32_t>(blockIdx.x);
  share.rank = p.cluster.split(rest);
  share.slice = p.slices.split(rest);
  share.part = rest;
  share.split = share.part * p.cluster.divisor() + share.rank;
  find_slice(p, share.slice, share);
  return share;
}

// A warp's place among those of its block: its set, its first pair and column, its pixels; and its
// number among those of the same pixels.
struct GradientOwn {
  int set, pair, column, pixels, number;
};
__device__ inline GradientOwn gradient_own_of(const GradientShares& p, int pairs, int columns,
                                              int32_t warp) {
  GradientOwn own;
  own.pixels = p.by_pixel_warps.split(warp);
  own.number = warp;
  own.pair = p.by_pair_warps.split(warp) * pairs;
  own.column = p.by_column_warps.split(warp) * columns;
  own.set = warp;
  return own;
}

// What a lane's sums of a row are of: a tap, a channel of `in` and its group, of the set.
struct SumRow {
  bool exists;
  int tap, group, c;
};
__device__ inline SumRow sum_row_of(const GradientShares& p, const Share& share, int set, int row,
                                    int lane) {
  int32_t own_tap = row;
  const int octet = share.octet + p.by_octets.split(own_tap);
  int32_t group = octet * kOctet + lane / 4;
  SumRow at;
  at.tap = share.tap + own_tap;
  at.exists = row < p.cut.taps * p.cut.octets && at.tap < p.kernel && group < p.cut.C;
  at.c = p.by_C.split(group);
  at.group = group;
  at.exists = at.exists && group < min(p.groups - set * p.cut.pack, p.cut.pack);
  return at;
}
// The first of a lane's two neighbouring channels of `out`, of the set.
__device__ inline int sum_column_of(int octet, int lane) { return octet * kOctet + lane % 4 * 2; }
__device__ inline bool meet(const GradientShares& p, const SumRow& at, int k) {
  return k < p.cut.K && p.by_K.quotient(k) == at.group;
}

// Stores a warp's sums as one of the parts.
template <int kPairs, int kColumns>
__device__ inline void store_part(const GradientShares& p, const Share& share,
                                  const GradientOwn& own, int number,
                                  const float (&sum)[kPairs][kColumns][4]) {
  const int set = share.set + own.set, all_k = p.groups * p.K;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* part = p.partial + int64_t{number} * p.kernel * all_k * p.C;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const SumRow at = sum_row_of(p, share, set, (own.pair + i) * 2 + half, lane);
      if (!at.exists) continue;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int k = sum_column_of(share.column + own.column + j, lane) + e;
          if (!meet(p, at, k)) continue;
          part[(at.tap * all_k + set * p.cut.K + k) * p.C + at.c] = sum[i][j][half * 2 + e];
        }
      }
    }
  }
}

// A block's shared memory. The slots of pixels are found while the tile before is still summed, so
// there are two lists of those.
template <typename T>
struct GradientMemory {
  static constexpr int kUnits = kOctet * static_cast<int>(sizeof(T)) / kUnitBytes;  // of an octet
  static constexpr int kPieces = kUnits / 2;

  __device__ GradientMemory(const GradientParams<T>& p, char* memory) {
    in_spots = reinterpret_cast<Spot*>(memory);
    out_spots = in_spots + p.tile.slots;
    in_list = reinterpret_cast<int64_t*>(out_spots + p.pixels);
    out_list = in_list + (p.tile.slots + 1) / 2 * 2;
    slots = reinterpret_cast<int*>(out_list + p.pixels);
    rows = slots + 2 * p.pixels;
    in = reinterpret_cast<char*>(rows + p.work.rows);
    out = in + p.shares.cut.sets * p.shares.cut.octets * kPieces * p.work.plane * 16;
  }
  Spot *in_spots, *out_spots;
  int64_t *in_list, *out_list;  // where slots and pixels come from
  int* slots;                   // of each pixel: bytes from the first one's
  int* rows;
  char *in, *out;
};

// Finds where a tile's slots and pixels are in the images, and the slot of each pixel, in bytes. A
// pixel that does not exist has -1, for the slot of zeros behind the last one.
template <typename T>
__device__ inline void find_all(const GradientParams<T>& p, int tile,
                                const GradientMemory<T>& memory, int* slots) {
  if (tile >= p.tile.tiles) return;
  const Place at = place_of(p.tile, tile);
  find_pixels(whole_block(), p.tile, p.in, at, memory.in_spots, memory.in_list);
  const int64_t begin = at.n * p.out.n + at.h * p.out.h + at.w * p.out.w;
  for (int i = threadIdx.x; i < p.pixels; i += blockDim.x) {
    const Spot spot = memory.out_spots[i];
    const bool exists = spot.n() < p.tile.N - at.n && spot.h < p.tile.h.out - at.h &&
                        spot.w() < p.tile.w.out - at.w;
    memory.out_list[i] = exists ? begin + spot.offset : -1;
    slots[i] = exists ? slot_of(p.tile, spot) * 16 : -1;
  }
}

// Adds a tile's pixels, of a step sixteen or of float32 eight: a warp's share of the steps. `row`:
// how far into the set's units those rows of the pairs are that a lane reads, or points at.
template <typename T, int kPairs, int kColumns, int kRows>
__device__ inline void add_pixels(const GradientParams<T>& p, const GradientMemory<T>& memory,
                                  const GradientOwn& own, const int* slots,
                                  const int (&row)[kPairs][kRows],
                                  float (&sum)[kPairs][kColumns][4]) {
  constexpr int kPieces = GradientMemory<T>::kPieces;
  constexpr int kPixels = 32 / static_cast<int>(sizeof(T));  // of a step
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int out_plane = p.work.out_plane * 16, zeros = p.tile.slots * 16;
  const char* out =
      memory.out + (own.set * p.shares.cut.columns + own.column) * kPieces * out_plane;
  const char* in = memory.in + own.set * p.shares.cut.octets * kPieces * p.work.plane * 16;
  const int apart = p.shares.pixel_warps * kPixels;
  if constexpr (sizeof(T) == 2) {
    // Matrices: pixels 0 to 7 of the first and second row of a pair, then pixels 8 to 15.
    const uint32_t from = ptx::shared_address(in);
    const uint32_t columns = ptx::shared_address(out) + lane / 16 * out_plane + lane % 16 * 16;
    slots += lane / 16 * 8 + lane % 8;
#pragma unroll 1
    for (int first = own.pixels * kPixels; first < p.pixels; first += apart) {
      const int slot = slots[first];
      uint32_t column[kColumns][2];
      if constexpr (kColumns == 1) {
        ptx::load_transposed_matrices(columns + first * 16, column[0]);
      } else {
        static_assert(kColumns == 2);
        uint32_t both[4];
        ptx::load_transposed_matrices(columns + first * 16, both);
#pragma unroll
        for (int i = 0; i < 4; ++i) column[i / 2][i % 2] = both[i];
      }
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        uint32_t operand[4];
        ptx::load_transposed_matrices(from + (slot >= 0 ? slot + row[i][0] : zeros), operand);
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          ptx::multiply_add<T>(sum[i][j], operand, column[j][0], column[j][1]);
        }
      }
    }
  } else {
    const auto value = [](const char* at) { return *reinterpret_cast<const uint32_t*>(at); };
    // A lane's channel of an octet: its unit and its place there.
    const int unit = lane / 16, place = lane / 4 % 4 * 4;
    const char* columns = out + unit * out_plane + lane % 4 * 16 + place;
    in += unit * p.work.plane * 16 + place;
#pragma unroll 1
    for (int first = own.pixels * kPixels; first < p.pixels; first += apart) {
      uint32_t column[kColumns][2];
      int slot[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        slot[half] = slots[first + half * 4 + lane % 4];
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          column[j][half] = value(columns + j * kPieces * out_plane + (first + half * 4) * 16);
        }
      }
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        uint32_t operand[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int own_slot = slot[e / 2];
          operand[e] = value(in + (own_slot >= 0 ? own_slot + row[i][e % kRows] : zeros));
        }
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          ptx::multiply_add<T>(sum[i][j], operand, column[j][0], column[j][1]);
        }
      }
    }
  }
}

// How far into a set's units the rows of its pairs are; behind the last one, some that exist.
template <typename T>
__device__ inline void list_rows(const GradientParams<T>& p, int first_tap, int count, int* rows) {
  const Taps &h = p.tile.h.taps[0], &w = p.tile.w.taps[0];
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    int32_t r = min(i, p.shares.cut.taps * p.shares.cut.octets - 1);
    const int octet = p.shares.by_octets.split(r);
    r = min(first_tap + r, p.shares.kernel - 1);
    const int s = p.shares.by_S.split(r);
    const int slot = class_slot(p.tile.h, h.offset + r * h.offset_step) * p.tile.pitch.divisor() +
                     class_slot(p.tile.w, w.offset + s * w.offset_step);
    rows[i] = (octet * GradientMemory<T>::kPieces * p.work.plane + slot) * 16;
  }
}

template <typename T, int kIndex>
__global__ void __launch_bounds__(kMostThreads, kGradientKernels[kIndex].blocks())
    sum_weights(const __grid_constant__ GradientParams<T> p) {
#if __CUDA_ARCH__ >= 800
  constexpr int kPairs = kGradientKernels[kIndex].pairs;
  constexpr int kColumns = kGradientKernels[kIndex].channels;
  constexpr int kUnits = GradientMemory<T>::kUnits, kPieces = GradientMemory<T>::kPieces;
  constexpr int kRows = sizeof(T) == 2 ? 1 : 2;
  extern __shared__ __align__(16) char bytes[];
  const GradientMemory<T> memory(p, bytes);
  const Share share = share_of(p.shares);
  const GradientOwn own =
      gradient_own_of(p.shares, kPairs, kColumns, static_cast<int>(threadIdx.x) / 32);
  ptx::launch_dependent_grids();
  list_rows(p, share.tap, 2 * kPairs * p.shares.cut.pair_warps, memory.rows);
  list_slots(whole_block(), p.tile, p.in, memory.in_spots);
  list_positions(whole_block(), p.tile, p.out.n, p.out.h, p.out.w, p.pixels, memory.out_spots);
  for (int i = threadIdx.x; i < p.shares.cut.sets * p.shares.cut.octets * kPieces;
       i += blockDim.x) {
    *reinterpret_cast<uint4*>(memory.in + (i * p.work.plane + p.tile.slots) * 16) = uint4{};
  }
  const UnitCopies<T, 4> in(whole_block(), p.in, share.set, p.shares.cut.sets,
                            p.shares.cut.octets * kUnits, 16, p.work.plane);
  const UnitCopies<T, 4> out(whole_block(), p.out, share.set, p.shares.cut.sets,
                             p.shares.cut.columns * kUnits, 16, p.work.out_plane);
  __syncthreads();
  int row[kPairs][kRows];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int half = kRows == 1 ? static_cast<int>(threadIdx.x) / 8 % 2 : j;
      row[i][j] = memory.rows[(own.pair + i) * 2 + half];
    }
  }
  int* slots = memory.slots;
  int* next_slots = slots + p.pixels;
  find_all(p, share.split, memory, slots);
  float sum[kPairs][kColumns][4] = {};
#pragma unroll 1
  for (int tile = share.split; tile < p.tile.tiles; tile += p.shares.splits) {
    __syncthreads();  // the lists are complete, and the tile before is no longer read
    in.bring(share.octet * kUnits, memory.in_list, p.tile.slots, memory.in);
    out.bring(share.column * kUnits, memory.out_list, p.pixels, memory.out);
    __syncthreads();
    find_all(p, tile + p.shares.splits, memory, next_slots);
    add_pixels<T, kPairs, kColumns, kRows>(p, memory, own, slots, row, sum);
    int* const found = next_slots;
    next_slots = slots;
    slots = found;
  }
  store_part(p.shares, share, own, share.split * p.shares.pixel_warps + own.pixels, sum);
#endif
}

}  // namespace customconv::grouped
