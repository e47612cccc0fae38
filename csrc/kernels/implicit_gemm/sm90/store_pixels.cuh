// Channels-last results that threads store, a pixel's channels 16 bytes at a time: of positions
// that are not all pixels of the output, or not one after the other. Where pixels are not whole 16
// bytes, an element at a time.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/implicit_gemm/sm90/slab.cuh"
#include "kernels/ptx/barrier.cuh"

namespace customconv::implicit_gemm::sm90 {

constexpr int kMovedPositions = 16;  // of a slab, by a warp

// Moves single elements, as `move_slab` does. Lanes have neighbours: a store of 16 bits that skips
// the rest of its sector takes as long as a whole sector.
template <typename T, bool kLoads, typename Pixels>
__device__ inline void move_elements(uint32_t slab, Pixels* pixels, int64_t own, int channels) {
  using S = Slabs<T, 64>;
  using Bits = std::conditional_t<S::kSize == 2, uint16_t, uint32_t>;
  using Element = std::conditional_t<kLoads, const Bits, Bits>;
  constexpr int kUnit = 16 / S::kSize, kAtOnce = 4;
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
  // Exact for as many elements as there are, at most 16 x 64.
  const uint32_t inverse = 0xffffu / channels + 1;
  for (int first = lane; first - lane < kMovedPositions * channels; first += 32 * kAtOnce) {
    Element* elements[kAtOnce];
    uint32_t slots[kAtOnce];
    Bits bits[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int number = first + i * 32, row = static_cast<int>(number * inverse >> 16);
      const int channel = number - row * channels;
      const int64_t offset = __shfl_sync(~0u, own, row);
      const bool exists = row < kMovedPositions && offset >= 0;
      elements[i] = exists ? reinterpret_cast<Element*>(pixels + offset + channel) : nullptr;
      slots[i] =
          S::unit(slab, warp * kMovedPositions + row, channel / kUnit) + channel % kUnit * S::kSize;
      if (exists) bits[i] = kLoads ? *elements[i] : ptx::load_shared<Bits>(slots[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (elements[i] == nullptr) continue;
      if constexpr (kLoads) {
        ptx::store_shared(slots[i], bits[i]);
      } else {
        *elements[i] = bits[i];
      }
    }
  }
}

// Moves a slab's channels between shared memory and the tensor at `pixels`, in the direction that
// `kLoads` says.
template <typename T, bool kLoads, typename Pixels>
__device__ inline void move_slab(const Params& p, const Work& work, uint32_t slab, Pixels* pixels,
                                 int k, int position) {
  using S = Slabs<T, 64>;
  constexpr int kUnit = 16 / S::kSize;
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
  const int own_row = warp * kMovedPositions + lane % kMovedPositions;
  const int64_t own = Place(p, position + own_row).offset(p, p.phase[work.phase]);
  if (!p.vectors) {
    const int channels = min(S::kChannels, work.last_k - k);
    if (channels > 0) move_elements<T, kLoads>(slab, pixels + k, own, channels);
    return;
  }
#pragma unroll
  for (int i = lane; i < kMovedPositions * 8; i += 32) {
    const int64_t offset = __shfl_sync(~0u, own, i / 8);
    const int channel = k + i % 8 * kUnit;
    if (offset < 0 || channel >= work.last_k) continue;
    const uint32_t at = S::unit(slab, warp * kMovedPositions + i / 8, i % 8);
    Pixels* const pixel = pixels + offset + channel;
    if constexpr (kLoads) {
      ptx::store_shared(at, *reinterpret_cast<const uint4*>(pixel));
    } else {
      *reinterpret_cast<uint4*>(pixel) = ptx::load_shared<uint4>(at);
    }
  }
}

// `slabs`: of a warpgroup; `k`: its first channel.
template <typename T, bool kFused, int kSpans, int kBlocks, int kN>
__device__ inline void store_pixels(const Params& p, const Work& work,
                                    float (&sum)[kBlocks][kN / 2], char* slabs, int k,
                                    int barrier) {
  using S = Slabs<T, kN>;
  const uint32_t base = ptx::shared_address(slabs);
  const auto* residual = static_cast<const T*>(p.epilogue.residual);
  const auto each = [&](int b, int round, auto move) {
#pragma unroll
    for (int i = 0; i < S::kCount; ++i) {
      move(base + i * S::kBytes, k + b / kSpans * kBlockChannels + S::channel(i),
           work.position + b % kSpans * kN + S::position(round, i));
    }
  };
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int round = 0; round < S::kRounds; ++round) {
      ptx::sync_threads<128>(barrier);
      if (kFused && residual != nullptr) {
        each(b, round, [&](uint32_t slab, int channel, int position) {
          move_slab<T, true>(p, work, slab, residual, channel, position);
        });
        ptx::sync_threads<128>(barrier);
        S::add(p.epilogue, base, round, sum[b]);
      }
      S::write(base, round, sum[b]);
      ptx::sync_threads<128>(barrier);
      each(b, round, [&](uint32_t slab, int channel, int position) {
        move_slab<T, false>(p, work, slab, static_cast<T*>(p.out), channel, position);
      });
    }
  }
}

}  // namespace customconv::implicit_gemm::sm90
