#include "kernels/depthwise/planes/launch.cuh"

namespace customconv::depthwise::planes {

template void launch<__nv_bfloat16>(const ConvProblem&, const ConvPlan&, const Operands&,
                                    const LaunchContext&);

}  // namespace customconv::depthwise::planes
