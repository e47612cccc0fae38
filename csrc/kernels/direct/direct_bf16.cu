#include "kernels/direct/direct.cuh"

namespace customconv::direct {

template void launch<__nv_bfloat16>(const ConvProblem&, const ConvPlan&, const Operands&,
                                    const LaunchContext&);

}  // namespace customconv::direct
