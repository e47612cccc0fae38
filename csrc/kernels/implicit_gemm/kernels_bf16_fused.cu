#include "kernels/implicit_gemm/tables.cuh"

namespace customconv::implicit_gemm {

template KernelOf<__nv_bfloat16> kernel_of<__nv_bfloat16, true>(const Tile&);
template KernelOf<__nv_bfloat16> reducer_of<__nv_bfloat16, true>(const Tile&);

}  // namespace customconv::implicit_gemm
