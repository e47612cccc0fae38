// Values that all threads of a warp have. The compiler keeps them in uniform registers if it sees
// that they are the same, and copies and matrix products take their operands from there: otherwise
// each takes moves to uniform registers, for which it waits.
#pragma once

#include <cstdint>

namespace customconv::ptx {

__device__ inline int uniform(int value) { return __shfl_sync(~0u, value, 0); }

// A descriptor's upper half comes from parameters, as the compiler sees.
__device__ inline uint64_t uniform(uint64_t descriptor) {
  const uint32_t lower = __shfl_sync(~0u, static_cast<uint32_t>(descriptor), 0);
  return (descriptor >> 32 << 32) | lower;
}

}  // namespace customconv::ptx
