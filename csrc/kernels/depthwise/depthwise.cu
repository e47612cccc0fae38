#include <stdexcept>

#include "kernels/common/scalar.cuh"
#include "kernels/depthwise/kinds.h"
#include "kernels/depthwise/variants.h"

namespace customconv::depthwise {

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  ConvPlan own = plan;
  own.variant_index = plan.variant_index % kKindVariants;
  switch (static_cast<Kind>(plan.variant_index / kKindVariants)) {
#define CUSTOMCONV_KIND(name)                         \
  case Kind::name:                                    \
    name::launch<T>(problem, own, operands, context); \
    return;
#include "kernels/depthwise/kinds.def"
#undef CUSTOMCONV_KIND
  }
  throw std::logic_error("customconv: depthwise: a plan of no kind");
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
