// What becomes of a call on a device.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "plan/decide.h"
#include "torch/fallback.h"

namespace customconv::torch_layer {

using Decided = std::shared_ptr<const Decision>;

// The decision for a pass that is about to run. Throws where a family that is asked for by name
// cannot compute it. While a recording is on, the problem is kept.
Decided decide_on(c10::DeviceIndex device, const Asked& asked);

// Why PyTorch computes a pass, unless it was asked for.
Fallback why_aten(c10::DeviceIndex device, const Decision& decision);

// For measuring variants: until it is taken back by null, every call of this thread that asks for
// an algorithm by name runs this plan, on operands as they are. The plan must be one of the call's
// own variants.
void force_plan(const ConvPlan* plan);

}  // namespace customconv::torch_layer
