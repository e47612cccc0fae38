// The first operands of a step: pixels of x, as each tap meets them.
#pragma once

#include "kernels/implicit_gemm/wgrad/planes/params.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm::wgrad::planes {

// Where a thread's two rows of x are in a stage.
struct Rows {
  // The first unit's pixel for the first tap, or the word that holds it. For runs, their begin.
  uint32_t at[2];
  uint32_t shift[2];  // bits, to a run's first pixel
  uint32_t table;     // the lane's first entry
};

// What a thread holds of the first operands of a step: rows lane / 4 and lane / 4 + 8, of either
// unit the pixels at lane % 4, for each of some taps.
template <typename T, Fetch kFetch, bool kOdd, int kTaps>
class Fetched {
 public:
  __device__ void load(const Params<T>& p, uint32_t stage, const Rows& rows, int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t from = rows.at[i % 2] + stage + p.unit_at[step][i / 2];
      if constexpr (kFetch != Fetch::kElements) {
#pragma unroll
        for (int j = 0; j < kWords; ++j) word_[i][j] = ptx::load_shared<uint32_t>(from + j * 4);
      } else {
#pragma unroll
        for (int j = 0; j < kTaps; ++j) {
          const uint32_t tap = from + j * p.dilation_w * kSize;
          if constexpr (kSize == 4) {
            word_[i][j] = ptx::load_shared<uint32_t>(tap);
          } else {
            word_[i][j] = __byte_perm(ptx::load_shared<uint16_t>(tap),
                                      ptx::load_shared<uint16_t>(tap + p.stride_w * kSize), 0x5410);
          }
        }
      }
    }
  }

  // `kRounds`: float32 is rounded to TF32, which copies by threads do not do.
  template <bool kRounds = true>
  __device__ void join(const Rows&, uint32_t (&operand)[kTaps][4]) const {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      const int first = tap + kOdd;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kFetch == Fetch::kPairs) {
          operand[tap][i] = first % 2 == 0
                                ? word_[i][first / 2]
                                : __byte_perm(word_[i][first / 2], word_[i][first / 2 + 1], 0x5432);
        } else if constexpr (kFetch == Fetch::kHalves) {
          operand[tap][i] = __byte_perm(word_[i][first / 2], word_[i][first / 2 + 1],
                                        first % 2 == 0 ? 0x5410 : 0x7632);
        } else {
          operand[tap][i] = kRounds && kSize == 4 ? ptx::round_tf32(word_[i][tap]) : word_[i][tap];
        }
      }
    }
  }

 private:
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kWords = kFetch == Fetch::kPairs    ? (kTaps + kOdd) / 2 + 1
                                : kFetch == Fetch::kHalves ? (kTaps + kOdd - 1) / 2 + 2
                                                           : kTaps;
  uint32_t word_[4][kWords];
};

// The same of runs. A pixel, or the word that holds it and one more, is where the table says.
template <typename T, Fetch kFetch, int kTaps>
class LookedUp {
 public:
  __device__ void load(const Params<T>& p, uint32_t stage, const Rows& rows, int step) {
    uint32_t places[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t entry = rows.table + stage;
      if constexpr (kTaps == 1) {
        const auto found = ptx::load_shared<uint2>(entry + (step * 2 + i) * 32);
        places[i] = found.x;
        mask_[i][0] = found.y;
      } else {
        static_assert(kTaps == 3);
        const auto found = ptx::load_shared<uint4>(entry + (step * 2 + i) * 64);
        places[i] = found.x;
        mask_[i][0] = found.y;
        mask_[i][1] = found.z;
        mask_[i][2] = found.w;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t run = rows.at[i % 2] + stage, place = places[i / 2];
      const uint32_t first = run + (kSize == 4 ? place : place & 0xFFFF) * kSize;
      if constexpr (kPairs) {
#pragma unroll
        for (int j = 0; j < kWords; ++j) word_[i][j] = ptx::load_shared<uint32_t>(first + j * 4);
      } else {
        const uint32_t second = run + (place >> 16) * kSize;
#pragma unroll
        for (int j = 0; j < kTaps; ++j) {
          const uint32_t tap = j * p.dilation_w * kSize;
          if constexpr (kSize == 4) {
            word_[i][j] = ptx::load_shared<uint32_t>(first + tap);
          } else {
            word_[i][j] = __byte_perm(ptx::load_shared<uint16_t>(first + tap),
                                      ptx::load_shared<uint16_t>(second + tap), 0x5410);
          }
        }
      }
    }
  }

  template <bool kRounds = true>
  __device__ void join(const Rows& rows, uint32_t (&operand)[kTaps][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t word[kWords];
#pragma unroll
      for (int j = 0; j < kWords; ++j) {
        word[j] = kPairs && j + 1 < kWords
                      ? __funnelshift_r(word_[i][j], word_[i][j + 1], rows.shift[i % 2])
                      : word_[i][j];
      }
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        const uint32_t own = !kPairs        ? word[tap]
                             : tap % 2 == 0 ? word[tap / 2]
                                            : __byte_perm(word[tap / 2], word[tap / 2 + 1], 0x5432);
        operand[tap][i] = own & mask_[i / 2][tap];
      }
    }
  }

 private:
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr bool kPairs = kFetch == Fetch::kTablePairs;
  static constexpr int kWords = kPairs ? kTaps / 2 + 2 : kTaps;
  uint32_t word_[4][kWords], mask_[2][kTaps];
};

}  // namespace customconv::implicit_gemm::wgrad::planes
