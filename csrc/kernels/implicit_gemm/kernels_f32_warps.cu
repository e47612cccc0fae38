#include "kernels/implicit_gemm/warp_tables.cuh"

namespace customconv::implicit_gemm {

template KernelOf<float> kernel_by_warps<float>(const Tile&);

}  // namespace customconv::implicit_gemm
