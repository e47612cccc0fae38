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

// Stores one position, or several at once, of each kStep-th channel, if there is such a pixel.
template <int kStep, typename Pixels, typename T>
__device__ inline void store_channels(const Params& p, uint32_t from, T* to, int own_c, int count,
                                      int channel_bytes, int64_t pixel) {
  if (pixel < 0) return;
  to += pixel;
#pragma unroll 4
  for (int c = own_c; c < count; c += kStep) {
    *reinterpret_cast<Pixels*>(to) = ptx::load_shared<Pixels>(from);
    from += kStep * channel_bytes;
    to += kStep * p.out_k;
  }
}

// A lane stores neighbouring pixels at once where positions are so aligned.
template <typename T, int kBlocks, int kN>
__device__ inline void store_planes(const Params& p, const Work& work,
                                    float (&sum)[kBlocks][kN / 2], char* staging, int own_row,
                                    int barrier) {
  using S = Planes<T, kN>;
  using Bits = std::conditional_t<S::kSize == 2, uint16_t, uint32_t>;
  using Pair = std::conditional_t<S::kSize == 2, uint32_t, uint2>;
  constexpr int kVector = 16 / S::kSize, kLanes = 64 / kVector;  // of a channel
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
  const uint32_t planes = ptx::shared_address(staging);
  const int at_once = p.vectors ? kVector : 2;  // positions of a lane
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    // Where the lane's first position is in the plane of channel 0, and where the second.
    const int own = work.position + own_row + b * 64 + lane * at_once % 64;
    const Phase& phase = p.phase[work.phase];
    const int64_t pixel = Place(p, own).offset(p, phase);
    const int64_t second = p.pixel_pairs ? -1 : Place(p, own + 1).offset(p, phase);
#pragma unroll
    for (int first = 0; first < kN; first += S::kChannels) {
      ptx::sync_threads<128>(barrier);
      S::write(planes, sum[b] + first / 2, warp, lane);
      ptx::sync_threads<128>(barrier);
      const int count = min(S::kChannels, work.last_k - work.k - first);
      const int own_c = p.vectors ? warp * (32 / kLanes) + lane / kLanes : warp;
      T* const to = static_cast<T*>(p.out) + (work.k + first + own_c) * p.out_k;
      const uint32_t from = planes + own_c * S::kBytes + lane * at_once % 64 * S::kSize;
      if (p.vectors) {
        store_channels<4 * (32 / kLanes), uint4>(p, from, to, own_c, count, S::kBytes, pixel);
      } else if (p.pixel_pairs) {
        store_channels<4, Pair>(p, from, to, own_c, count, S::kBytes, pixel);
      } else {
        store_channels<4, Bits>(p, from, to, own_c, count, S::kBytes, pixel);
        store_channels<4, Bits>(p, from + S::kSize, to, own_c, count, S::kBytes, second);
      }
    }
  }
}

}  // namespace customconv::implicit_gemm::sm90
