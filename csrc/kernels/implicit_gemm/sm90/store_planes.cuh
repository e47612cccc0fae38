// Channels-first results: through shared memory, so that a warp stores 64 positions of a channel.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/implicit_gemm/sm90/finish.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm::sm90 {

// Channels that pass at a time, and bytes of each one's 64 positions, which conflict little.
template <typename T, int kN>
struct Planes {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kChannels = kN * kSize < 128 ? kN : 128 / kSize;
  static constexpr int kBytes = 64 * kSize + 16;
  static_assert(kChannels * kBytes <= staging_bytes(Store::kPlanes));

  static __device__ void write(uint32_t planes, const float* sum, int warp, int lane) {
    if constexpr (kSize == 2) {
#pragma unroll
      for (int j = 0; j < kChannels / 8; j += 2) {
        const float* v = sum + j * 4;
        const int channel = j * 8 + lane / 16 * 8 + lane % 8;
        const uint32_t to = planes + channel * kBytes + (warp * 16 + lane / 8 % 2 * 8) * 2;
        ptx::store_transposed_matrices(to, pack_pair<T>(v[0], v[1]), pack_pair<T>(v[2], v[3]),
                                       pack_pair<T>(v[4], v[5]), pack_pair<T>(v[6], v[7]));
      }
    } else {
#pragma unroll
      for (int j = 0; j < kChannels / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int channel = j * 8 + lane % 4 * 2 + i % 2;
          const int row = warp * 16 + i / 2 * 8 + lane / 4;
          ptx::store_shared(planes + channel * kBytes + row * 4, sum[j * 4 + i]);
        }
      }
    }
  }
};

// If `vectors`, 16 bytes of a channel are of one image; else a lane has two positions.
template <typename T, int kBlocks, int kN>
__device__ inline void store_planes(const Params& p, const Work& work,
                                    float (&sum)[kBlocks][kN / 2], char* staging, int own_row,
                                    int barrier) {
  using S = Planes<T, kN>;
  constexpr int kVector = 16 / S::kSize, kLanes = 64 / kVector;  // of a channel
  using Pair = std::conditional_t<S::kSize == 2, uint32_t, uint2>;
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
  const uint32_t planes = ptx::shared_address(staging);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    int64_t own[2];  // where the lane's positions are in the planes of channel 0
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = p.vectors ? lane % kLanes * kVector : lane * 2 + i;
      const Place place(p, work.position + own_row + b * 64 + row);
      own[i] = place.offset(p, p.phase[work.phase]);
    }
#pragma unroll
    for (int first = 0; first < kN; first += S::kChannels) {
      ptx::sync_threads<128>(barrier);
      S::write(planes, sum[b] + first / 2, warp, lane);
      ptx::sync_threads<128>(barrier);
      const int count = min(S::kChannels, work.last_k - work.k - first);
      if (p.vectors) {
        constexpr int kChannels = 4 * (32 / kLanes);  // at a time
        int c = warp * (32 / kLanes) + lane / kLanes;
        T* to = static_cast<T*>(p.out) + own[0] + (work.k + first + c) * p.out_k;
#pragma unroll 2
        for (; c < count; c += kChannels, to += kChannels * p.out_k) {
          const uint4 v = ptx::load_shared<uint4>(planes + c * S::kBytes + lane % kLanes * 16);
          if (own[0] >= 0) *reinterpret_cast<uint4*>(to) = v;
        }
      } else {
        const bool pair = own[0] >= 0 && own[1] == own[0] + 1;
        T* to = static_cast<T*>(p.out) + (work.k + first + warp) * p.out_k;
#pragma unroll 2
        for (int c = warp; c < count; c += 4, to += 4 * p.out_k) {
          const Pair v = ptx::load_shared<Pair>(planes + c * S::kBytes + lane * 2 * S::kSize);
          const T* values = reinterpret_cast<const T*>(&v);
          if (pair && reinterpret_cast<uint64_t>(to + own[0]) % sizeof(Pair) == 0) {
            *reinterpret_cast<Pair*>(to + own[0]) = v;
          } else {
            if (own[0] >= 0) to[own[0]] = values[0];
            if (own[1] >= 0) to[own[1]] = values[1];
          }
        }
      }
    }
  }
}

}  // namespace customconv::implicit_gemm::sm90
