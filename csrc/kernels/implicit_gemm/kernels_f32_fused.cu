#include "kernels/implicit_gemm/tables.cuh"

namespace customconv::implicit_gemm {

template KernelOf<float> kernel_of<float, true>(const Tile&);
template KernelOf<float> reducer_of<float, true>(const Tile&);

}  // namespace customconv::implicit_gemm
