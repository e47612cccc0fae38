#include "kernels/implicit_gemm/mma_sync/tables.cuh"

namespace customconv::implicit_gemm::mma_sync {

template KernelOf<__nv_bfloat16> kernel_of<__nv_bfloat16>(const Tile&);
template KernelOf<__nv_bfloat16> adder_of<__nv_bfloat16>(const Tile&);

}  // namespace customconv::implicit_gemm::mma_sync
