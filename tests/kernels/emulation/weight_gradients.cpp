// The weight gradients of implicit_gemm.
#include "gpu.h"
#include "kernels/implicit_gemm/wgrad/launch.h"
#include "kernels/implicit_gemm/wgrad/wgrad.h"
#include "problems.h"

namespace customconv {

std::vector<ConvPlan> plans_of(const ConvProblem& problem) {
  return implicit_gemm::wgrad::variants(problem, DeviceProperties());
}

const Fields& fields_of(PlanKind kind) {
  static const Fields boxes = fields_of<PlanKind::implicit_gemm_wgrad_boxes>();
  static const Fields planes = fields_of<PlanKind::implicit_gemm_wgrad_planes>();
  static const Fields registers = fields_of<PlanKind::implicit_gemm_wgrad_registers>();
  if (kind == PlanKind::implicit_gemm_wgrad_boxes) return boxes;
  return kind == PlanKind::implicit_gemm_wgrad_planes ? planes : registers;
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
