// What becomes of a thread block's sums: those of a cluster are added up, and results are stored in
// the order of the weight.
#pragma once

#include "kernels/implicit_gemm/wgrad/cluster.cuh"
#include "kernels/implicit_gemm/wgrad/planes/params.cuh"

namespace customconv::implicit_gemm::wgrad::planes {

// Which of each eight vectors of sums a thread block of a cluster has: see Gathered.
struct Own {
  int rank, log;

  __device__ int count() const { return 1 << log; }
  __device__ bool has(int vector) const { return vector % 8 >> log == 0; }
  // The vector that one of its own was, before they were exchanged.
  __device__ int origin(int vector) const { return vector + (rank << log); }
};

// Adds up the sums of a cluster's blocks. A thread gets the totals of its own vectors, the first of
// each eight; the others are spoiled.
template <int kVectors>
__device__ inline void add_cluster(const Memory& memory, int threads, const Own& own, int cluster,
                                   float* sums) {
  const Gathered all =
      exchange<kVectors>(memory.stages, memory.arrived, threads, own.rank, cluster, sums);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (!own.has(i)) continue;
    float4 total[1];
    all.add_up(warp * (kVectors / 8) + i / 8, i % 8, lane, total);
    sums[i * 4] = total[0].x;
    sums[i * 4 + 1] = total[0].y;
    sums[i * 4 + 2] = total[0].z;
    sums[i * 4 + 3] = total[0].w;
  }
}

// Results in shared memory, in rows of an output channel: input channels by taps, as the weight has
// them. Rows are such a distance apart that a warp's results are in different banks.
template <int kKernel>
struct InOrder {
  static constexpr Kernel kKind = kKernels[kKernel];

  template <typename T>
  __device__ InOrder(const Params<T>& p, const Own& own)
      : channels(p.along_rows * kBlock),
        taps(p.filter_rows * kKind.taps),
        taps_first(p.weight_c == 1 && !p.rows_follow),
        pitch(channels * taps + kRowPadding),
        of_block(own.count() * 8),
        rank(own.rank) {}

  __device__ int place(int row, int c, int tap) const {
    return row * pitch + (taps_first ? tap * channels + c : c * taps + tap);
  }
  __device__ int rows() const { return kKind.k_blocks * of_block; }
  // The output channel of a row, of the thread block's.
  __device__ int channel_of(int row) const {
    const int block = row / of_block;
    return block * kBlock + rank * of_block + row - block * of_block;
  }

  int channels, taps;
  bool taps_first;  // and input channels side by side
  int pitch;
  int of_block;  // rows of each 64 output channels
  int rank;
};

// At a multiple of as many elements.
template <typename T>
__device__ inline void store_four(T* to, const float4& four) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float4*>(to) = four;
  } else {
    *reinterpret_cast<uint2*>(to) =
        make_uint2(pack_pair<T>(four.x, four.y), pack_pair<T>(four.z, four.w));
  }
}

// Where an element of a row of results belongs in the weight.
struct Result {
  int c, r, s;  // of the group's input channels
  bool exists;

  template <int kKernel, typename T>
  __device__ Result(const Params<T>& p, const Share& share, const InOrder<kKernel>& row, int i) {
    int32_t major = i;
    const int minor = p.by_minor.split(major);
    const int tap = row.taps_first ? major : minor;
    c = share.c + (row.taps_first ? minor : major);
    r = share.r + tap / row.kKind.taps;
    s = first_tap(p, share.chunk, row.kKind.taps) + tap % row.kKind.taps;
    exists = c < p.group_C && r < p.R && s < p.S;
  }
};

// Computes those of a row's results anew that are not numbers; all threads of a warp take part.
template <int kKernel, typename T>
__device__ inline void renew_row(const Params<T>& p, const Share& share,
                                 const InOrder<kKernel>& row, int k, float* results) {
  if (p.from.exact) return;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % 32; i < row.channels * row.taps; i += 32) {
    if (p.from.is_right(results[i])) continue;
    const Result at(p, share, row, i);
    if (!at.exists) continue;
    results[i] = sum_anew(p.from, share.group, at.c, share.group * p.group_K + k, at.r, at.s);
  }
  __syncwarp();
}

// Stores a thread block's results, or its share of a cluster's. All threads that have sums take
// part.
template <int kKernel, typename T>
__device__ inline void store_in_order(const Params<T>& p, const Memory& memory, const Share& share,
                                      int threads, const Own& own, int box_c, int filter_row,
                                      const float* sums) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kWarpRows = 16;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const InOrder<kKernel> to(p, own);
  auto* const results = reinterpret_cast<float*>(memory.stages);
  ptx::named_barrier_sync(1, threads);  // nobody reads what was there
  const int c = box_c * kBlock + channel_of_row(warp % 4 * kWarpRows + lane / 4, p.row_classes);
  const int c_apart = p.row_classes > 0 ? 1 : 8;
#pragma unroll
  for (int i = 0; i < kKind.blocks() * 8; ++i) {
    if (!own.has(i)) continue;
    const int tap = i / 8 / kKind.k_blocks, block = i / 8 % kKind.k_blocks;
    const int row = block * to.of_block + i % 8 * 8 + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      results[to.place(row + j % 2, c + j / 2 * c_apart, filter_row * kKind.taps + tap)] =
          sums[i * 4 + j];
    }
  }
  ptx::named_barrier_sync(1, threads);
#pragma unroll 1
  for (int row = warp; row < to.rows(); row += threads / 32) {
    const int k = share.k + to.channel_of(row) * p.k_apart();
    if (k >= p.group_K) continue;
    T* const weight = p.weight + (share.group * p.group_K + k) * p.weight_k;
    float* const from = results + row * to.pitch;
    renew_row(p, share, to, k, from);
    if (p.rows_follow) {
      // A row is a run of the weight, that begins at a multiple of four elements.
      T* const run = weight + share.c * p.weight_c;
      const int count = min(to.channels, p.group_C - share.c) * to.taps;
#pragma unroll 1
      for (int i = lane * 4; i < count; i += 32 * 4) {
        if (i + 4 <= count) {
          store_four(run + i, *reinterpret_cast<const float4*>(from + i));
        } else {
          for (int j = i; j < count; ++j) run[j] = narrow<T>(from[j]);
        }
      }
      continue;
    }
#pragma unroll 1
    for (int i = lane; i < to.channels * to.taps; i += 32) {
      const Result at(p, share, to, i);
      if (!at.exists) continue;
      weight[at.c * p.weight_c + at.r * p.weight_r + at.s * p.weight_s] = narrow<T>(from[i]);
    }
  }
}

}  // namespace customconv::implicit_gemm::wgrad::planes
