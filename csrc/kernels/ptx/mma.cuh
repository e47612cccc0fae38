// Matrix products of a warp (mma.sync): d += a b, operands in registers, sums in float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace customconv::ptx {

// Products of 16 rows by 8 columns, over 32 bytes of both. A lane holds four bytes of rows lane / 4
// and lane / 4 + 8 of `a`, at lane % 4 * 4, then the same 16 bytes further on; likewise of column
// lane / 4 of `b`. Its sums are columns lane % 4 * 2 and the next, of both rows.
#define CUSTOMCONV_MULTIPLY_ADD(T, instruction)                                         \
  template <>                                                                           \
  __device__ inline void multiply_add<T>(float* d, const uint32_t (&a)[4], uint32_t b0, \
                                         uint32_t b1) {                                 \
    asm volatile("mma.sync.aligned." instruction                                        \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"     \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));       \
  }

template <typename T>
__device__ inline void multiply_add(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
CUSTOMCONV_MULTIPLY_ADD(__half, "m16n8k16.row.col.f32.f16.f16.f32")
CUSTOMCONV_MULTIPLY_ADD(__nv_bfloat16, "m16n8k16.row.col.f32.bf16.bf16.f32")
CUSTOMCONV_MULTIPLY_ADD(float, "m16n8k8.row.col.f32.tf32.tf32.f32")

#undef CUSTOMCONV_MULTIPLY_ADD

// The same over 16 bytes.
#define CUSTOMCONV_MULTIPLY_ADD(T, instruction)                                          \
  template <>                                                                            \
  __device__ inline void multiply_add<T>(float* d, const uint32_t (&a)[2], uint32_t b) { \
    asm volatile("mma.sync.aligned." instruction                                         \
                 " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"                  \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                        \
                 : "r"(a[0]), "r"(a[1]), "r"(b));                                        \
  }

template <typename T>
__device__ inline void multiply_add(float* d, const uint32_t (&a)[2], uint32_t b);
CUSTOMCONV_MULTIPLY_ADD(__half, "m16n8k8.row.col.f32.f16.f16.f32")
CUSTOMCONV_MULTIPLY_ADD(__nv_bfloat16, "m16n8k8.row.col.f32.bf16.bf16.f32")
CUSTOMCONV_MULTIPLY_ADD(float, "m16n8k4.row.col.f32.tf32.tf32.f32")

#undef CUSTOMCONV_MULTIPLY_ADD

}  // namespace customconv::ptx
