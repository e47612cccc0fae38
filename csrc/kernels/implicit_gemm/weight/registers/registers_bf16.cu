#include "kernels/implicit_gemm/weight/registers/launch.cuh"

namespace customconv::implicit_gemm::weight::registers {

template void launch<__nv_bfloat16>(const ConvProblem&, const ConvPlan&, const Operands&,
                                    const LaunchContext&);

}  // namespace customconv::implicit_gemm::weight::registers
