#include "kernels/depthwise/depthwise.cuh"

namespace customconv::depthwise {

template void launch<__nv_bfloat16>(const ConvProblem&, const ConvPlan&, const Operands&,
                                    const LaunchContext&);

}  // namespace customconv::depthwise
