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
  __device__ void clear(int channel) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[channel][i] = 0;
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

__device__ inline uint4 choose(bool second, const uint4& a, const uint4& b) {
  return make_uint4(second ? b.x : a.x, second ? b.y : a.y, second ? b.z : a.z, second ? b.w : a.w);
}

// A stage's parts, rows by channels, are shared out among the warps one by one.
template <typename T, int kPixels, int kAtOnce>
class PlaneLoader {
  using Part = PlanePart<T, kPixels>;

 public:
  // `warp`: among those that load planes.
  __device__ PlaneLoader(const Params& p, const Memory& memory, int warp, int lane)
      : p_(p), memory_(memory), warp_(warp), lane_(lane) {}

  // Loads kAtOnce parts before it stores the first of them.
  __device__ void load(const Work& work, ptx::Turn& turn) {
    if (work.taps == 0) return;
    first_ = work.position - p_.halo + p_.image;  // one image ahead, so that none is negative
    group_c_ = work.c;
    Cursor next{0, warp_};
    normalise(next);
    int turned = 0;  // stages that `turn` is ahead of the tile's first
    while (next.chunk < p_.chunks) {
      Part parts[kAtOnce];
      Cursor from[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        from[i] = next;
        if (next.chunk < p_.chunks) {
          fetch(next, parts[i]);
          next.part += kPlaneWarps;
          normalise(next);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (from[i].chunk == p_.chunks) break;
        for (; turned < from[i].chunk; ++turned) turn.advance(p_.x_stages);
        ptx::wait(memory_.x_empty + turn.stage, turn.parity ^ 1);
        store(from[i], parts[i], turn.stage);
        ptx::fence_shared_writes();
        __syncwarp();
        if (lane_ == 0) ptx::arrive(memory_.x_full + turn.stage);
      }
    }
    for (; turned < p_.chunks; ++turned) turn.advance(p_.x_stages);
  }

 private:
  struct Cursor {
    int chunk, part;
  };

  __device__ void normalise(Cursor& at) const {
    while (at.part >= p_.plane_parts && at.chunk < p_.chunks) {
      at.part -= p_.plane_parts;
      ++at.chunk;
    }
  }
  // A part's first row of the stage, for this lane, and its first channel in the row.
  __device__ int row_of(const Cursor& at) const {
    return ((at.part >> p_.plane_shift) * 32 + lane_) * kPixels;
  }
  __device__ int channel_of(const Cursor& at) const {
    return (at.part & ((1 << p_.plane_shift) - 1)) * Part::kChannels;
  }

  __device__ void fetch(const Cursor& at, Part& part) const {
    const Place place(p_, first_ + row_of(at));
    const int c = channel_of(at);
    const int own_c = at.chunk * p_.row_channels + c;  // in its group
    const int column = place.first_column + place.column - p_.plane_column;
    const bool exists = place.n > 0 && place.n <= p_.N && place.row < p_.plane_rows &&
                        column >= 0 && column < p_.plane_columns;
    const int channels = exists ? min(p_.row_channels - c, p_.group_C - own_c) : 0;
    const T* from = static_cast<const T*>(p_.planes) + (place.n - 1) * p_.plane_n +
                    place.row * p_.plane_h + column +
                    static_cast<int64_t>(group_c_ + own_c) * p_.plane_c;
#pragma unroll
    for (int i = 0; i < Part::kChannels; ++i) {
      if (i < channels) {
        part.load(i, from);
      } else {
        part.clear(i);
      }
      from += p_.plane_c;
    }
  }

  __device__ void store(const Cursor& at, const Part& part, int stage) const {
    const int row = row_of(at), c = channel_of(at);
    if (row >= p_.copy_rows) return;
    const uint32_t pixels = ptx::shared_address(memory_.pixels) + stage * p_.x_bytes;
    // Lanes whose rows would meet in the same banks store their pixels in another order.
    const int turned = lane_ * kPixels / 8 % kPixels;
    const int mask = p_.row_bytes - 16;  // of the swizzle
#pragma unroll
    for (int u = 0; u < Part::kUnits; ++u) {
      if (c + u * Part::kUnitChannels >= p_.row_channels) break;
      uint4 units[kPixels];
#pragma unroll
      for (int i = 0; i < kPixels; ++i) units[i] = part.unit(u, i);
#pragma unroll
      for (int step = 1; step < kPixels; step *= 2) {
        uint4 rotated[kPixels];
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
          rotated[i] = choose((turned & step) != 0, units[i], units[(i + step) % kPixels]);
        }
#pragma unroll
        for (int i = 0; i < kPixels; ++i) units[i] = rotated[i];
      }
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        const int to = (row + (i + turned) % kPixels) * p_.row_bytes +
                       (c + u * Part::kUnitChannels) * Part::kSize;
        ptx::store_shared(pixels + (to ^ (to >> 3 & mask)), units[i]);
      }
    }
  }

  const Params& p_;
  const Memory& memory_;
  int warp_, lane_;
  int first_ = 0, group_c_ = 0;
};

// By each of kPlaneWarps warps, for all of a thread block's tiles. As many loads are under way as
// there are registers for.
template <typename T, int kRegisters, typename EachTile>
__device__ inline void load_planes(const Params& p, const Memory& memory, int warp, int lane,
                                   const EachTile& each_tile) {
  constexpr int kAtOnce = kRegisters >= 152 ? 3 : kRegisters >= 104 ? 2 : 1;
  const auto load = [&](auto loader) {
    ptx::Turn turn;
    each_tile([&](const Work& work) { loader.load(work, turn); });
  };
  if (p.plane_pixels == 4) {
    load(PlaneLoader<T, 4, kAtOnce>(p, memory, warp, lane));
  } else if (p.plane_pixels == 2) {
    load(PlaneLoader<T, 2, kAtOnce>(p, memory, warp, lane));
  } else {
    load(PlaneLoader<T, 1, kAtOnce>(p, memory, warp, lane));
  }
}

}  // namespace customconv::implicit_gemm::sm90
