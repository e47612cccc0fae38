// Warpgroup matrix products (wgmma): d += a b, both operands in shared memory, sums in float32.
//
// An operand is rows of 128 bytes with the 128-byte swizzle: a row is a pixel or an output channel,
// along it run the input channels. A descriptor may point at any row, and the distance between
// groups of eight rows is free: that is how a tap of a convolution reads a tile where it lies.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace customconv::ptx {

// The tensor cores would cut the bits that TF32 lacks.
__device__ inline uint32_t round_tf32(uint32_t bits) {
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
  return rounded;
}

// Rows from `address` on, in groups of eight that are `group_bytes` apart.
__device__ inline uint64_t describe_rows(uint32_t address, uint32_t group_bytes) {
  constexpr uint64_t kSwizzle128 = 1ull << 62;
  constexpr uint64_t kUnused = 1ull << 16;
  return kSwizzle128 | kUnused | (static_cast<uint64_t>(group_bytes >> 4) << 32) |
         ((address & 0x3FFFF) >> 4);
}

// Rows of 32, 64 or 128 bytes with the swizzle of that width: groups of eight
// that are `group_bytes` apart.
__device__ inline uint64_t describe_swizzled(uint32_t address, uint32_t row_bytes,
                                             uint32_t group_bytes) {
  constexpr uint64_t kUnused = 1ull << 16;
  const uint64_t swizzle = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
  return swizzle << 62 | kUnused | (static_cast<uint64_t>(group_bytes >> 4) << 32) |
         ((address & 0x3FFFF) >> 4);
}

// Blocks of 8 rows by 16 bytes: 128 bytes from eight rows to the next, and from the first 16 bytes
// of a row to the second `half_bytes`.
__device__ inline uint64_t describe_blocks(uint32_t address, uint32_t half_bytes) {
  constexpr uint64_t kGroupBytes = 128;
  return (kGroupBytes >> 4 << 32) | (static_cast<uint64_t>(half_bytes >> 4) << 16) |
         ((address & 0x3FFFF) >> 4);
}

// An operand that is transposed, of 16 bits: a row of 128 bytes is 64 of its columns. Eight rows
// follow each other, the next eight are `group_bytes` further on; `next_bytes` further on are the
// next 64 columns.
__device__ inline uint64_t describe_transposed(uint32_t address, uint32_t next_bytes,
                                               uint32_t group_bytes = 1024) {
  constexpr uint64_t kSwizzle128 = 1ull << 62;
  return kSwizzle128 | (static_cast<uint64_t>(group_bytes >> 4) << 32) |
         (static_cast<uint64_t>(next_bytes >> 4) << 16) | ((address & 0x3FFFF) >> 4);
}

// The same so many bytes further on: the upper half stays as it is.
__device__ inline uint64_t advance(uint64_t descriptor, uint32_t bytes) {
  const uint32_t lower = static_cast<uint32_t>(descriptor) + (bytes >> 4);
  return (descriptor >> 32 << 32) | lower;
}

__device__ inline void warpgroup_arrive() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void warpgroup_commit_batch() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most so many committed groups are under way.
template <int kPending>
__device__ inline void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps an operand in its registers until here. Without it the compiler may use those again while
// products under way still read them.
__device__ inline void keep(const uint32_t (&operand)[4]) {
  asm volatile("" ::"r"(operand[0]), "r"(operand[1]), "r"(operand[2]), "r"(operand[3]));
}

#define CUSTOMCONV_R4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define CUSTOMCONV_R16(d, i) \
  CUSTOMCONV_R4(d, i), CUSTOMCONV_R4(d, i + 4), CUSTOMCONV_R4(d, i + 8), CUSTOMCONV_R4(d, i + 12)
#define CUSTOMCONV_R32(d, i) CUSTOMCONV_R16(d, i), CUSTOMCONV_R16(d, i + 16)
#define CUSTOMCONV_R64(d, i) CUSTOMCONV_R32(d, i), CUSTOMCONV_R32(d, i + 32)
#define CUSTOMCONV_R96(d, i) CUSTOMCONV_R64(d, i), CUSTOMCONV_R32(d, i + 64)
#define CUSTOMCONV_R128(d, i) CUSTOMCONV_R64(d, i), CUSTOMCONV_R64(d, i + 64)

#define CUSTOMCONV_SUMS_16                                      \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13" \
  ", %14, %15}"
#define CUSTOMCONV_SUMS_32                                                 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13"            \
  ", %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27" \
  ", %28, %29, %30, %31}"
#define CUSTOMCONV_SUMS_64                                                 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13"            \
  ", %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27" \
  ", %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41" \
  ", %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55" \
  ", %56, %57, %58, %59, %60, %61, %62, %63}"
#define CUSTOMCONV_SUMS_96                                                 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"  \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29" \
  ", %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43" \
  ", %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57" \
  ", %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71" \
  ", %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85" \
  ", %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}"
#define CUSTOMCONV_SUMS_128                                                  \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"    \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29"   \
  ", %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43"   \
  ", %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57"   \
  ", %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71"   \
  ", %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85"   \
  ", %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99"   \
  ", %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123" \
  ", %124, %125, %126, %127}"

// Products of 64 rows by kColumns, over 32 bytes of both; `accumulate` 0 starts a sum. The first
// operand may be in registers instead: rows lane / 4 and lane / 4 + 8 of a warp's sixteen, of each
// four bytes at lane % 4 * 4, then the same of 16 bytes further on. `kTransposed`: the second is.
template <typename T, int kColumns, bool kTransposed = false>
struct Product;

#define CUSTOMCONV_ADD(instruction, sums, a, b, accumulate, options, ...)                  \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, " accumulate                                \
               ", 0; wgmma.mma_async.sync.aligned." instruction " " CUSTOMCONV_SUMS_##sums \
               ", " a ", " b ", p, 1, 1" options "; }"                                     \
               : CUSTOMCONV_R##sums(d, 0)                                                  \
               : __VA_ARGS__, "l"(y), "r"(accumulate_))
#define CUSTOMCONV_PRODUCT(T, transposed, columns, sums, instruction, o0, o1, o2, o3, o4, o5, \
                           trans_a, trans_b)                                                  \
  template <>                                                                                 \
  struct Product<T, columns, transposed> {                                                    \
    static __device__ void add(float (&d)[sums], uint64_t x, uint64_t y, int accumulate_) {   \
      CUSTOMCONV_ADD(instruction, sums, o0, o1, o2, trans_a trans_b, "l"(x));                 \
    }                                                                                         \
    static __device__ void add(float (&d)[sums], const uint32_t (&x)[4], uint64_t y,          \
                               int accumulate_) {                                             \
      CUSTOMCONV_ADD(instruction, sums, "{" o0 ", " o1 ", " o2 ", " o3 "}", o4, o5, trans_b,  \
                     "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]));                             \
    }                                                                                         \
  };
#define CUSTOMCONV_HALVES(T, type, columns, sums, ...)                                             \
  CUSTOMCONV_PRODUCT(T, false, columns, sums, "m64n" #columns "k16.f32." type, __VA_ARGS__, ", 0", \
                     ", 0")                                                                        \
  CUSTOMCONV_PRODUCT(T, true, columns, sums, "m64n" #columns "k16.f32." type, __VA_ARGS__, ", 0",  \
                     ", 1")
#define CUSTOMCONV_PRODUCTS(columns, sums, ...)                                                    \
  CUSTOMCONV_HALVES(__half, "f16.f16", columns, sums, __VA_ARGS__)                                 \
  CUSTOMCONV_HALVES(__nv_bfloat16, "bf16.bf16", columns, sums, __VA_ARGS__)                        \
  CUSTOMCONV_PRODUCT(float, false, columns, sums, "m64n" #columns "k8.f32.tf32.tf32", __VA_ARGS__, \
                     "", "")

CUSTOMCONV_PRODUCTS(32, 16, "%16", "%17", "%18", "%19", "%20", "%21")
CUSTOMCONV_PRODUCTS(64, 32, "%32", "%33", "%34", "%35", "%36", "%37")
CUSTOMCONV_PRODUCTS(128, 64, "%64", "%65", "%66", "%67", "%68", "%69")
CUSTOMCONV_PRODUCTS(192, 96, "%96", "%97", "%98", "%99", "%100", "%101")
CUSTOMCONV_PRODUCTS(256, 128, "%128", "%129", "%130", "%131", "%132", "%133")

// The same where the first operand is transposed, of 16 bits, and not the second.
template <typename T, int kColumns>
struct TransposedFirst;

#define CUSTOMCONV_TRANSPOSED_FIRST(T, type, columns, sums, a, b, accumulate)                    \
  template <>                                                                                    \
  struct TransposedFirst<T, columns> {                                                           \
    static __device__ void add(float (&d)[sums], uint64_t x, uint64_t y, int accumulate_) {      \
      CUSTOMCONV_ADD("m64n" #columns "k16.f32." type, sums, a, b, accumulate, ", 1, 0", "l"(x)); \
    }                                                                                            \
  };
#define CUSTOMCONV_BOTH_TRANSPOSED_FIRST(...)                 \
  CUSTOMCONV_TRANSPOSED_FIRST(__half, "f16.f16", __VA_ARGS__) \
  CUSTOMCONV_TRANSPOSED_FIRST(__nv_bfloat16, "bf16.bf16", __VA_ARGS__)

CUSTOMCONV_BOTH_TRANSPOSED_FIRST(64, 32, "%32", "%33", "%34")
CUSTOMCONV_BOTH_TRANSPOSED_FIRST(128, 64, "%64", "%65", "%66")
CUSTOMCONV_BOTH_TRANSPOSED_FIRST(192, 96, "%96", "%97", "%98")
CUSTOMCONV_BOTH_TRANSPOSED_FIRST(256, 128, "%128", "%129", "%130")

// The same where the first operand is transposed, and the second unless `kBoth` is false: sums of
// 64 rows by kColumns, 16 long. Adds to sums that exist.
template <typename T, int kColumns, bool kBoth = true>
struct TransposedProduct;

#define CUSTOMCONV_TRANSPOSED(T, type, columns, sums, a, b, both, trans_b)               \
  template <>                                                                            \
  struct TransposedProduct<T, columns, both> {                                           \
    static __device__ void add(float* d, uint64_t x, uint64_t y) {                       \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type          \
                   " " CUSTOMCONV_SUMS_##sums ", " a ", " b ", 1, 1, 1, 1, " trans_b ";" \
                   : CUSTOMCONV_R##sums(d, 0)                                            \
                   : "l"(x), "l"(y));                                                    \
    }                                                                                    \
  };
#define CUSTOMCONV_TRANSPOSED_HALVES(...)               \
  CUSTOMCONV_TRANSPOSED(__half, "f16.f16", __VA_ARGS__) \
  CUSTOMCONV_TRANSPOSED(__nv_bfloat16, "bf16.bf16", __VA_ARGS__)

CUSTOMCONV_TRANSPOSED_HALVES(64, 32, "%32", "%33", true, "1")
CUSTOMCONV_TRANSPOSED_HALVES(128, 64, "%64", "%65", true, "1")
CUSTOMCONV_TRANSPOSED_HALVES(192, 96, "%96", "%97", true, "1")
CUSTOMCONV_TRANSPOSED_HALVES(32, 16, "%16", "%17", false, "0")
CUSTOMCONV_TRANSPOSED_HALVES(64, 32, "%32", "%33", false, "0")
CUSTOMCONV_TRANSPOSED_HALVES(128, 64, "%64", "%65", false, "0")

#undef CUSTOMCONV_TRANSPOSED_HALVES
#undef CUSTOMCONV_BOTH_TRANSPOSED_FIRST
#undef CUSTOMCONV_TRANSPOSED_FIRST
#undef CUSTOMCONV_TRANSPOSED
#undef CUSTOMCONV_PRODUCTS
#undef CUSTOMCONV_HALVES
#undef CUSTOMCONV_PRODUCT
#undef CUSTOMCONV_ADD
#undef CUSTOMCONV_SUMS_16
#undef CUSTOMCONV_SUMS_32
#undef CUSTOMCONV_SUMS_64
#undef CUSTOMCONV_SUMS_96
#undef CUSTOMCONV_SUMS_128
#undef CUSTOMCONV_R4
#undef CUSTOMCONV_R16
#undef CUSTOMCONV_R32
#undef CUSTOMCONV_R64
#undef CUSTOMCONV_R96
#undef CUSTOMCONV_R128

}  // namespace customconv::ptx
