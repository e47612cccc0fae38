// Channels-first input, packed as channels-last into a workspace while tiles are computed.
//
// Two warps of each thread block pack; the loader reads what they wrote through the L2 cache. The
// work is cut into units: up to 64 pixels of an image by 128 bytes of channels. Warps draw units
// from a counter in their order, so that those a tile needs first are packed first, however many
// thread blocks are running. A segment is some blocks of pixels with all their channels; its count
// of packed units tells the loader when it may be read. No packing warp waits for another warp, so
// the loader's wait ends.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/common/scalar.cuh"
#include "kernels/implicit_gemm/sm90/work.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/fence.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::implicit_gemm::sm90 {

// A unit in shared memory: for each channel its 64 pixels as vectors of 16 bytes, swizzled by the
// channel; behind them a vector more for each, as a channel may begin within a vector.
template <typename T>
struct PackUnit {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kVector = 16 / kSize;               // elements
  static constexpr int kChannels = kPackRowBytes / kSize;  // of a unit
  static constexpr int kVectors = kPackPixels / kVector;   // of a channel
  static constexpr int kAcross = 8;                        // vectors of a pixel's channels
  static_assert(kChannels * (kVectors + 1) * 16 <= kPackUnitBytes);

  static __device__ uint32_t slot(int c, int v) {
    return v < kVectors ? (c * kVectors + (v ^ (c / kVector))) * 16
                        : kChannels * (kVectors * 16) + c * 16;
  }
};

// What a warp packs.
template <typename T>
class Packer {
  using U = PackUnit<T>;

 public:
  // `buffers`: the warp's, two.
  __device__ Packer(const Params& p, char* buffers, int lane)
      : p_(p), buffers_(ptx::shared_address(buffers)), lane_(lane) {}

  __device__ void run() {
    int unit = draw(), next = draw();
    load(unit, 0);
    for (int buffer = 0; unit < p_.pack.units; buffer ^= 1) {
      load(next, buffer ^ 1);
      ptx::await_groups<1>();
      __syncwarp();
      const int after = draw();
      store(unit, buffer);
      unit = next;
      next = after;
    }
  }

 private:
  struct Part {
    int n, block, c;  // image, block of pixels, first channel
    __device__ Part(const PackParams& p, int unit) {
      int32_t rest = unit;
      c = p.by_units_c.split(rest) * U::kChannels;
      block = p.by_blocks.split(rest);
      n = rest;
    }
  };

  __device__ int draw() const {
    int unit = 0;
    if (lane_ == 0) unit = atomicAdd(p_.pack.next, 1);
    return __shfl_sync(~0u, unit, 0);
  }
  __device__ const T* source(const Part& part) const {
    return static_cast<const T*>(p_.pack.x) + part.n * p_.pack.n + part.c * p_.pack.c +
           part.block * kPackPixels;
  }
  // From the start of a vector to a channel's first pixel.
  __device__ int shift(const T* source, int c) const {
    return static_cast<int>(reinterpret_cast<uint64_t>(source + c * p_.pack.c) % 16 / sizeof(T));
  }

  __device__ void load(int unit, int buffer) {
    if (unit < p_.pack.units) {
      const Part part(p_.pack, unit);
      const T* const from = source(part);
      const int channels = min(U::kChannels, p_.pack.C - part.c);
      const int pixels = min(kPackPixels, p_.pack.pixels - part.block * kPackPixels);
      const uint32_t to = buffers_ + buffer * kPackUnitBytes;
      if (p_.pack.aligned) {
#pragma unroll 4
        for (int i = lane_; i < U::kChannels * U::kVectors; i += 32) {
          load_vector(from, i / U::kVectors, i % U::kVectors, 0, channels, pixels, to);
        }
      } else {
        constexpr int kAll = U::kVectors + 1;
#pragma unroll 2
        for (int i = lane_; i < U::kChannels * kAll; i += 32) {
          const int c = i / kAll;
          load_vector(from, c, i % kAll, shift(from, c), channels, pixels, to);
        }
      }
    }
    ptx::commit_copies();
  }

  // Pixels from v * kVector - before on. What lies outside the tensor is not read.
  __device__ void load_vector(const T* source, int c, int v, int before, int channels, int pixels,
                              uint32_t to) const {
    const int first = v * U::kVector - before;
    if (c >= channels || first >= pixels) return;
    const T* from = source + c * p_.pack.c + first;
    const auto* begin = static_cast<const T*>(p_.pack.begin);
    const auto* end = static_cast<const T*>(p_.pack.end);
    if (from >= begin && from + U::kVector <= end) {
      ptx::copy_async<16>(to + U::slot(c, v), from, true);
      return;
    }
    alignas(16) T elements[U::kVector];
#pragma unroll
    for (int i = 0; i < U::kVector; ++i) {
      const bool exists = from + i >= begin && from + i < end;
      elements[i] = exists ? from[i] : narrow<T>(0.0f);
    }
    ptx::store_shared(to + U::slot(c, v), *reinterpret_cast<const uint4*>(elements));
  }

  // Lanes have neighbouring channels of a pixel, and no two of them meet in a bank.
  __device__ void store(int unit, int buffer) {
    const Part part(p_.pack, unit);
    const T* const from = source(part);
    const int channels = p_.pack.C - part.c;
    const int pixels = min(kPackPixels, p_.pack.pixels - part.block * kPackPixels);
    const int own_c = lane_ % U::kAcross * U::kVector;
    const uint32_t own = buffers_ + buffer * kPackUnitBytes;
    const int64_t first = static_cast<int64_t>(part.n) * p_.pack.pixels + part.block * kPackPixels;
    T* to = static_cast<T*>(p_.pack.to) + first * p_.pack.row + part.c + own_c;
    int before[U::kVector];
#pragma unroll
    for (int e = 0; e < U::kVector; ++e) {
      before[e] = p_.pack.aligned ? 0 : shift(from, own_c + e);
    }
    if (part.c + own_c < p_.pack.row) {
#pragma unroll 2
      for (int pixel = lane_ / U::kAcross; pixel < pixels; pixel += 32 / U::kAcross) {
        alignas(16) T elements[U::kVector];
#pragma unroll
        for (int e = 0; e < U::kVector; ++e) {
          const int at = pixel + before[e];
          const uint32_t address =
              own + U::slot(own_c + e, at / U::kVector) + at % U::kVector * U::kSize;
          using Bits = std::conditional_t<U::kSize == 2, uint16_t, uint32_t>;
          const Bits bits = own_c + e < channels ? ptx::load_shared<Bits>(address) : Bits(0);
          elements[e] = *reinterpret_cast<const T*>(&bits);
        }
        *reinterpret_cast<uint4*>(to + static_cast<int64_t>(pixel) * p_.pack.row) =
            *reinterpret_cast<const uint4*>(elements);
      }
    }
    ptx::fence_global_writes();  // the loader's copies see them
    __threadfence();
    __syncwarp();
    if (lane_ == 0) {
      const int segment = part.n * p_.pack.segments + part.block / p_.pack.segment_blocks;
      ptx::add_release(p_.pack.packed + segment, 1);
    }
  }

  const Params& p_;
  uint32_t buffers_;
  int lane_;
};

// The loader's side.
class PackedInput {
 public:
  __device__ PackedInput(const Params& p, int lane) : pack_(p.pack), lane_(lane) {}

  // Waits until the pixels are packed from a row of one image to a row of another.
  __device__ void await(int first_n, int first_row, int last_n, int last_row) {
    if (pack_.units == 0) return;
    if (last_n >= pack_.N) {
      last_n = pack_.N - 1;
      last_row = pack_.H;
    }
    first_row = min(max(first_row, 0), pack_.H - 1);
    last_row = min(max(last_row, 0), pack_.H - 1);
    const int first = segment(first_n, first_row * pack_.W);
    const int last = segment(last_n, last_row * pack_.W + pack_.W - 1);
    if (first >= first_ && last <= last_) return;
    for (int i = first + lane_; i <= last; i += 32) {
      int32_t rest = i;
      const int own = pack_.by_segments.split(rest);
      const int blocks = min(pack_.segment_blocks, pack_.blocks - own * pack_.segment_blocks);
      while (ptx::load_acquire(pack_.packed + i) < blocks * pack_.units_c) __nanosleep(64);
    }
    __syncwarp();
    ptx::fence_global_writes();
    first_ = first;
    last_ = last;
  }

 private:
  __device__ int segment(int n, int pixel) const {
    return n * pack_.segments + pixel / kPackPixels / pack_.segment_blocks;
  }

  const PackParams& pack_;
  int lane_;
  int first_ = 0, last_ = -1;  // segments that are known to be packed
};

}  // namespace customconv::implicit_gemm::sm90
