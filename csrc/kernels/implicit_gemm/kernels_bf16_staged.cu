#include "kernels/implicit_gemm/tables.cuh"

namespace customconv::implicit_gemm {

template KernelOf<__nv_bfloat16> kernel_of_staged<__nv_bfloat16>(const Tile&, bool, bool);

}  // namespace customconv::implicit_gemm
