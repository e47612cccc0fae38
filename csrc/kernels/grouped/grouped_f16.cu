#include "kernels/grouped/grouped.cuh"

namespace customconv::grouped {

template void launch<__half>(const ConvProblem&, const ConvPlan&, const Operands&,
                             const LaunchContext&);

}  // namespace customconv::grouped
