#include "kernels/implicit_gemm/implicit_gemm.cuh"

namespace customconv::implicit_gemm {

template void launch<__nv_bfloat16>(const ConvProblem&, const ConvPlan&, const Operands&,
                                    const LaunchContext&);
template void pack_weight_matrix<__nv_bfloat16>(const Forward&, bool, const PackedWeight&,
                                                const __nv_bfloat16*, __nv_bfloat16*, cudaStream_t);
template void pack_joined_weight<__nv_bfloat16>(const ConvProblem&, const Forward&,
                                                const PackedWeight&, const __nv_bfloat16*,
                                                __nv_bfloat16*, cudaStream_t);
template void weave_phases<__nv_bfloat16>(const ConvProblem&, const Forward&, const __nv_bfloat16*,
                                          __nv_bfloat16*, bool, cudaStream_t);
template void spread_joined_phases<__nv_bfloat16>(const ConvProblem&, const Forward&,
                                                  const __nv_bfloat16*, const __nv_bfloat16*,
                                                  const __nv_bfloat16*, __nv_bfloat16*,
                                                  const Epilogue&, cudaStream_t);

}  // namespace customconv::implicit_gemm
