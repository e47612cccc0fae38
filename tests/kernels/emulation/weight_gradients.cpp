// The weight gradients of implicit_gemm.
#include "gpu.h"
#include "kernels/implicit_gemm/wgrad/launch.h"
#include "kernels/implicit_gemm/wgrad/wgrad.h"
#include "problems.h"

namespace customconv {

std::vector<ConvPlan> plans_of(const ConvProblem& problem) {
  return implicit_gemm::wgrad::variants(problem, DeviceProperties());
}

int64_t statistics_parts(const ConvProblem&, const ConvPlan&) { return 0; }

void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  const auto launch = problem.dtype == DType::kFloat32 ? implicit_gemm::wgrad::launch<float>
                      : problem.dtype == DType::kFloat16
                          ? implicit_gemm::wgrad::launch<__half>
                          : implicit_gemm::wgrad::launch<__nv_bfloat16>;
  launch(problem, plan, operands, context);
}

}  // namespace customconv
