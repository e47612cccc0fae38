// Starts the kernels that lay weights out as matrices.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/implicit_gemm/forward.h"

namespace customconv::implicit_gemm {

template <typename T>
void pack_weight_matrix(const Forward& problem, bool transposed, const PackedWeight& packed,
                        const T* w, T* to, cudaStream_t stream);

// The same for an input gradient, `asked`, whose phases `problem` joins.
template <typename T>
void pack_joined_weight(const ConvProblem& asked, const Forward& problem,
                        const PackedWeight& packed, const T* w, T* to, cudaStream_t stream);

}  // namespace customconv::implicit_gemm
