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
__device__ inline void move_elements(uint32_t slab, int first_unit, Pixels* pixels, int64_t own,
                                     int channels) {
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
      slots[i] = S::unit(slab, warp * kMovedPositions + row, first_unit + channel / kUnit) +
                 channel % kUnit * S::kSize;
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

// Moves a slab's channels, `kUnits` times 16 bytes of a row, between shared memory and the tensor
// at `pixels`, in the direction that `kLoads` says.
template <typename T, int kUnits, bool kLoads, typename Pixels>
__device__ inline void move_slab(const Params& p, const Work& work, uint32_t slab, int first_unit,
                                 Pixels* pixels, int k, int position) {
  using S = Slabs<T, 64>;
  constexpr int kUnit = 16 / S::kSize;
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
  const int own_row = warp * kMovedPositions + lane % kMovedPositions;
  const int64_t own = Place(p, position + own_row).offset(p, p.phase[work.phase]);
  if (!p.vectors) {
    const int channels = min(kUnits * kUnit, work.last_k - k);
    if (channels > 0) move_elements<T, kLoads>(slab, first_unit, pixels + k, own, channels);
    return;
  }
#pragma unroll
  for (int i = lane; i < kMovedPositions * kUnits; i += 32) {
    const int64_t offset = __shfl_sync(~0u, own, i / kUnits);
    const int channel = k + i % kUnits * kUnit;
    if (offset < 0 || channel >= work.last_k) continue;
    const uint32_t at = S::unit(slab, warp * kMovedPositions + i / kUnits, first_unit + i % kUnits);
    Pixels* const pixel = pixels + offset + channel;
    if constexpr (kLoads) {
      ptx::store_shared(at, *reinterpret_cast<const uint4*>(pixel));
    } else {
      *reinterpret_cast<uint4*>(pixel) = ptx::load_shared<uint4>(at);
    }
  }
}

// `slabs`: of a warpgroup; `k`: its first channel. `kPixelRows`: behind the channels of a half of
// the pixels are those of the other half (pixel_rows.cuh).
template <typename T, bool kFused, bool kPixelRows, int kSpans, int kBlocks, int kN>
__device__ inline void store_pixels(const Params& p, const Work& work,
                                    float (&sum)[kBlocks][kN / 2], char* slabs, int k,
                                    int barrier) {
  using S = Slabs<T, kN>;
  const uint32_t base = ptx::shared_address(slabs);
  const auto* residual = static_cast<const T*>(p.epilogue.residual);
  constexpr int kHalfBytes = kBlockChannels / 2 * S::kSize;  // of a row, or a whole row
  constexpr int kUnits = (kPixelRows ? kHalfBytes : 128) / 16;
  const auto each = [&](int b, int round, auto move) {
#pragma unroll
    for (int i = 0; i < S::kCount; ++i) {
#pragma unroll
      for (int unit = 0; unit < 8; unit += kUnits) {
        const int channel = S::channel(i) + unit * 16 / S::kSize;  // of the block
        const int half = kPixelRows ? channel / (kBlockChannels / 2) : 0;
        move(base + i * S::kBytes, unit,
             k + b / kSpans * kBlockChannels + channel - half * (kBlockChannels / 2),
             work.position + (b % kSpans + half) * kN + S::position(round, i));
      }
    }
  };
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int round = 0; round < S::kRounds; ++round) {
      ptx::named_barrier_sync<128>(barrier);
      if (kFused && residual != nullptr) {
        each(b, round, [&](uint32_t slab, int unit, int channel, int position) {
          move_slab<T, kUnits, true>(p, work, slab, unit, residual, channel, position);
        });
        ptx::named_barrier_sync<128>(barrier);
        S::add(p.epilogue, base, round, sum[b]);
      }
      S::write(base, round, sum[b]);
      ptx::named_barrier_sync<128>(barrier);
      each(b, round, [&](uint32_t slab, int unit, int channel, int position) {
        move_slab<T, kUnits, false>(p, work, slab, unit, static_cast<T*>(p.out), channel, position);
      });
    }
  }
}

}  // namespace customconv::implicit_gemm::sm90
