// Stands in for csrc/kernels/common/map.cuh: what it asks of the driver's maps, and no driver.
#pragma once

#include <stdexcept>

#include "kernels/common/scalar.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv {

template <typename T>
constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
template <>
inline constexpr CUtensorMapDataType kMapType<__nv_bfloat16> = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
template <>
inline constexpr CUtensorMapDataType kMapType<float> = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;

template <int kRank>
struct Boxes {
  cuuint64_t sizes[kRank];
  cuuint64_t strides[kRank - 1];
  cuuint32_t box[kRank];
  cuuint32_t steps[kRank];
};

template <int kRank>
CUtensorMap make_map(const void* data, CUtensorMapDataType type, const Boxes<kRank>& boxes,
                     CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  ptx::Map map{};
  map.data = static_cast<const char*>(data);
  map.rank = kRank;
  map.rounds = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
  map.element_bytes = map.rounds ? 4 : 2;
  map.swizzled = swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
  bool legal = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  for (int i = 0; i < kRank; ++i) {
    map.sizes[i] = static_cast<int64_t>(boxes.sizes[i]);
    map.strides[i] = i > 0 ? static_cast<int64_t>(boxes.strides[i - 1]) : map.element_bytes;
    map.box[i] = static_cast<uint8_t>(boxes.box[i] - 1);
    map.steps[i] = static_cast<uint8_t>(boxes.steps[i]);
    legal = legal && boxes.sizes[i] > 0 && boxes.box[i] > 0 && boxes.box[i] <= 256 &&
            boxes.steps[i] > 0 && boxes.steps[i] <= 8 && (i == 0 || map.strides[i] % 16 == 0);
  }
  const auto row = static_cast<int>(boxes.box[0]) * map.element_bytes;
  if (!legal || row % 16 != 0 || (map.swizzled && row != 128)) {
    throw std::runtime_error("no such tensor map");
  }
  CUtensorMap described{};
  std::memcpy(&described, &map, sizeof(map));
  return described;
}

template <typename T>
cuuint64_t map_stride(int64_t size, int64_t stride) {
  return static_cast<cuuint64_t>(size > 1 ? stride * static_cast<int64_t>(sizeof(T)) : 16);
}

}  // namespace customconv
