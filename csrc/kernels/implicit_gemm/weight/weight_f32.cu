#include "kernels/implicit_gemm/weight/launch.h"
#include "kernels/implicit_gemm/weight/planes/launch.h"

namespace customconv::implicit_gemm::weight {

// Of planes alone.
template <>
void launch<float>(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
                   const LaunchContext& context) {
  planes::launch<float>(problem, plan, operands, context);
}

}  // namespace customconv::implicit_gemm::weight
