#include "kernels/grouped/grouped.cuh"

namespace customconv::grouped {

template void launch<float>(const ConvProblem&, const ConvPlan&, const Operands&,
                            const LaunchContext&);

}  // namespace customconv::grouped
