#include "kernels/implicit_gemm/sm90/tables.cuh"

namespace customconv::implicit_gemm::sm90 {

template Kernel kernel_of<__nv_bfloat16, false, false>(const Tile&);

}  // namespace customconv::implicit_gemm::sm90
