#include "kernels/im2col/im2col.cuh"

namespace customconv::im2col {

template void launch<double>(const ConvProblem&, const ConvPlan&, const Operands&,
                             const LaunchContext&);

}  // namespace customconv::im2col
