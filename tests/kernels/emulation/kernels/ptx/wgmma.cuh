// Stands in for csrc/kernels/ptx/wgmma.cuh. Products read their operands in shared memory when
// their warpgroup awaits them, as late as can be.
#pragma once

#include "kernels/ptx/barrier.cuh"

namespace customconv::ptx {

enum class Element { kHalf, kBfloat16, kTf32 };
template <typename T>
inline constexpr Element kElement = Element::kTf32;
template <>
inline constexpr Element kElement<__half> = Element::kHalf;
template <>
inline constexpr Element kElement<__nv_bfloat16> = Element::kBfloat16;

// Where the swizzle of so many bytes, 128, 64, 32 or none, puts what would be at an address.
inline uint32_t swizzled(uint32_t address, int bytes = 128) {
  const uint32_t rows = bytes == 128 ? 7 : bytes == 64 ? 3 : bytes == 32 ? 1 : 0;
  return address ^ (address >> 7 & rows) << 4;
}

// To the nearest, halves away from zero.
inline uint32_t round_tf32(uint32_t bits) {
  constexpr uint32_t kHalf = 1 << 12, kCut = (1 << 13) - 1, kNoNumber = 0x7F800000;
  if ((bits & kNoNumber) == kNoNumber) return bits;
  return (bits + kHalf) & ~kCut;
}

constexpr uint64_t kSwizzle128 = 1ull << 62;
// Bytes of a descriptor's swizzle, which are those of a row, too.
inline int swizzle_of(uint64_t descriptor) {
  constexpr int kBytes[] = {0, 128, 64, 32};
  return kBytes[descriptor >> 62];
}
inline uint64_t describe(uint32_t address, uint32_t leading, uint32_t stride) {
  return static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(leading >> 4) << 16 |
         (address & 0x3FFFF) >> 4;
}
inline uint64_t describe_rows(uint32_t address, uint32_t group_bytes) {
  return kSwizzle128 | describe(address, 16, group_bytes);
}
inline uint64_t describe_swizzled(uint32_t address, uint32_t row_bytes, uint32_t group_bytes) {
  const uint64_t swizzle = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
  return swizzle << 62 | describe(address, 16, group_bytes);
}
inline uint64_t describe_blocks(uint32_t address, uint32_t half_bytes) {
  return describe(address, half_bytes, 128);
}
inline uint64_t describe_transposed(uint32_t address, uint32_t next_bytes,
                                    uint32_t group_bytes = 1024) {
  return kSwizzle128 | describe(address, next_bytes, group_bytes);
}
inline uint64_t advance(uint64_t descriptor, uint32_t bytes) {
  return (descriptor >> 32 << 32) | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

struct Operation {
  Element element;
  int columns;
  bool x_in_registers, x_transposed, y_transposed, accumulates;
  uint64_t x, y;
};
// Starts a product of the own warpgroup.
void start_product(const Operation& operation, float* sums, const uint32_t* x);

inline void keep(const uint32_t (&)[4]) {}
inline void warpgroup_arrive() {}
inline void warpgroup_commit_batch() { ++emulation::here().committed; }
void await_all_but(int groups);
template <int kPending>
void warpgroup_wait() {
  await_all_but(kPending);
}

template <typename T, int kColumns, bool kTransposed = false>
struct Product {
  static void add(float (&d)[kColumns / 2], uint64_t x, uint64_t y, int accumulate) {
    start_product({kElement<T>, kColumns, false, false, kTransposed, accumulate != 0, x, y}, d,
                  nullptr);
  }
  static void add(float (&d)[kColumns / 2], const uint32_t (&x)[4], uint64_t y, int accumulate) {
    start_product({kElement<T>, kColumns, true, false, kTransposed, accumulate != 0, 0, y}, d, x);
  }
};

template <typename T, int kColumns>
struct TransposedFirst {
  static void add(float (&d)[kColumns / 2], uint64_t x, uint64_t y, int accumulate) {
    start_product({kElement<T>, kColumns, false, true, false, accumulate != 0, x, y}, d, nullptr);
  }
};

template <typename T, int kColumns, bool kBoth = true>
struct TransposedProduct {
  static void add(float* d, uint64_t x, uint64_t y) {
    start_product({kElement<T>, kColumns, false, true, kBoth, true, x, y}, d, nullptr);
  }
};

}  // namespace customconv::ptx

namespace emulation {

struct StartedProduct {
  customconv::ptx::Operation operation;
  int group;
  float* sums[128];  // of each thread
  uint32_t x[128][4];
};
struct Products {
  Meeting meeting;
  std::deque<StartedProduct> under_way;
  int done = 0;  // before those
};

}  // namespace emulation
