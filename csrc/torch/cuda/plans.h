// What the planner or tuning decides for a device.
#pragma once

#include <c10/core/Device.h>

#include "plan/tuned.h"

namespace customconv::torch_layer {

// The plan for a call that is about to run, with the problem's precision set to the plan's. While a
// recording is on, the problem is kept.
ConvPlan plan_on(c10::DeviceIndex device, ConvProblem& problem, Algorithm algorithm, bool prefer);

// Whether such a plan would round the operands to TF32; nothing is kept.
bool rounds_on(c10::DeviceIndex device, ConvProblem problem, Algorithm algorithm);

// For measuring variants: until it is taken back by null, every call of this thread that asks for
// an algorithm by name runs this plan. The plan must be one of the call's own variants.
void force_plan(const ConvPlan* plan);

}  // namespace customconv::torch_layer
