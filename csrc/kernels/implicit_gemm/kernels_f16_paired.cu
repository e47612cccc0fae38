#include "kernels/implicit_gemm/tables.cuh"

namespace customconv::implicit_gemm {

template KernelOf<__half> kernel_of_paired<__half>(const Tile&);

}  // namespace customconv::implicit_gemm
