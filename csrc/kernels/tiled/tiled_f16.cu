#include "kernels/tiled/tiled.cuh"

namespace customconv::tiled {

template void launch<__half>(const ConvProblem&, const ConvPlan&, const Operands&,
                             const LaunchContext&);

}  // namespace customconv::tiled
