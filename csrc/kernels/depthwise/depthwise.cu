#include <stdexcept>

#include "kernels/common/scalar.cuh"
#include "kernels/depthwise/kinds.h"

namespace customconv::depthwise {

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  switch (plan.payload.kind()) {
#define CUSTOMCONV_KIND(name)      \
  case PlanKind::depthwise_##name: \
    return name::launch<T>(problem, plan, operands, context);
#include "kernels/depthwise/kinds.def"
#undef CUSTOMCONV_KIND
    default:
      return bands::launch<T>(problem, plan, operands, context);  // its gradients
  }
}

template void launch<float>(const ConvProblem&, const ConvPlan&, const Operands&,
                            const LaunchContext&);
template void launch<__half>(const ConvProblem&, const ConvPlan&, const Operands&,
                             const LaunchContext&);
template void launch<__nv_bfloat16>(const ConvProblem&, const ConvPlan&, const Operands&,
                                    const LaunchContext&);

template <>
void launch<double>(const ConvProblem&, const ConvPlan&, const Operands&, const LaunchContext&) {
  throw std::logic_error("customconv: depthwise: float64 is never planned");
}

}  // namespace customconv::depthwise
