#include "kernels/grouped/grouped.cuh"

namespace customconv::grouped {

template void launch<__nv_bfloat16>(const ConvProblem&, const ConvPlan&, const Operands&,
                                    const LaunchContext&);

}  // namespace customconv::grouped
