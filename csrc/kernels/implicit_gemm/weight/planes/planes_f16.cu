#include "kernels/implicit_gemm/weight/planes/launch.cuh"

namespace customconv::implicit_gemm::weight::planes {

template void launch<__half>(const ConvProblem&, const ConvPlan&, const Operands&,
                             const LaunchContext&);

}  // namespace customconv::implicit_gemm::weight::planes
