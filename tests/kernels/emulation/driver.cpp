// What launchers ask of CUDA's runtime and driver, beside launches.
#include "kernels/ptx/tma.cuh"

namespace {

// As cuTensorMapEncodeTiled, of what launchers ask it for.
CUresult encode(CUtensorMap* described, CUtensorMapDataType type, cuuint32_t rank, void* data,
                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  customconv::ptx::Map map{};
  map.data = static_cast<const char*>(data);
  map.rank = static_cast<int>(rank);
  map.rounds = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
  map.element_bytes = map.rounds ? 4 : 2;
  map.swizzled = swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
  bool legal = reinterpret_cast<uintptr_t>(data) % 16 == 0 && map.rank <= map.kMostRank;
  for (int i = 0; legal && i < map.rank; ++i) {
    map.sizes[i] = static_cast<int64_t>(sizes[i]);
    map.strides[i] = i > 0 ? static_cast<int64_t>(strides[i - 1]) : map.element_bytes;
    map.box[i] = static_cast<uint8_t>(box[i] - 1);
    map.steps[i] = static_cast<uint8_t>(steps[i]);
    legal = sizes[i] > 0 && box[i] > 0 && box[i] <= 256 && steps[i] > 0 && steps[i] <= 8 &&
            (i == 0 || map.strides[i] % 16 == 0);
  }
  const auto row = static_cast<int>(box[0]) * map.element_bytes;
  if (!legal || row % 16 != 0 || (map.swizzled && row != 128)) return CUDA_ERROR_INVALID_VALUE;
  *described = {};
  std::memcpy(described, &map, sizeof(map));
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned int,
                                             unsigned long long, cudaDriverEntryPointQueryResult*) {
  *function = reinterpret_cast<void*>(&encode);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the emulation"; }

}  // extern "C"
