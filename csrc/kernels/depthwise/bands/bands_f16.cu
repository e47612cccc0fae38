#include "kernels/depthwise/bands/launch.cuh"

namespace customconv::depthwise::bands {

template void launch<__half>(const ConvProblem&, const ConvPlan&, const Operands&,
                             const LaunchContext&);

}  // namespace customconv::depthwise::bands
