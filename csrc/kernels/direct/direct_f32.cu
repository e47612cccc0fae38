#include "kernels/direct/direct.cuh"

namespace customconv::direct {

template void launch<float>(const ConvProblem&, const ConvPlan&, const Operands&,
                            const LaunchContext&);

}  // namespace customconv::direct
