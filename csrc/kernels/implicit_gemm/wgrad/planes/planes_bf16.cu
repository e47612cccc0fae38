#include "kernels/implicit_gemm/wgrad/planes/launch.cuh"

namespace customconv::implicit_gemm::wgrad::planes {

template void launch<__nv_bfloat16>(const ConvProblem&, const ConvPlan&, const Operands&,
                                    const LaunchContext&);

}  // namespace customconv::implicit_gemm::wgrad::planes
