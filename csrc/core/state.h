// What is switched on in this process, and what computed its convolutions.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/fallback.h"
#include "plan/plan.h"

namespace customconv {

// A context is open in all threads. Each switch is on while more were begun than ended.
struct Switches {
  std::atomic<int64_t> open_routings{0};
  std::atomic<bool> batch_invariant{false};  // of the whole process, besides the contexts
  std::atomic<int64_t> open_batch_invariances{0};

  bool routes() const { return open_routings.load(std::memory_order_relaxed) > 0; }
  bool wants_batch_invariance() const {
    return batch_invariant.load(std::memory_order_relaxed) ||
           open_batch_invariances.load(std::memory_order_relaxed) > 0;
  }
};

constexpr size_t kPassCount = 3;
constexpr size_t kFamilyCount = static_cast<size_t>(FamilyId::kAten);
constexpr size_t kFallbackCount = static_cast<size_t>(Fallback::kCount);

// Since the process began or since they were reset. `calls` are by the operator's pass: a
// transposed convolution's output counts as fprop, although its kernels are those of a dgrad.
struct Counters {
  using Counter = std::atomic<uint64_t>;

  std::array<std::array<Counter, kFamilyCount>, kPassCount> calls{};
  std::array<Counter, kFallbackCount> fallbacks{};

  // Increments without a lock, from any thread.
  void count(Pass pass, FamilyId family) {
    calls[static_cast<size_t>(pass)][static_cast<size_t>(family)].fetch_add(
        1, std::memory_order_relaxed);
  }
  void count(Fallback reason) {
    fallbacks[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }
};

// Those of the process.
Switches& switches();
Counters& counters();

}  // namespace customconv
