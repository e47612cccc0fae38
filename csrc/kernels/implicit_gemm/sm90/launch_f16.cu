#include "kernels/implicit_gemm/sm90/launch.cuh"

namespace customconv::implicit_gemm::sm90 {

template void launch<__half>(const ConvProblem&, const ConvPlan&, const Operands&,
                             const LaunchContext&);

}  // namespace customconv::implicit_gemm::sm90
