// Stands in for csrc/kernels/ptx/copy.cuh. Copies happen when their thread awaits them, as late as
// can be.
#pragma once

#include "kernels/ptx/barrier.cuh"

namespace customconv::ptx {

template <int kBytes>
void copy_async(uint32_t to, const void* from, bool exists) {
  if (to % kBytes != 0 || (exists && reinterpret_cast<uintptr_t>(from) % kBytes != 0)) {
    emulation::fail("a copy is misaligned");
  }
  emulation::here().copies.back().push_back([=] {
    if (exists) {
      std::memcpy(emulation::at(to), from, kBytes);
    } else {
      std::memset(emulation::at(to), 0, kBytes);
    }
  });
}

inline void commit_copies() { emulation::here().copies.emplace_back(); }

// All groups of copies but so many.
inline void complete(std::deque<emulation::Copies>& groups, size_t left) {
  for (; groups.size() > left; groups.pop_front()) {
    for (const auto& copy : groups.front()) copy();
  }
}
template <int kLeft>
void await_groups() {
  complete(emulation::here().copies, kLeft + 1);  // the last is not committed
}
inline void await_copies() {
  complete(emulation::here().copies, 0);
  commit_copies();
}

inline void arrive_after_copies(Barrier* barrier) {
  emulation::later([barrier, groups = std::move(emulation::here().copies)]() mutable {
    complete(groups, 0);
    arrive(barrier);
  });
  emulation::here().copies = std::deque<emulation::Copies>(1);
}

}  // namespace customconv::ptx
