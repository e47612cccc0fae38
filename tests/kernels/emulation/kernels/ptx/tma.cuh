// Stands in for csrc/kernels/ptx/tma.cuh; driver.cpp makes the descriptions.
#pragma once

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::ptx {

// What a CUtensorMap holds.
struct Map {
  static constexpr int kMostRank = 5;
  char* data;
  uint8_t rank, element_bytes;
  uint8_t swizzle;  // bytes
  bool rounds;
  int64_t sizes[kMostRank], strides[kMostRank];  // bytes
  uint8_t box[kMostRank], steps[kMostRank];      // of the box, less one
  // The corners of what im2col mode traverses, in columns and in rows.
  int16_t lower[3], upper[3];
  uint16_t pixels;
};
static_assert(sizeof(Map) <= sizeof(CUtensorMap));

inline Map map_of(const CUtensorMap* described) {
  Map map;
  std::memcpy(&map, described, sizeof(map));
  return map;
}
inline void prefetch_tma_descriptor(const CUtensorMap*) {}

// Where an element of a box, or of another copy, is in shared memory: the `number`-th.
inline char* element_at(const Map& map, uint32_t address, int number) {
  const auto offset = static_cast<uint32_t>(number * map.element_bytes);
  return emulation::at(swizzled(address + offset, map.swizzle));
}
// Brings it there, or a zero where there is none.
inline void bring(const Map& map, const char* from, uint32_t address, int number) {
  uint32_t element = 0;
  if (from != nullptr) std::memcpy(&element, from, map.element_bytes);
  if (map.rounds) element = round_tf32(element);
  std::memcpy(element_at(map, address, number), &element, map.element_bytes);
}

// Calls `move` with each element of a box, which is null outside the tensor, and its number.
// Returns how many there are.
template <typename Move>
int each_in_box(const Map& map, const std::vector<int>& first, const Move& move) {
  int place[Map::kMostRank] = {}, number = 0;
  for (bool more = true; more; ++number) {
    bool exists = true;
    int64_t offset = 0;
    for (int i = 0; i < map.rank; ++i) {
      const int64_t at = first[static_cast<size_t>(i)] + int64_t{place[i]};
      exists &= at >= 0 && at < map.sizes[i];
      offset += at * map.strides[i];
    }
    move(exists ? map.data + offset : nullptr, number);
    more = false;
    for (int i = 0; i < map.rank && !more; ++i) {
      place[i] += map.steps[i];
      more = place[i] <= map.box[i];
      if (!more) place[i] = 0;
    }
  }
  return number;
}

template <int kRank>
void copy_box_at(void* to, const CUtensorMap* described, Barrier* barrier,
                 const int (&first)[kRank]) {
  const Map map = map_of(described);
  if (map.rank != kRank) emulation::fail("a box has another rank than its tensor");
  if (first[0] * map.element_bytes % 16 != 0) emulation::fail("a box begins within 16 bytes");
  const uint32_t address = shared_address(to);
  if (address % 128 != 0) emulation::fail("a box's memory is misaligned");
  const std::vector<int> begin(first, first + kRank);
  emulation::later([=] {
    const int copied = each_in_box(
        map, begin, [&](const char* from, int number) { bring(map, from, address, number); });
    count(phase_of(barrier), 0, -copied * map.element_bytes);
  });
}

inline void tma_load(void* to, const CUtensorMap* map, Barrier* barrier, int c0, int c1, int c2) {
  copy_box_at(to, map, barrier, {c0, c1, c2});
}
inline void tma_load(void* to, const CUtensorMap* map, Barrier* barrier, int c0, int c1, int c2,
                     int c3) {
  copy_box_at(to, map, barrier, {c0, c1, c2, c3});
}

// Stores happen at once.
inline void tma_store(const CUtensorMap* described, const void* from, int c0, int c1, int c2,
                      int c3) {
  const Map map = map_of(described);
  const uint32_t address = shared_address(from);
  each_in_box(map, {c0, c1, c2, c3}, [&](char* to, int number) {
    if (to != nullptr) std::memcpy(to, element_at(map, address, number), map.element_bytes);
  });
}
inline void tma_store_arrive() {}
inline void tma_store_wait() {}

inline void bulk_load(void* to, const void* from, int bytes, Barrier* barrier) {
  emulation::later([=] {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    count(phase_of(barrier), 0, -bytes);
  });
}

}  // namespace customconv::ptx
