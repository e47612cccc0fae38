#include "kernels/implicit_gemm/mma_sync/launch.cuh"

namespace customconv::implicit_gemm::mma_sync {

template void launch<__half>(const ConvProblem&, const ConvPlan&, const Operands&,
                             const LaunchContext&);

}  // namespace customconv::implicit_gemm::mma_sync
