// Tiles of few channels: rows of the instruction are pixels. Before they are finished and stored,
// sums go to where they would be if rows were channels: those of one half of the pixels, then those
// of the other.
#pragma once

#include <cstdint>

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm::sm90 {

// The half of a tile's pixels whose channels a warp has after the exchange.
__device__ inline int own_half() { return static_cast<int>(threadIdx.x) % 128 / 64; }

// `sum`: of each 64 pixels, with 32 channels as columns. Through shared memory, of which a
// warpgroup takes 16 KiB, 64 pixels of each half at a time.
template <int kBlocks, int kSums>
__device__ inline void exchange_rows(const float (&sum)[kBlocks][kSums],
                                     float (&exchanged)[kBlocks * kSums], char* staging,
                                     int barrier) {
  constexpr int kChannels = 2 * kSums, kRows = 64;  // of a round and half
  static_assert(kChannels == 32 && kBlocks % 2 == 0);
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
  const uint32_t base = ptx::shared_address(staging);
  // Lanes that write have channels two apart, and those that read neighbours.
  const auto place = [&](int half, int channel, int row) {
    const int moved = row ^ (channel % 4 ^ channel / 4 % 2) * 8;
    return base + ((half * kChannels + channel) * kRows + moved) * 4;
  };
#pragma unroll
  for (int round = 0; round < kBlocks / 2; ++round) {
    ptx::named_barrier_sync<128>(barrier);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        ptx::store_shared(
            place(half, i / 4 * 8 + lane % 4 * 2 + i % 2, warp * 16 + i / 2 % 2 * 8 + lane / 4),
            sum[half * (kBlocks / 2) + round][i]);
      }
    }
    ptx::named_barrier_sync<128>(barrier);
#pragma unroll
    for (int i = 0; i < kRows / 2; i += 2) {
      const auto pair = ptx::load_shared<uint2>(
          place(own_half(), warp % 2 * 16 + i / 2 % 2 * 8 + lane / 4, i / 4 * 8 + lane % 4 * 2));
      exchanged[round * (kRows / 2) + i] = __uint_as_float(pair.x);
      exchanged[round * (kRows / 2) + i + 1] = __uint_as_float(pair.y);
    }
  }
  ptx::named_barrier_sync<128>(barrier);  // others store through this memory, too
}

}  // namespace customconv::implicit_gemm::sm90
