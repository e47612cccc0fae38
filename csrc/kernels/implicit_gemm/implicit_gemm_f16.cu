#include "kernels/implicit_gemm/implicit_gemm.cuh"

namespace customconv::implicit_gemm {

template void launch<__half>(const ConvProblem&, const ConvPlan&, const Operands&,
                             const LaunchContext&);
template void weave_phases<__half>(const ConvProblem&, const Forward&, const __half*, __half*, bool,
                                   cudaStream_t);

}  // namespace customconv::implicit_gemm
