// Slabs that channels-last results pass through: 64 positions by 128 bytes of channels, with the
// swizzle of that width.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/finish.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm::sm90 {

// A warpgroup's slabs for a round: of a block of 64 channels, as many positions as there is room
// for. In 32 bits the block has two slabs.
template <typename T, int kN>
struct Slabs {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kBytes = 64 * 128;
  static constexpr int kChannels = 128 / kSize;               // of a slab
  static constexpr int kAcross = kBlockChannels / kChannels;  // slabs of a block
  static constexpr int kGroups =
      kSize == 2 && kN % 128 == 0 ? 2 : 1;  // of 64 positions, in a round
  static constexpr int kCount = kAcross * kGroups;
  static constexpr int kRounds = kN / (64 * kGroups);

  static __device__ int channel(int slab) { return slab % kAcross * kChannels; }
  static __device__ int position(int round, int slab) {
    return (round * kGroups + slab / kAcross) * 64;
  }
  // Where 16 bytes of a row are.
  static __device__ uint32_t unit(uint32_t slab, int row, int number) {
    return slab + row * 128 + (number ^ row % 8) * 16;
  }

  // Calls `action` with the address of each sum that a thread has, or of eight of 16 bits as
  // matrix instructions take them, and with the sums.
  template <typename Action>
  static __device__ void each(uint32_t slabs, int round, float (&sum)[kN / 2], Action action) {
    const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      float* own = sum + (round * kGroups + g) * 32;
      if constexpr (kSize == 2) {
        const uint32_t slab = slabs + g * kBytes;
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          const int row = (j + lane / 16) * 8 + lane % 8;
          action(unit(slab, row, warp * 2 + lane / 8 % 2), own + j * 4);
        }
      } else {
        const uint32_t slab = slabs + warp / 2 * kBytes;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int row = j * 8 + lane % 4 * 2 + i % 2;
            const int channel = warp % 2 * 16 + i / 2 * 8 + lane / 4;
            action(unit(slab, row, channel / 4) + channel % 4 * 4, own + j * 4 + i);
          }
        }
      }
    }
  }
  static __device__ void write(uint32_t slabs, int round, float (&sum)[kN / 2]) {
    each(slabs, round, sum, [](uint32_t to, const float* v) {
      if constexpr (kSize == 2) {
        ptx::store_transposed_matrices(to, pack_pair<T>(v[0], v[1]), pack_pair<T>(v[2], v[3]),
                                       pack_pair<T>(v[4], v[5]), pack_pair<T>(v[6], v[7]));
      } else {
        ptx::store_shared(to, v[0]);
      }
    });
  }
  // Adds a residual, and activates what waited for it.
  static __device__ void add(const Epilogue& epilogue, uint32_t slabs, int round,
                             float (&sum)[kN / 2]) {
    each(slabs, round, sum, [&](uint32_t from, float* v) {
      if constexpr (kSize == 2) {
        uint32_t bits[4];
        ptx::load_transposed_matrices(from, bits);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const float2 pair = widen_pair<T>(bits[m]);
          v[m * 2] += pair.x;
          v[m * 2 + 1] += pair.y;
        }
      } else {
        *v += __uint_as_float(ptx::load_shared<uint32_t>(from));
      }
    });
    if (epilogue.residual_last) return;
    float (&own)[kGroups * 32] =
        reinterpret_cast<float (&)[kGroups * 32]>(sum[round * kGroups * 32]);
    activate<kGroups * 32>(own, epilogue.activation, epilogue.negative_slope);
  }
};

}  // namespace customconv::implicit_gemm::sm90
