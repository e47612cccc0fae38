#include "kernels/implicit_gemm/wgrad/launch.h"
#include "kernels/implicit_gemm/wgrad/planes/launch.h"
#include "kernels/implicit_gemm/wgrad/registers/launch.h"

namespace customconv::implicit_gemm::wgrad {

template <>
void launch<float>(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
                   const LaunchContext& context) {
  if (plan.payload.kind() == PlanKind::implicit_gemm_wgrad_planes) {
    planes::launch<float>(problem, plan, operands, context);
  } else {
    registers::launch<float>(problem, plan, operands, context);
  }
}

}  // namespace customconv::implicit_gemm::wgrad
