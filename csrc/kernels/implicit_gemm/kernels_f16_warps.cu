#include "kernels/implicit_gemm/warp_tables.cuh"

namespace customconv::implicit_gemm {

template KernelOf<__half> kernel_by_warps<__half>(const Tile&);

}  // namespace customconv::implicit_gemm
