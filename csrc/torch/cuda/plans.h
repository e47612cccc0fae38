// Plans of the calls that came before: planning takes longer than a small convolution.
#pragma once

#include <c10/core/Device.h>

#include "plan/planner.h"

namespace customconv::torch_layer {

// What `plan` decides for the device. Each thread remembers its own, so none waits for another.
ConvPlan plan_on(c10::DeviceIndex device, const ConvProblem& problem, Algorithm algorithm,
                 bool prefer);

}  // namespace customconv::torch_layer
