#include "kernels/depthwise/boxes/launch.cuh"

namespace customconv::depthwise::boxes {

template void launch<__half>(const ConvProblem&, const ConvPlan&, const Operands&,
                             const LaunchContext&);

}  // namespace customconv::depthwise::boxes
