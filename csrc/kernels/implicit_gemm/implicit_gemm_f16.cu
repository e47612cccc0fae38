#include "kernels/implicit_gemm/implicit_gemm.cuh"

namespace customconv::implicit_gemm {

template void launch<__half>(const ConvProblem&, const ConvPlan&, const Operands&,
                             const LaunchContext&);
template void pack_weight_matrix<__half>(const Forward&, bool, const PackedWeight&, const __half*,
                                         __half*, cudaStream_t);
template void pack_joined_weight<__half>(const ConvProblem&, const Forward&, const PackedWeight&,
                                         const __half*, __half*, cudaStream_t);
template void weave_phases<__half>(const ConvProblem&, const Forward&, const __half*, __half*, bool,
                                   cudaStream_t);
template void spread_joined_phases<__half>(const ConvProblem&, const Forward&, const __half*,
                                           const __half*, const __half*, __half*, const Epilogue&,
                                           cudaStream_t);

}  // namespace customconv::implicit_gemm
