// Counts of what computed convolutions in this process, for customconv.stats().
#pragma once

#include <array>
#include <cstdint>

#include "plan/plan.h"
#include "torch/fallback.h"

namespace customconv::torch_layer {

constexpr size_t kPassCount = 3;
constexpr size_t kFamilyCount = static_cast<size_t>(FamilyId::kAten);
constexpr size_t kFallbackCount = static_cast<size_t>(Fallback::kCount);

struct Stats {
  std::array<std::array<uint64_t, kFamilyCount>, kPassCount> calls{};
  std::array<uint64_t, kFallbackCount> fallbacks{};
};

// An increment without a lock, from any thread. `pass` is the operator's: a transposed
// convolution's output counts as fprop, although its kernels are those of a dgrad.
void count(Pass pass, FamilyId family);
void count(Fallback reason);

// The counts since the process began or since they were reset.
Stats read_stats(bool reset);

}  // namespace customconv::torch_layer
