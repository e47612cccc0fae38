#include "kernels/implicit_gemm/mma_sync/tables.cuh"

namespace customconv::implicit_gemm::mma_sync {

template KernelOf<float> kernel_of<float>(const Tile&);
template KernelOf<float> adder_of<float>(const Tile&);

}  // namespace customconv::implicit_gemm::mma_sync
