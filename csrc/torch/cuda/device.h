// The properties of a CUDA device as the planner wants them.
#pragma once

#include <c10/core/Device.h>

#include "plan/device.h"

namespace customconv::torch_layer {

// Read once for each device, safely from any thread.
const DeviceProperties& device_properties(c10::DeviceIndex device);

}  // namespace customconv::torch_layer
