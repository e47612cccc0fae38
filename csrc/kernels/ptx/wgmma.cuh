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

// Rows from `address` on, in groups of eight that are `group_bytes` apart.
__device__ inline uint64_t describe_rows(uint32_t address, uint32_t group_bytes) {
  constexpr uint64_t kSwizzle128 = 1ull << 62;
  constexpr uint64_t kUnused = 1ull << 16;
  return kSwizzle128 | kUnused | (static_cast<uint64_t>(group_bytes >> 4) << 32) |
         ((address & 0x3FFFF) >> 4);
}

__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most so many committed groups are under way.
template <int kPending>
__device__ inline void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define CUSTOMCONV_R4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define CUSTOMCONV_R16(d, i) \
  CUSTOMCONV_R4(d, i), CUSTOMCONV_R4(d, i + 4), CUSTOMCONV_R4(d, i + 8), CUSTOMCONV_R4(d, i + 12)
#define CUSTOMCONV_R32(d, i) CUSTOMCONV_R16(d, i), CUSTOMCONV_R16(d, i + 16)
#define CUSTOMCONV_R64(d, i) CUSTOMCONV_R32(d, i), CUSTOMCONV_R32(d, i + 32)

// Products of 64 rows by kColumns, over 32 bytes of both; `accumulate` 0 starts a sum.
template <typename T, int kColumns>
struct Product;

template <>
struct Product<__half, 32> {
  static __device__ void add(float (&d)[16], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, p, 1, 1, 0, 0; }"
        : CUSTOMCONV_R16(d, 0)
        : "l"(a), "l"(b), "r"(accumulate));
  }
};
template <>
struct Product<__nv_bfloat16, 32> {
  static __device__ void add(float (&d)[16], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, p, 1, 1, 0, 0; }"
        : CUSTOMCONV_R16(d, 0)
        : "l"(a), "l"(b), "r"(accumulate));
  }
};
template <>
struct Product<float, 32> {
  static __device__ void add(float (&d)[16], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, p, 1, 1; }"
        : CUSTOMCONV_R16(d, 0)
        : "l"(a), "l"(b), "r"(accumulate));
  }
};
template <>
struct Product<__half, 64> {
  static __device__ void add(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 0, 0; }"
        : CUSTOMCONV_R32(d, 0)
        : "l"(a), "l"(b), "r"(accumulate));
  }
};
template <>
struct Product<__nv_bfloat16, 64> {
  static __device__ void add(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 0, 0; }"
        : CUSTOMCONV_R32(d, 0)
        : "l"(a), "l"(b), "r"(accumulate));
  }
};
template <>
struct Product<float, 64> {
  static __device__ void add(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1; }"
        : CUSTOMCONV_R32(d, 0)
        : "l"(a), "l"(b), "r"(accumulate));
  }
};
template <>
struct Product<__half, 128> {
  static __device__ void add(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0; }"
        : CUSTOMCONV_R64(d, 0)
        : "l"(a), "l"(b), "r"(accumulate));
  }
};
template <>
struct Product<__nv_bfloat16, 128> {
  static __device__ void add(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0; }"
        : CUSTOMCONV_R64(d, 0)
        : "l"(a), "l"(b), "r"(accumulate));
  }
};
template <>
struct Product<float, 128> {
  static __device__ void add(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1; }"
        : CUSTOMCONV_R64(d, 0)
        : "l"(a), "l"(b), "r"(accumulate));
  }
};

#undef CUSTOMCONV_R4
#undef CUSTOMCONV_R16
#undef CUSTOMCONV_R32
#undef CUSTOMCONV_R64

}  // namespace customconv::ptx
