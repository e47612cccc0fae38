// The kernel that adds up parts of sums (parts.cuh): its launch and its work. Plain C++.
#pragma once

#include <cstdint>

#include "plan/device.h"
#include "plan/work.h"

namespace customconv {

constexpr int kPartThreads = 256;  // of a block
// How many threads share a sum of so many parts.
constexpr int sharers_of(int64_t parts) { return parts <= 16 ? 1 : parts <= 64 ? 8 : 32; }

// The work of adding up `count` sums of so many parts each.
Work adding_up(int64_t count, int64_t parts, const DeviceProperties& device);

}  // namespace customconv
