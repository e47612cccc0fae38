// Channels-last results that the copy engine stores while the next tile is summed.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/finish.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm::sm90 {

// A slab is 64 positions by up to 128 bytes of channels, with the swizzle of that width.
template <typename T, int kN>
struct Slab {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kRowBytes = kN * kSize < 128 ? kN * kSize : 128;
  static constexpr int kChannels = kRowBytes / kSize;
  static constexpr int kBytes = 64 * kRowBytes;
  static constexpr int kAcross = kN / kChannels;  // of a tile
  static constexpr int kAtOnce = kAcross < 2 ? kAcross : 2;

  // Where 16 bytes of a row are.
  static __device__ uint32_t unit(uint32_t slab, int row, int number) {
    const int swizzle = row * kRowBytes / 128 % 8 & (kRowBytes / 16 - 1);
    return slab + row * kRowBytes + (number ^ swizzle) * 16;
  }

  // Calls `action` with the address of each pair of channels that a thread has, or of four pairs of
  // 16 bits as matrix instructions take them, and their sums.
  template <typename Action>
  static __device__ void each(uint32_t slab, float* sum, int warp, int lane, Action action) {
    if constexpr (kSize == 2) {
#pragma unroll
      for (int j = 0; j < kChannels / 8; j += 2) {
        action(unit(slab, warp * 16 + lane % 16, j + lane / 16), sum + j * 4);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kChannels / 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = warp * 16 + half * 8 + lane / 4;
          action(unit(slab, row, j * 2 + lane % 4 / 2) + lane % 2 * 8, sum + j * 4 + half * 2);
        }
      }
    }
  }
  static __device__ void write(uint32_t slab, float* sum, int warp, int lane) {
    each(slab, sum, warp, lane, [](uint32_t to, const float* v) {
      if constexpr (kSize == 2) {
        ptx::store_matrices(to, pack_pair<T>(v[0], v[1]), pack_pair<T>(v[2], v[3]),
                            pack_pair<T>(v[4], v[5]), pack_pair<T>(v[6], v[7]));
      } else {
        ptx::store_shared(to, v[0], v[1]);
      }
    });
  }
  static __device__ void add(uint32_t slab, float* sum, int warp, int lane) {
    each(slab, sum, warp, lane, [](uint32_t from, float* v) {
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
  }
};

// A warpgroup's stores. With `kFused`, a residual comes into the slabs before results are written
// there: the first ones of a tile while it is summed.
template <typename T, int kBlocks, int kN, bool kFused>
class RowStore {
  using S = Slab<T, kN>;

 public:
  __device__ RowStore(const Params& p, ptx::Barrier* residual_full, char* slabs, int own_row,
                      int barrier, bool leads)
      : p_(p),
        full_(residual_full),
        slabs_(slabs),
        own_row_(own_row),
        barrier_(barrier),
        leads_(leads),
        adds_(kFused && p.epilogue.residual != nullptr) {}

  __device__ void begin(const Work& work) {
    if (adds_) fetch(work, 0, 0);
  }

  __device__ void store(const Work& work, float (&sum)[kBlocks][kN / 2]) {
    const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
    const Epilogue& epilogue = p_.epilogue;
    const bool last = adds_ && epilogue.residual_last;
    if constexpr (kFused) {
      scale_and_bias<T>(p_, work, sum);
      if (!adds_ || last) {
        activate<kBlocks * kN / 2>(sum[0], epilogue.activation, epilogue.negative_slope);
      }
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int first = 0; first < S::kAcross; first += S::kAtOnce) {
        if (adds_) {
          if (b > 0 || first > 0) fetch(work, b, first);
          ptx::wait(full_, parity_);
          parity_ ^= 1;
        } else {
          if (leads_) ptx::await_store_reads();
          ptx::sync_threads<128>(barrier_);
        }
#pragma unroll
        for (int i = 0; i < S::kAtOnce; ++i) {
          float* own = sum[b] + (first + i) * S::kChannels / 2;
          const uint32_t slab = ptx::shared_address(slabs_) + i * S::kBytes;
          if (kFused && adds_) {
            S::add(slab, own, warp, lane);
            if (!last) {
              activate<S::kChannels / 2>(own, epilogue.activation, epilogue.negative_slope);
            }
          }
          S::write(slab, own, warp, lane);
        }
        ptx::fence_shared_writes();
        ptx::sync_threads<128>(barrier_);
        if (leads_) {
          each(work, b, first, [&](int i, int k, int position) {
            ptx::store_box(&p_.y, slabs_ + i * S::kBytes, k, position, 0, 0);
          });
          ptx::commit_stores();
        }
      }
    }
  }

  __device__ void finish() {
    if (leads_) ptx::await_store_reads();
  }

 private:
  // Calls `move` with the slabs of a round that are of the tile's group.
  template <typename Move>
  __device__ void each(const Work& work, int b, int first, Move move) {
#pragma unroll
    for (int i = 0; i < S::kAtOnce; ++i) {
      const int k = work.k + (first + i) * S::kChannels;
      if (k < work.last_k) move(i, k, work.position + own_row_ + b * 64);
    }
  }
  __device__ void fetch(const Work& work, int b, int first) {
    if (!leads_) return;
    ptx::await_store_reads();
    int bytes = 0;
    each(work, b, first, [&](int, int, int) { bytes += S::kBytes; });
    ptx::arrive_expecting(full_, bytes);
    each(work, b, first, [&](int i, int k, int position) {
      ptx::copy_box(slabs_ + i * S::kBytes, &p_.residual, full_, k, position, 0, 0);
    });
  }

  const Params& p_;
  ptx::Barrier* full_;
  char* slabs_;
  int own_row_, barrier_;
  bool leads_, adds_;
  uint32_t parity_ = 0;
};

}  // namespace customconv::implicit_gemm::sm90
