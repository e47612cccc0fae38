// The main loop of implicit_gemm, in float32, with the kernels around it.
#include "gpu.h"
#include "kernels/implicit_gemm/forward.h"
#include "kernels/implicit_gemm/pack_weights.cuh"
#include "kernels/implicit_gemm/sm90/launch.h"
#include "kernels/implicit_gemm/sm90/packed.h"
#include "kernels/implicit_gemm/sm90/plan.h"
#include "kernels/implicit_gemm/weave.cuh"
#include "problems.h"

namespace customconv::implicit_gemm {

template void pack_weight_matrix<float>(const Forward&, bool, const PackedWeight&, const float*,
                                        float*, cudaStream_t);
template void pack_joined_weight<float>(const ConvProblem&, const Forward&, const PackedWeight&,
                                        const float*, float*, cudaStream_t);
template void weave_phases<float>(const ConvProblem&, const Forward&, const float*, float*, bool,
                                  cudaStream_t);
template void spread_joined_phases<float>(const ConvProblem&, const Forward&, const float*,
                                          const float*, const float*, float*, const Epilogue&,
                                          cudaStream_t);

}  // namespace customconv::implicit_gemm

namespace customconv {

std::vector<ConvPlan> plans_of(const ConvProblem& problem) {
  std::vector<ConvPlan> plans;
  if (problem.pass == Pass::kWgrad && !implicit_gemm::sm90::can_exchange(problem)) return plans;
  implicit_gemm::sm90::best_plan(problem, DeviceProperties(), &plans);
  return plans;
}

const Fields& fields_of(PlanKind) {
  static const Fields fields = fields_of<PlanKind::implicit_gemm_main_loop>();
  return fields;
}

int64_t statistics_parts(const ConvProblem& problem, const ConvPlan& plan) {
  return implicit_gemm::sm90::statistics_parts(problem, plan);
}

void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  implicit_gemm::sm90::launch<float>(problem, plan, operands, context);
}

}  // namespace customconv
