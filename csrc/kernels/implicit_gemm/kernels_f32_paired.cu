#include "kernels/implicit_gemm/tables.cuh"

namespace customconv::implicit_gemm {

template KernelOf<float> kernel_of_paired<float>(const Tile&);

}  // namespace customconv::implicit_gemm
