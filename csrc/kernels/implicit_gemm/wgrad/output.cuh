// What thread blocks sum up, which of it a thread has, and where it is stored.
#pragma once

#include "kernels/common/divide.cuh"
#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/wgrad/anew.cuh"
#include "kernels/implicit_gemm/wgrad/geometry.h"

namespace customconv::implicit_gemm::wgrad {

// Sums are rows of the matrix instruction by its columns: output channels by input channels, or
// the other way round. Columns are in blocks of 64.
template <typename T>
struct Output {
  bool rows_are_c;     // rows are input channels
  int row_classes;     // the logarithm of how many input channels are in: see channel_of_row
  int along_rows;      // warpgroups that have rows of their own, else rows of the filter
  int filter_rows;     // of a thread block
  int channel_blocks;  // of columns
  int tap_apart;
  int R, S, group_C, group_K, splits;
  Divider<int32_t> by_chunks, by_filter_sets, by_blocks_c, by_blocks_k, by_groups;
  Divider<int32_t> by_class_chunks, by_channel_blocks;
  // Thread blocks may have output channels that are so many apart.
  Divider<int32_t> by_k_classes;
  // The sums of each thread block, as its threads hold them, four at a time; null where results are
  // stored.
  float4* partial;
  T* weight;
  int64_t weight_k, weight_c, weight_r, weight_s;
  // Whether results of two, or eight, neighbouring input channels can be stored at once.
  bool pairs, eights;
  Source<T> from;

  __device__ int k_apart() const { return by_k_classes.divisor(); }
};

// A tile's first output pixel: of an image, a row and a column.
struct Origin {
  int n, p, q;

  template <typename Params>
  __device__ Origin(const Params& params, int32_t tile) {
    q = params.by_tiles_q.split(tile) * params.columns;
    p = params.by_tiles_p.split(tile) * params.rows;
    n = tile * params.images;
  }
};

// What a thread block sums up.
struct Share {
  int split;
  int group, k, c;                // the first channels, of the group's
  int k_class;                    // the output channels', of those that are so many apart
  int boxes_k, boxes_c, boxes_r;  // blocks of channels that exist, and rows of the filter
  int r, chunk;

  template <typename T>
  __device__ Share(const Output<T>& p, int32_t rest) {
    const int blocks_k = p.rows_are_c ? p.channel_blocks : p.along_rows;
    const int blocks_c = p.rows_are_c ? p.along_rows : p.channel_blocks;
    chunk = p.by_chunks.split(rest);
    r = p.by_filter_sets.split(rest) * p.filter_rows;
    c = p.by_blocks_c.split(rest) * blocks_c * kBlock;
    int32_t block_k = p.by_blocks_k.split(rest);
    k_class = p.by_k_classes.split(block_k);
    k = block_k * blocks_k * kBlock * p.k_apart() + k_class;
    group = p.by_groups.split(rest);
    split = rest;
    boxes_k = min(blocks_k, (p.group_K - k + kBlock - 1) / kBlock);
    boxes_c = min(blocks_c, (p.group_C - c + kBlock - 1) / kBlock);
    boxes_r = min(p.filter_rows, p.R - r);
  }
};

// Rows of a block that are eight apart are neighbours of different classes, so that a thread has
// two neighbouring channels; its neighbours' are of the same class. Without classes channels follow
// each other.
__device__ inline int place_of_row(int row, int classes) {  // in memory, class by class
  const int of_class = (row & 7) | row >> (3 + classes) << 3;
  return (row >> 3 & ((1 << classes) - 1)) * (kBlock >> classes) + of_class;
}
__device__ inline int channel_of_row(int row, int classes) {
  const int of_class = (row & 7) | row >> (3 + classes) << 3;
  return of_class << classes | (row >> 3 & ((1 << classes) - 1));
}

// The first tap of a chunk: at most so many taps of a filter row, which share a box.
template <typename T>
__device__ inline int first_tap(const Output<T>& p, int32_t chunk, int most) {
  const int place = p.by_class_chunks.split(chunk) * most;
  return chunk + place * p.tap_apart;
}

// The first of four of a thread's sums. The four are two rows, 8 apart, by two neighbouring columns
// of a tap.
struct Spot {
  int k, c, r, s;
  bool exists;

  // `most_taps`: of a chunk.
  template <typename T>
  __device__ Spot(const Output<T>& p, const Share& share, int most_taps, int warp, int lane,
                  int i) {
    const int warpgroup = warp / 4;
    const int box = p.along_rows > 1 ? warpgroup : 0, filter_row = p.along_rows > 1 ? 0 : warpgroup;
    int32_t tap = i / 8;
    const int channel_block = p.by_channel_blocks.split(tap);
    const int row = box * kBlock + warp % 4 * 16 + lane / 4;
    const int column = channel_block * kBlock + i % 8 * 8 + lane % 4 * 2;
    if (p.rows_are_c) {
      k = share.k + column * p.k_apart();
      c = share.c + (row / kBlock) * kBlock + channel_of_row(row % kBlock, p.row_classes);
    } else {
      k = share.k + row;
      c = share.c + column;
    }
    r = share.r + filter_row;
    s = first_tap(p, share.chunk, most_taps) + tap * p.tap_apart;
    exists = filter_row < share.boxes_r && s < p.S && k < p.group_K && c < p.group_C;
  }

  // The channels of the i-th of the four.
  template <typename T>
  __device__ int k_of(const Output<T>& p, int i) const {
    return k + (p.rows_are_c ? i % 2 * p.k_apart() : i / 2 * 8);
  }
  template <typename T>
  __device__ int c_of(const Output<T>& p, int i) const {
    return c + (!p.rows_are_c ? i % 2 : p.row_classes > 0 ? i / 2 : i / 2 * 8);
  }
};

// Computes those of a thread's four anew that are not numbers.
template <typename T>
__device__ inline void renew(const Output<T>& p, const Share& share, const Spot& at,
                             float (&sums)[4]) {
  if (p.from.exact) return;
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    const int k = at.k_of(p, i), c = at.c_of(p, i);
    if (p.from.is_right(sums[i]) || k >= p.group_K || c >= p.group_C) continue;
    sums[i] = sum_anew(p.from, share.group, c, share.group * p.group_K + k, at.r, at.s);
  }
}

// The same of eight neighbouring input channels by two output channels, eight apart.
template <typename T>
__device__ inline void renew_eights(const Output<T>& p, const Share& share, const Spot& at,
                                    float (&sums)[2][8]) {
  if (p.from.exact) return;
  bool are_numbers = true;
#pragma unroll
  for (int i = 0; i < 16; ++i) are_numbers &= sums[i / 8][i % 8] == sums[i / 8][i % 8];
  if (are_numbers) return;
  float own[16];  // in memory
#pragma unroll
  for (int i = 0; i < 16; ++i) own[i] = sums[i / 8][i % 8];
#pragma unroll 1
  for (int i = 0; i < 16; ++i) {
    const int k = at.k + i / 8 * 8;
    if (own[i] == own[i] || k >= p.group_K || at.c + i % 8 >= p.group_C) continue;
    own[i] = sum_anew(p.from, share.group, at.c + i % 8, share.group * p.group_K + k, at.r, at.s);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) sums[i / 8][i % 8] = own[i];
}

// Stores a thread's four.
template <typename T>
__device__ inline void store(const Output<T>& p, const Share& share, const Spot& at,
                             const float (&sums)[4]) {
  if (p.pairs) {
    // Channels are whole pairs, and rows are output channels.
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const int k = at.k_of(p, i);
      if (k >= p.group_K) continue;
      T* to = p.weight + (share.group * p.group_K + k) * p.weight_k + at.c * p.weight_c +
              at.r * p.weight_r + at.s * p.weight_s;
      if constexpr (sizeof(T) == 2) {
        *reinterpret_cast<uint32_t*>(to) = pack_pair<T>(sums[i], sums[i + 1]);
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int k = at.k_of(p, i), c = at.c_of(p, i);
    if (k >= p.group_K || c >= p.group_C) continue;
    p.weight[(share.group * p.group_K + k) * p.weight_k + c * p.weight_c + at.r * p.weight_r +
             at.s * p.weight_s] = narrow<T>(sums[i]);
  }
}

// The same of eight by two.
template <typename T>
__device__ inline void store_eights(const Output<T>& p, const Share& share, const Spot& at,
                                    const float (&sums)[2][8]) {
  T* to = p.weight + (share.group * p.group_K + at.k) * p.weight_k + at.c * p.weight_c +
          at.r * p.weight_r + at.s * p.weight_s;
#pragma unroll
  for (int i = 0; i < 2; ++i, to += 8 * p.weight_k) {
    if (at.k + i * 8 >= p.group_K) return;
    const float (&row)[8] = sums[i];
    if (p.eights) {
      *reinterpret_cast<uint4*>(to) =
          make_uint4(pack_pair<T>(row[0], row[1]), pack_pair<T>(row[2], row[3]),
                     pack_pair<T>(row[4], row[5]), pack_pair<T>(row[6], row[7]));
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (at.c + j < p.group_C) to[j * p.weight_c] = narrow<T>(row[j]);
      }
    }
  }
}

}  // namespace customconv::implicit_gemm::wgrad
