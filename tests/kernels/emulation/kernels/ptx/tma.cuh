// Stands in for csrc/kernels/ptx/tma.cuh; driver.cpp makes the descriptions.
#pragma once

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::ptx {

// What a CUtensorMap holds.
struct Map {
  static constexpr int kMostRank = 4;
  char* data;
  uint8_t rank, element_bytes;
  uint8_t swizzle;  // bytes
  bool rounds;
  int64_t sizes[kMostRank], strides[kMostRank];  // bytes
  uint8_t box[kMostRank], steps[kMostRank];      // of the box, less one
  // Of im2col mode: the corners of what is traversed, in columns and in rows.
  int16_t lower[2], upper[2];
  uint16_t pixels;
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
  if (address % (map.swizzle > 0 ? 1024 : 128) != 0)
    emulation::fail("a box's memory is misaligned");
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
      std::memcpy(emulation::at(swizzled(own, map.swizzle)), &element, map.element_bytes);
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

// Stores happen at once.
inline void store_box(const CUtensorMap* described, const void* from, int c0, int c1, int c2,
                      int c3) {
  Map map;
  std::memcpy(&map, described, sizeof(map));
  const uint32_t address = shared_address(from);
  const int first[] = {c0, c1, c2, c3};
  int place[4] = {}, stored = 0;
  for (bool more = true; more; ++stored) {
    bool exists = true;
    int64_t to = 0;
    for (int i = 0; i < map.rank; ++i) {
      const int64_t at = first[i] + int64_t{place[i]};
      exists &= at >= 0 && at < map.sizes[i];
      to += at * map.strides[i];
    }
    const uint32_t own = address + static_cast<uint32_t>(stored * map.element_bytes);
    if (exists) {
      std::memcpy(map.data + to, emulation::at(swizzled(own, map.swizzle)), map.element_bytes);
    }
    more = false;
    for (int i = 0; i < map.rank && !more; ++i) {
      more = ++place[i] <= map.box[i];
      if (!more) place[i] = 0;
    }
  }
}
inline void commit_stores() {}
inline void await_store_reads() {}

inline void copy_bytes(void* to, const void* from, int bytes, Barrier* barrier) {
  emulation::later([=] {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    count(phase_of(barrier), 0, -bytes);
  });
}

}  // namespace customconv::ptx
