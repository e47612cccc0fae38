// How often blocks wait for what is not memory.
#pragma once

#include <algorithm>

#include "plan/hardware.h"

namespace customconv {

// Waits of a block whose warps issue so many instructions each, where a multiprocessor has too few
// warps.
inline double lone_waits(double instructions, double warps) {
  return std::max(1 - warps / hardware::kSteadyWarps, 0.0) * instructions /
         hardware::kLoneInstructions;
}

// Waits of a block that goes so often through so many instructions of unrolled code.
inline double fetch_waits(double instructions, double times) {
  const bool stay = instructions <= hardware::kKeptInstructions;
  return instructions * (stay ? 1 : times) / hardware::kFetchedInstructions;
}

}  // namespace customconv
