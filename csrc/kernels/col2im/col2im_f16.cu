#include "kernels/col2im/col2im.cuh"

namespace customconv::col2im {

template void launch<__half>(const ConvProblem&, const ConvPlan&, const Operands&,
                             const LaunchContext&);

}  // namespace customconv::col2im
