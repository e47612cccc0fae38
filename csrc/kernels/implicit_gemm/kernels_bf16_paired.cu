#include "kernels/implicit_gemm/tables.cuh"

namespace customconv::implicit_gemm {

template KernelOf<__nv_bfloat16> kernel_of_paired<__nv_bfloat16>(const Tile&);

}  // namespace customconv::implicit_gemm
