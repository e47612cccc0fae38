// What launchers ask of CUDA's runtime and driver, beside launches.
#include <cstring>

#include "kernels/ptx/tma.cuh"

namespace {

using customconv::ptx::Map;

// Fills in what both modes have; false where it is not legal.
bool describe(Map& map, CUtensorMapDataType type, cuuint32_t rank, void* data,
              const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* steps,
              CUtensorMapSwizzle swizzle) {
  map = {};
  map.data = static_cast<char*>(data);
  map.rank = static_cast<uint8_t>(rank);
  map.rounds = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
  map.element_bytes = map.rounds || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
  map.swizzle = swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? 128
                : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                : swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 32
                                                       : 0;
  bool legal = reinterpret_cast<uintptr_t>(data) % 16 == 0 && rank <= Map::kMostRank;
  for (cuuint32_t i = 0; legal && i < rank; ++i) {
    map.sizes[i] = static_cast<int64_t>(sizes[i]);
    map.strides[i] = i > 0 ? static_cast<int64_t>(strides[i - 1]) : map.element_bytes;
    map.steps[i] = static_cast<uint8_t>(steps[i]);
    legal = sizes[i] > 0 && steps[i] > 0 && steps[i] <= 8 && (i == 0 || map.strides[i] % 16 == 0);
  }
  return legal;
}

// Whether a box's row may have so many elements.
bool is_row(const Map& map, cuuint32_t elements) {
  const auto bytes = static_cast<int>(elements) * map.element_bytes;
  return elements > 0 && elements <= 256 && bytes % 16 == 0 &&
         (map.swizzle == 0 || bytes == map.swizzle);
}

CUresult written(const Map& map, CUtensorMap* described) {
  *described = {};
  std::memcpy(described, &map, sizeof(map));
  return CUDA_SUCCESS;
}

// As cuTensorMapEncodeTiled, of what launchers ask it for.
CUresult encode(CUtensorMap* described, CUtensorMapDataType type, cuuint32_t rank, void* data,
                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  Map map;
  bool legal = describe(map, type, rank, data, sizes, strides, steps, swizzle);
  legal = legal && is_row(map, box[0]);
  for (cuuint32_t i = 0; legal && i < rank; ++i) {
    map.box[i] = static_cast<uint8_t>(box[i] - 1);
    legal = box[i] > 0 && box[i] <= 256;
  }
  return legal ? written(map, described) : CUDA_ERROR_INVALID_VALUE;
}

// As cuTensorMapEncodeIm2col, of four dimensions or five.
CUresult encode_im2col(CUtensorMap* described, CUtensorMapDataType type, cuuint32_t rank,
                       void* data, const cuuint64_t* sizes, const cuuint64_t* strides,
                       const int* lower, const int* upper, cuuint32_t channels, cuuint32_t pixels,
                       const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  Map map;
  bool legal =
      (rank == 4 || rank == 5) && describe(map, type, rank, data, sizes, strides, steps, swizzle);
  legal = legal && is_row(map, channels) && pixels > 0 && pixels <= 1024;
  const int corner = rank == 4 ? 127 : 15;
  for (cuuint32_t i = 0; legal && i < rank - 2; ++i) {
    legal = std::min(lower[i], upper[i]) >= -corner - 1 && std::max(lower[i], upper[i]) <= corner;
    map.lower[i] = static_cast<int16_t>(lower[i]);
    map.upper[i] = static_cast<int16_t>(upper[i]);
  }
  map.box[0] = static_cast<uint8_t>(channels - 1);
  map.pixels = static_cast<uint16_t>(pixels);
  return legal ? written(map, described) : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int,
                                             unsigned long long, cudaDriverEntryPointQueryResult*) {
  const bool im2col = std::strcmp(name, "cuTensorMapEncodeIm2col") == 0;
  *function = im2col ? reinterpret_cast<void*>(&encode_im2col) : reinterpret_cast<void*>(&encode);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the emulation"; }

}  // extern "C"
