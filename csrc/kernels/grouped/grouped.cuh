// The grouped family's launcher.
#pragma once

#include "kernels/grouped/launch_boxes.cuh"
#include "kernels/grouped/launch_slots.cuh"

namespace customconv::grouped {

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  const PlanKind kind = plan.payload.kind();
  if (kind == PlanKind::grouped_slots) return launch_slots<T>(problem, plan, operands, context);
  if (kind == PlanKind::grouped_boxes) return launch_boxes<T>(problem, plan, operands, context);
  if constexpr (sizeof(T) == 2) {
    if (kind == PlanKind::grouped_box_gradients) {
      return launch_gradient_boxes<T>(problem, plan, operands, context);
    }
  }
  launch_gradient_slots<T>(problem, plan, operands, context);
}

}  // namespace customconv::grouped
