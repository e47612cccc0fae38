#include "kernels/implicit_gemm/implicit_gemm.cuh"

namespace customconv::implicit_gemm {

template void launch<__nv_bfloat16>(const ConvProblem&, const ConvPlan&, const Operands&,
                                    const LaunchContext&);
template void weave_phases<__nv_bfloat16>(const ConvProblem&, const Forward&, const __nv_bfloat16*,
                                          __nv_bfloat16*, bool, cudaStream_t);

}  // namespace customconv::implicit_gemm
