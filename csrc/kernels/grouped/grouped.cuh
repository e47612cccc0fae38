// The grouped family's launcher.
#pragma once

#include "kernels/grouped/launch_boxes.cuh"
#include "kernels/grouped/launch_slots.cuh"

namespace customconv::grouped {

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  if (problem.pass != Pass::kWgrad) {
    const Variant variant = Variant::at(plan.variant_index);
    if (variant.has_boxes()) return launch_boxes<T>(problem, plan, operands, context);
    return launch_slots<T>(problem, plan, operands, context);
  }
  if constexpr (sizeof(T) == 2) {
    if (GradientVariant::at(plan.variant_index).has_boxes()) {
      return launch_gradient_boxes<T>(problem, plan, operands, context);
    }
  }
  launch_gradient_slots<T>(problem, plan, operands, context);
}

}  // namespace customconv::grouped
