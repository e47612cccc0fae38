#include "kernels/implicit_gemm/wgrad/launch.h"
#include "kernels/implicit_gemm/wgrad/planes/geometry.h"
#include "kernels/implicit_gemm/wgrad/planes/launch.h"
#include "kernels/implicit_gemm/wgrad/registers/launch.h"

namespace customconv::implicit_gemm::wgrad {

template <>
void launch<float>(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
                   const LaunchContext& context) {
  if ((plan.variant_index & planes::kPlanes) != 0) {
    planes::launch<float>(problem, plan, operands, context);
  } else {
    registers::launch<float>(problem, plan, operands, context);
  }
}

}  // namespace customconv::implicit_gemm::wgrad
