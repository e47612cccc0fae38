#include "kernels/implicit_gemm/implicit_gemm.cuh"

namespace customconv::implicit_gemm {

template void launch<float>(const ConvProblem&, const ConvPlan&, const Operands&,
                            const LaunchContext&);

}  // namespace customconv::implicit_gemm
