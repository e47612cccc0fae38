#include "kernels/depthwise/depthwise.cuh"

namespace customconv::depthwise {

template void launch<float>(const ConvProblem&, const ConvPlan&, const Operands&,
                            const LaunchContext&);

}  // namespace customconv::depthwise
