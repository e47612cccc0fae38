#include "kernels/implicit_gemm/sm90/tables.cuh"

namespace customconv::implicit_gemm::sm90 {

template Kernel kernel_of<__half, false, true>(const Tile&);

}  // namespace customconv::implicit_gemm::sm90
