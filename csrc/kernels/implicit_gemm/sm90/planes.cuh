// The planes loader: a stage of the halo loader's positions, from channels-first input. Threads
// load pixels of some planes into registers and store each pixel's channels side by side.
#pragma once

#include <cstdint>

#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/sm90/work.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm::sm90 {

// Pixels that a lane loads at a time from each of some channels.
template <typename T, int kPixels>
struct PlanePart {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kWords = kPixels * kSize < 4 ? 1 : kPixels * kSize / 4;  // of a channel
  static constexpr int kChannels = kPlaneWords / kWords;
  static constexpr int kUnitChannels = 16 / kSize;  // what is stored at a time
  static constexpr int kUnits = kChannels / kUnitChannels;

  uint32_t words[kChannels][kWords];

  __device__ void load(int channel, const T* from) {
    if constexpr (kPixels * kSize == 2) {
      words[channel][0] = __ldg(reinterpret_cast<const unsigned short*>(from));
    } else if constexpr (kWords == 1) {
      words[channel][0] = __ldg(reinterpret_cast<const unsigned*>(from));
    } else if constexpr (kWords == 2) {
      const uint2 v = __ldg(reinterpret_cast<const uint2*>(from));
      words[channel][0] = v.x;
      words[channel][1] = v.y;
    } else {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(from));
      words[channel][0] = v.x;
      words[channel][1] = v.y;
      words[channel][2] = v.z;
      words[channel][3] = v.w;
    }
  }
  __device__ void clear() {
#pragma unroll
    for (int channel = 0; channel < kChannels; ++channel) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[channel][i] = 0;
    }
  }

  // A pixel's channels of a unit.
  __device__ uint4 unit(int number, int pixel) const {
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kSize == 4) {
        v[i] = ptx::round_tf32(words[number * kUnitChannels + i][pixel]);
      } else {
        const uint32_t a = words[number * kUnitChannels + 2 * i][pixel / 2];
        const uint32_t b = words[number * kUnitChannels + 2 * i + 1][pixel / 2];
        v[i] = __byte_perm(a, b, pixel % 2 == 0 ? 0x5410 : 0x7632);
      }
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
  }
};

// A stage's parts, some rows each, are shared out among the warps one by one. Lanes that share a
// pixel's channels are neighbours, so that those that store at once meet different banks.
template <typename T, int kPixels, int kWarps>
class PlaneLoader {
  using Part = PlanePart<T, kPixels>;

 public:
  // `warp`: among those that load planes.
  __device__ PlaneLoader(const Params& p, const Memory& memory, int warp, int lane)
      : p_(p), memory_(memory), warp_(warp), lane_(lane) {
    asm volatile("" : "+r"(lane_));  // or it is read from its special register again and again
  }

  // Every warp has a part of every stage.
  __device__ void load(const Work& work, ptx::Turn& turn) {
    if (work.taps == 0) return;
    first_ = work.position - p_.halo + p_.image;  // one image ahead, so that none is negative
    group_c_ = work.c;
    for (int chunk = 0; chunk < p_.chunks; ++chunk) {
      for (int part = warp_; part < p_.plane_parts; part += kWarps) {
        Part values;
        fetch(chunk, part, values);
        if (part == warp_) ptx::wait(memory_.x_empty + turn.stage, turn.parity ^ 1);
        store(part, values, turn.stage);
        ptx::fence_shared_writes();
        __syncwarp();
        if (lane_ == 0) ptx::arrive(memory_.x_full + turn.stage);
      }
      turn.advance(p_.x_stages);
    }
  }

 private:
  // A part's first row of the stage, for this lane, and its first channel in the row.
  __device__ int row_of(int part) const {
    return ((part * 32 + lane_) >> p_.plane_shift) * kPixels;
  }
  __device__ int channel() const { return (lane_ & ((1 << p_.plane_shift) - 1)) * Part::kChannels; }

  __device__ void fetch(int chunk, int number, Part& part) const {
    const int row = row_of(number);
    const Place place(p_, first_ + row);
    const int c = channel();
    const int own_c = chunk * p_.row_channels + c;  // in its group
    const int column = place.first_column + place.column - p_.plane_column;
    const bool exists = row < p_.copy_rows && place.n > 0 && place.n <= p_.N &&
                        place.row < p_.plane_rows && column >= 0 && column < p_.plane_columns;
    part.clear();
    if (!exists) return;
    const int channels = min(p_.row_channels - c, p_.group_C - own_c);
    const T* from = static_cast<const T*>(p_.planes) + (place.n - 1) * p_.plane_n +
                    place.row * p_.plane_h + column +
                    static_cast<int64_t>(group_c_ + own_c) * p_.plane_c;
    if (channels >= Part::kChannels) {
#pragma unroll
      for (int i = 0; i < Part::kChannels; ++i) part.load(i, from + i * p_.plane_c);
    } else {
#pragma unroll
      for (int i = 0; i < Part::kChannels; ++i) {
        if (i < channels) part.load(i, from + i * p_.plane_c);
      }
    }
  }

  __device__ void store(int number, const Part& part, int stage) const {
    const int row = row_of(number), c = channel();
    if (row >= p_.copy_rows) return;
    const uint32_t pixels = ptx::shared_address(memory_.pixels) + stage * p_.x_bytes;
    const int mask = p_.row_bytes - 16;  // of the swizzle
#pragma unroll
    for (int u = 0; u < Part::kUnits; ++u) {
      if (c + u * Part::kUnitChannels >= p_.row_channels) break;
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        const int to = (row + i) * p_.row_bytes + (c + u * Part::kUnitChannels) * Part::kSize;
        ptx::store_shared(pixels + (to ^ (to >> 3 & mask)), part.unit(u, i));
      }
    }
  }

  const Params& p_;
  const Memory& memory_;
  int warp_, lane_;
  int first_ = 0, group_c_ = 0;
};

// By each of kWarps warps, for all of a thread block's tiles.
template <typename T, int kWarps, typename EachTile>
__device__ inline void load_planes(const Params& p, const Memory& memory, int warp, int lane,
                                   const EachTile& each_tile) {
  const auto load = [&](auto loader) {
    ptx::Turn turn;
    each_tile([&](const Work& work) { loader.load(work, turn); });
  };
  if (p.plane_pixels == 4) {
    load(PlaneLoader<T, 4, kWarps>(p, memory, warp, lane));
  } else if (p.plane_pixels == 2) {
    load(PlaneLoader<T, 2, kWarps>(p, memory, warp, lane));
  } else {
    load(PlaneLoader<T, 1, kWarps>(p, memory, warp, lane));
  }
}

}  // namespace customconv::implicit_gemm::sm90
