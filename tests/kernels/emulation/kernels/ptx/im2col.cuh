// Stands in for csrc/kernels/ptx/im2col.cuh.
#pragma once

#include <array>

#include "kernels/ptx/tma.cuh"

namespace customconv::ptx {

// Places and offsets of w, h and, of volumes, d; behind them the image.
template <int kAxes>
void copy_im2col(void* to, const CUtensorMap* described, Barrier* barrier, int c,
                 std::array<int, kAxes + 1> at, const std::array<int, kAxes>& offset) {
  constexpr int kMostOffset = kAxes == 2 ? 255 : 31;
  const Map map = map_of(described);
  if (map.pixels == 0) emulation::fail("a tensor is not described in im2col mode");
  if (map.rank != kAxes + 2) emulation::fail("a copy has another rank than its tensor");
  for (const int each : offset) {
    if (each < 0 || each > kMostOffset) emulation::fail("an offset of a copy is out of range");
  }
  const uint32_t address = shared_address(to);
  const int channels = map.box[0] + 1;
  emulation::later([=]() mutable {
    int number = 0;
    for (int pixel = 0; pixel < map.pixels; ++pixel) {
      bool exists = true;
      const char* from = map.data;
      for (int i = 0; i <= kAxes; ++i) {
        const int64_t place = at[i] + (i < kAxes ? offset[i] : 0);
        exists &= place >= 0 && place < map.sizes[i + 1];
        from += place * map.strides[i + 1];
      }
      for (int i = c; i < c + channels; ++i, ++number) {
        const bool is_there = exists && i < map.sizes[0];
        bring(map, is_there ? from + int64_t{i} * map.element_bytes : nullptr, address, number);
      }
      for (int i = 0; i <= kAxes; ++i) {
        if (i == kAxes) {
          ++at[i];
          break;
        }
        at[i] += map.steps[i + 1];
        if (at[i] <= static_cast<int>(map.sizes[i + 1]) - 1 + map.upper[i]) break;
        at[i] = map.lower[i];
      }
    }
    count(phase_of(barrier), 0, -number * map.element_bytes);
  });
}

inline void tma_load_im2col(void* to, const CUtensorMap* map, Barrier* barrier, int c, int w, int h,
                            int n, int offset_w, int offset_h) {
  copy_im2col<2>(to, map, barrier, c, {w, h, n}, {offset_w, offset_h});
}
inline void tma_load_im2col(void* to, const CUtensorMap* map, Barrier* barrier, int c, int w, int h,
                            int d, int n, int offset_w, int offset_h, int offset_d) {
  copy_im2col<3>(to, map, barrier, c, {w, h, d, n}, {offset_w, offset_h, offset_d});
}

}  // namespace customconv::ptx
