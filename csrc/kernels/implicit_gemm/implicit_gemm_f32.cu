#include "kernels/implicit_gemm/implicit_gemm.cuh"

namespace customconv::implicit_gemm {

template void launch<float>(const ConvProblem&, const ConvPlan&, const Operands&,
                            const LaunchContext&);
template void weave_phases<float>(const ConvProblem&, const Forward&, const float*, float*, bool,
                                  cudaStream_t);

}  // namespace customconv::implicit_gemm
