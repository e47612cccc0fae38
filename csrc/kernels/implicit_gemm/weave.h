// The pixels of an input gradient from phases that are stored apart.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/epilogue.h"
#include "kernels/implicit_gemm/forward.h"

namespace customconv::implicit_gemm {

// Weaves the planes of an input gradient, `asked`, from its phases as `problem` stores them.
template <typename T>
void weave_phases(const ConvProblem& asked, const Forward& problem, const T* phases, T* planes,
                  bool early, cudaStream_t stream);

// Spreads joined phases over the pixels of an input gradient: `to`. `y` and `w` are its operands.
// The epilogue is done on the way, but for a residual.
template <typename T>
void spread_joined_phases(const ConvProblem& asked, const Forward& problem, const T* from,
                          const T* y, const T* w, T* to, const Epilogue& epilogue,
                          cudaStream_t stream);

}  // namespace customconv::implicit_gemm
