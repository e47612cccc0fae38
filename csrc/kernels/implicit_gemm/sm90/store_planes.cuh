// Channels-first results: through shared memory, so that a warp stores many positions of a channel.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/implicit_gemm/sm90/finish.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm::sm90 {

// A warp's sixteen channels, of as many positions as pass at a time, which conflict little.
template <typename T, int kN>
struct Planes {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kPositions = kSize == 2 && kN % 128 == 0 ? 128 : 64;
  static constexpr int kRounds = kN / kPositions;
  static constexpr int kBytes = kPositions * kSize + (kSize == 2 ? 16 : 32);  // of a channel
  static constexpr int kSums = kPositions / 2;
  static_assert(4 * 16 * kBytes <= staging_bytes(Store::kPlanes));

  // Calls `action` with the address of each pair of positions that a thread has, or of four pairs
  // of 16 bits as matrix instructions take them, and with their sums.
  template <typename Action>
  static __device__ void each(uint32_t planes, float* sum, int lane, Action action) {
    if constexpr (kSize == 2) {
#pragma unroll
      for (int j = 0; j < kPositions / 8; j += 2) {
        const int channel = lane / 8 % 2 * 8 + lane % 8;
        action(planes + channel * kBytes + (j + lane / 16) * 16, sum + j * 4);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kPositions / 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int channel = half * 8 + lane / 4;
          action(planes + channel * kBytes + (j * 8 + lane % 4 * 2) * 4, sum + j * 4 + half * 2);
        }
      }
    }
  }
  static __device__ void write(uint32_t planes, float* sum, int lane) {
    each(planes, sum, lane, [](uint32_t to, const float* v) {
      if constexpr (kSize == 2) {
        ptx::store_matrices(to, pack_pair<T>(v[0], v[1]), pack_pair<T>(v[2], v[3]),
                            pack_pair<T>(v[4], v[5]), pack_pair<T>(v[6], v[7]));
      } else {
        ptx::store_shared(to, v[0], v[1]);
      }
    });
  }
  // Adds a residual, and activates what waited for it.
  static __device__ void add(const Epilogue& epilogue, uint32_t planes, float* sum, int lane) {
    each(planes, sum, lane, [](uint32_t from, float* v) {
      if constexpr (kSize == 2) {
        uint32_t bits[4];
        ptx::load_matrices(from, bits);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const float2 pair = widen_pair<T>(bits[m]);
          v[m * 2] += pair.x;
          v[m * 2 + 1] += pair.y;
        }
      } else {
        const uint2 bits = ptx::load_shared<uint2>(from);
        v[0] += __uint_as_float(bits.x);
        v[1] += __uint_as_float(bits.y);
      }
    });
    if (epilogue.residual_last) return;
    activate<kSums>(sum, epilogue.activation, epilogue.negative_slope);
  }
};

// Moves positions of a warp's channels between shared memory and the tensor at `to`, `kAtOnce` at a
// time, in the direction that `kLoads` says.
template <typename T, int kN, int kAtOnce, bool kLoads, typename Pixels>
__device__ inline void move_positions(const Params& p, const Work& work, uint32_t planes,
                                      Pixels* to, int channels, int position, int lane) {
  using S = Planes<T, kN>;
  using Vector = std::conditional_t<
      kAtOnce * S::kSize == 16, uint4,
      std::conditional_t<kAtOnce * S::kSize == 8, uint2,
                         std::conditional_t<kAtOnce * S::kSize == 4, uint32_t, uint16_t>>>;
  constexpr int kLanes = S::kPositions / kAtOnce;  // of a channel
  constexpr int kStep = kLanes < 32 ? 32 / kLanes : 1;
#pragma unroll
  for (int first = lane % kLanes; first < kLanes; first += 32) {
    const int64_t pixel = Place(p, position + first * kAtOnce).offset(p, p.phase[work.phase]);
    if (pixel < 0) continue;
    int c = lane / kLanes;
    Pixels* own = to + pixel + c * p.out_k;
    uint32_t at = planes + c * S::kBytes + first * kAtOnce * S::kSize;
#pragma unroll 4
    for (; c < channels; c += kStep, own += kStep * p.out_k, at += kStep * S::kBytes) {
      if constexpr (kLoads) {
        ptx::store_shared(at, *reinterpret_cast<const Vector*>(own));
      } else {
        *reinterpret_cast<Vector*>(own) = ptx::load_shared<Vector>(at);
      }
    }
  }
}

template <typename T, int kN, bool kLoads, typename Pixels>
__device__ inline void move_planes(const Params& p, const Work& work, uint32_t planes, Pixels* to,
                                   int channels, int position, int lane) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  if (p.vectors) {
    move_positions<T, kN, kVector, kLoads>(p, work, planes, to, channels, position, lane);
  } else if (p.pixel_pairs) {
    move_positions<T, kN, 2, kLoads>(p, work, planes, to, channels, position, lane);
  } else {
    move_positions<T, kN, 1, kLoads>(p, work, planes, to, channels, position, lane);
  }
}

// `staging`: of a warpgroup, of which each warp uses a part; `k`: its first channel.
template <typename T, bool kFused, int kSpans, int kBlocks, int kN>
__device__ inline void store_planes(const Params& p, const Work& work,
                                    float (&sum)[kBlocks][kN / 2], char* staging, int k) {
  using S = Planes<T, kN>;
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
  const uint32_t planes = ptx::shared_address(staging) + warp * (16 * S::kBytes);
  const auto* residual = static_cast<const T*>(p.epilogue.residual);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const int channel = k + b / kSpans * kBlockChannels + warp * 16;
    const int channels = min(16, work.last_k - channel);
#pragma unroll
    for (int round = 0; round < S::kRounds; ++round) {
      float* own = sum[b] + round * S::kSums;
      const int position = work.position + b % kSpans * kN + round * S::kPositions;
      __syncwarp();
      if (kFused && residual != nullptr) {
        move_planes<T, kN, true>(p, work, planes, residual + channel * p.out_k, channels, position,
                                 lane);
        __syncwarp();
        S::add(p.epilogue, planes, own, lane);
      }
      S::write(planes, own, lane);
      __syncwarp();
      move_planes<T, kN, false>(p, work, planes, static_cast<T*>(p.out) + channel * p.out_k,
                                channels, position, lane);
    }
  }
}

}  // namespace customconv::implicit_gemm::sm90
