// Stands in for csrc/kernels/ptx/tma.cuh; driver.cpp makes the descriptions.
#pragma once

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::ptx {

// What a CUtensorMap holds.
struct Map {
  static constexpr int kMostRank = 4;
  const char* data;
  int rank, element_bytes;
  bool rounds, swizzled;
  int64_t sizes[kMostRank], strides[kMostRank];  // bytes
  uint8_t box[kMostRank], steps[kMostRank];      // of the box, less one
};
static_assert(sizeof(Map) <= sizeof(CUtensorMap));

inline void prefetch_map(const CUtensorMap*) {}

template <int kRank>
void copy_box_at(void* to, const CUtensorMap* described, Barrier* barrier,
                 const int (&first)[kRank]) {
  Map map;
  std::memcpy(&map, described, sizeof(map));
  if (map.rank != kRank) emulation::fail("a box has another rank than its tensor");
  if (first[0] * map.element_bytes % 16 != 0) emulation::fail("a box begins within 16 bytes");
  const uint32_t address = shared_address(to);
  if (address % (map.swizzled ? 1024 : 128) != 0) emulation::fail("a box's memory is misaligned");
  const std::vector<int> begin(first, first + kRank);
  emulation::later([=] {
    int place[kRank] = {}, copied = 0;
    for (bool more = true; more; ++copied) {
      bool exists = true;
      int64_t from = 0;
      for (int i = 0; i < kRank; ++i) {
        const int64_t at = begin[static_cast<size_t>(i)] + int64_t{place[i]};
        exists &= at >= 0 && at < map.sizes[i];
        from += at * map.strides[i];
      }
      uint32_t element = 0;
      if (exists) std::memcpy(&element, map.data + from, static_cast<size_t>(map.element_bytes));
      if (map.rounds) element = round_tf32(element);
      const uint32_t own = address + static_cast<uint32_t>(copied * map.element_bytes);
      std::memcpy(emulation::at(map.swizzled ? swizzled(own) : own), &element,
                  static_cast<size_t>(map.element_bytes));
      more = false;
      for (int i = 0; i < kRank && !more; ++i) {
        place[i] += map.steps[i];
        more = place[i] <= map.box[i];
        if (!more) place[i] = 0;
      }
    }
    count(phase_of(barrier), 0, -copied * map.element_bytes);
  });
}

inline void copy_box(void* to, const CUtensorMap* map, Barrier* barrier, int c0, int c1, int c2) {
  copy_box_at(to, map, barrier, {c0, c1, c2});
}
inline void copy_box(void* to, const CUtensorMap* map, Barrier* barrier, int c0, int c1, int c2,
                     int c3) {
  copy_box_at(to, map, barrier, {c0, c1, c2, c3});
}

inline void copy_bytes(void* to, const void* from, int bytes, Barrier* barrier) {
  emulation::later([=] {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    count(phase_of(barrier), 0, -bytes);
  });
}

}  // namespace customconv::ptx
