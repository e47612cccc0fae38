// Stands in for csrc/kernels/ptx/im2col.cuh.
#pragma once

#include "kernels/ptx/tma.cuh"

namespace customconv::ptx {

inline void tma_load_im2col(void* to, const CUtensorMap* described, Barrier* barrier, int c, int w,
                            int h, int n, int offset_w, int offset_h) {
  const Map map = map_of(described);
  if (map.pixels == 0) emulation::fail("a tensor is not described in im2col mode");
  if (offset_w < 0 || offset_w > 255 || offset_h < 0 || offset_h > 255) {
    emulation::fail("an offset of a copy is out of range");
  }
  const uint32_t address = shared_address(to);
  const int channels = map.box[0] + 1;
  emulation::later([=] {
    const auto last_w = static_cast<int>(map.sizes[1]) - 1 + map.upper[0];
    const auto last_h = static_cast<int>(map.sizes[2]) - 1 + map.upper[1];
    int at_w = w, at_h = h, at_n = n;
    int number = 0;
    for (int pixel = 0; pixel < map.pixels; ++pixel) {
      const int64_t place[] = {0, at_w + offset_w, at_h + offset_h, at_n};
      bool exists = true;
      const char* from = map.data;
      for (int i = 1; i < map.kMostRank; ++i) {
        exists &= place[i] >= 0 && place[i] < map.sizes[i];
        from += place[i] * map.strides[i];
      }
      for (int i = c; i < c + channels; ++i, ++number) {
        const bool is_there = exists && i < map.sizes[0];
        bring(map, is_there ? from + int64_t{i} * map.element_bytes : nullptr, address, number);
      }
      at_w += map.steps[1];
      if (at_w <= last_w) continue;
      at_w = map.lower[0];
      at_h += map.steps[2];
      if (at_h <= last_h) continue;
      at_h = map.lower[1];
      ++at_n;
    }
    count(phase_of(barrier), 0, -number * map.element_bytes);
  });
}

}  // namespace customconv::ptx
