// The main loop's kernels.
#pragma once

#include "kernels/implicit_gemm/sm90/params.h"

namespace customconv::implicit_gemm::sm90 {

using Kernel = void (*)(Params);

// The kernel of a tile, or null; `kFused`: with an epilogue; `kAsStored`: of an input gradient
// whose weights the instruction transposes. Each combination is compiled in a file of its own.
template <typename T, bool kFused, bool kAsStored>
Kernel kernel_of(const Tile& tile);

}  // namespace customconv::implicit_gemm::sm90
