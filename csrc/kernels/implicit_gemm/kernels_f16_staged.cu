#include "kernels/implicit_gemm/tables.cuh"

namespace customconv::implicit_gemm {

template KernelOf<__half> kernel_of_staged<__half>(const Tile&, bool, bool);

}  // namespace customconv::implicit_gemm
