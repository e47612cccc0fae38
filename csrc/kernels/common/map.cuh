// Descriptions of tensors for the copy engine (ptx/tma.cuh).
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

// A tensor of kRank dimensions, innermost first, in boxes. `steps` count elements between those
// that are taken.
template <int kRank>
struct Boxes {
  cuuint64_t sizes[kRank];
  cuuint64_t strides[kRank - 1];  // bytes
  cuuint32_t box[kRank];
  cuuint32_t steps[kRank];
};

template <int kRank>
CUtensorMap make_map(const void* data, CUtensorMapDataType type, const Boxes<kRank>& boxes,
                     CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &found),
               "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  CUtensorMap map;
  const auto encode_map = [&] {
    return encode(&map, type, kRank, const_cast<void*>(data), boxes.sizes, boxes.strides, boxes.box,
                  boxes.steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult status = encode_map();
  if (status == CUDA_ERROR_INVALID_CONTEXT) {
    // A thread, autograd's for one, that has used the device through caches alone has no context.
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
    status = encode_map();
  }
  if (status != CUDA_SUCCESS) {
    throw std::runtime_error("customconv: no tensor map (CUDA error " +
                             std::to_string(static_cast<int>(status)) + ")");
  }
  return map;
}

// The stride of a dimension in bytes. A dimension of one may have any; the map wants a legal one.
template <typename T>
cuuint64_t map_stride(int64_t size, int64_t stride) {
  return static_cast<cuuint64_t>(size > 1 ? stride * static_cast<int64_t>(sizeof(T)) : 16);
}

}  // namespace customconv
