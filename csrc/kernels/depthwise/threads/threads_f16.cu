#include "kernels/depthwise/threads/threads.cuh"

namespace customconv::depthwise::threads {

template void launch<__half>(const ConvProblem&, const ConvPlan&, const Operands&,
                             const LaunchContext&);

}  // namespace customconv::depthwise::threads
