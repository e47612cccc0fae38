#include "kernels/implicit_gemm/implicit_gemm.cuh"

namespace customconv::implicit_gemm {

template void launch<float>(const ConvProblem&, const ConvPlan&, const Operands&,
                            const LaunchContext&);
template void pack_weight_matrix<float>(const Forward&, bool, const PackedWeight&, const float*,
                                        float*, cudaStream_t);
template void pack_joined_weight<float>(const ConvProblem&, const Forward&, const PackedWeight&,
                                        const float*, float*, cudaStream_t);
template void weave_phases<float>(const ConvProblem&, const Forward&, const float*, float*, bool,
                                  cudaStream_t);
template void spread_joined_phases<float>(const ConvProblem&, const Forward&, const float*,
                                          const float*, const float*, float*, const Epilogue&,
                                          cudaStream_t);

}  // namespace customconv::implicit_gemm
