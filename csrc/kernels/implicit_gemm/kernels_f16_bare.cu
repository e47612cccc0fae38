#include "kernels/implicit_gemm/tables.cuh"

namespace customconv::implicit_gemm {

template KernelOf<__half> kernel_of<__half, false>(const Tile&);
template KernelOf<__half> reducer_of<__half, false>(const Tile&);

}  // namespace customconv::implicit_gemm
