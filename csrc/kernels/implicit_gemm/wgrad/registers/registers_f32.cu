#include "kernels/implicit_gemm/wgrad/registers/launch.cuh"

namespace customconv::implicit_gemm::wgrad::registers {

template void launch<float>(const ConvProblem&, const ConvPlan&, const Operands&,
                            const LaunchContext&);

}  // namespace customconv::implicit_gemm::wgrad::registers
