#include "kernels/depthwise/threads/threads.cuh"

namespace customconv::depthwise::threads {

template void launch<__nv_bfloat16>(const ConvProblem&, const ConvPlan&, const Operands&,
                                    const LaunchContext&);

}  // namespace customconv::depthwise::threads
