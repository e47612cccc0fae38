// Descriptions of tensors for TMA (ptx/tma.cuh).
#pragma once

#include <cuda.h>

#include <stdexcept>
#include <string>

#include "kernels/common/check.h"
#include "kernels/common/scalar.cuh"

namespace customconv {

template <typename T>
constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
template <>
inline constexpr CUtensorMapDataType kMapType<__nv_bfloat16> = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
// Rounded to TF32 on the way.
template <>
inline constexpr CUtensorMapDataType kMapType<float> = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
// Not rounded.
template <typename T>
constexpr CUtensorMapDataType kExactMapType =
    sizeof(T) == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : kMapType<T>;

// A tensor of kRank dimensions, innermost first, in boxes. `steps` count elements between those
// that are taken.
template <int kRank>
struct Boxes {
  cuuint64_t sizes[kRank];
  cuuint64_t strides[kRank - 1];  // bytes
  cuuint32_t box[kRank];
  cuuint32_t steps[kRank];
};

// Finds a function of the driver.
template <typename Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  check_cuda(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found),
             name);
  return reinterpret_cast<Function>(function);
}

// The map that `encode` fills in.
template <typename Encode>
CUtensorMap encoded_map(Encode encode) {
  CUtensorMap map;
  CUresult status = encode(&map);
  if (status == CUDA_ERROR_INVALID_CONTEXT) {
    // A thread, autograd's for one, that has used the device through caches alone has no context.
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
    status = encode(&map);
  }
  if (status != CUDA_SUCCESS) {
    throw std::runtime_error("customconv: no tensor map (CUDA error " +
                             std::to_string(static_cast<int>(status)) + ")");
  }
  return map;
}

template <int kRank>
CUtensorMap make_map(const void* data, CUtensorMapDataType type, const Boxes<kRank>& boxes,
                     CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  static const auto encode =
      driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  return encoded_map([&](CUtensorMap* map) {
    return encode(map, type, kRank, const_cast<void*>(data), boxes.sizes, boxes.strides, boxes.box,
                  boxes.steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  });
}

// What a copy in im2col mode takes of a tensor (N, H, W, C), or (N, D, H, W, C): along w, h and d,
// corners of the box that it traverses, from the first and the last pixel of an image, and steps
// from one pixel that is met to the next.
struct Im2colBox {
  int lower[3], upper[3], steps[3];
  int channels, pixels;  // of a copy
};

// `sizes` and `strides` (bytes) innermost first.
template <int kRank>
CUtensorMap make_im2col_map(const void* data, CUtensorMapDataType type,
                            const cuuint64_t (&sizes)[kRank],
                            const cuuint64_t (&strides)[kRank - 1], const Im2colBox& box,
                            CUtensorMapSwizzle swizzle) {
  static const auto encode =
      driver_function<decltype(&cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
  cuuint32_t steps[kRank] = {1};
  for (int i = 0; i < kRank - 2; ++i) steps[1 + i] = static_cast<cuuint32_t>(box.steps[i]);
  steps[kRank - 1] = 1;
  return encoded_map([&](CUtensorMap* map) {
    return encode(map, type, kRank, const_cast<void*>(data), sizes, strides, box.lower, box.upper,
                  static_cast<cuuint32_t>(box.channels), static_cast<cuuint32_t>(box.pixels), steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  });
}

// The stride of a dimension in bytes. A dimension of one may have any; the map wants a legal one.
template <typename T>
cuuint64_t map_stride(int64_t size, int64_t stride) {
  return static_cast<cuuint64_t>(size > 1 ? stride * static_cast<int64_t>(sizeof(T)) : 16);
}

}  // namespace customconv
