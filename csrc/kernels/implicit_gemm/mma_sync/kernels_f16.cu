#include "kernels/implicit_gemm/mma_sync/tables.cuh"

namespace customconv::implicit_gemm::mma_sync {

template KernelOf<__half> kernel_of<__half>(const Tile&);
template KernelOf<__half> adder_of<__half>(const Tile&);

}  // namespace customconv::implicit_gemm::mma_sync
