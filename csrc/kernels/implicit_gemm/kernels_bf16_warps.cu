#include "kernels/implicit_gemm/warp_tables.cuh"

namespace customconv::implicit_gemm {

template KernelOf<__nv_bfloat16> kernel_by_warps<__nv_bfloat16>(const Tile&);

}  // namespace customconv::implicit_gemm
