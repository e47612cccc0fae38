// Plans of the calls that came before: planning takes longer than a small convolution.
#pragma once

#include <c10/core/Device.h>

#include "plan/planner.h"

namespace customconv::torch_layer {

// What `plan` decides for the device, with the problem's precision set to the plan's. Each thread
// remembers its own, so none waits for another.
ConvPlan plan_on(c10::DeviceIndex device, ConvProblem& problem, Algorithm algorithm, bool prefer);

// For measuring variants: until it is taken back by null, every call of this thread that asks for
// an algorithm by name runs this plan. The plan must be one of the call's own variants.
void force_plan(const ConvPlan* plan);

}  // namespace customconv::torch_layer
