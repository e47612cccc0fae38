// The properties of a CUDA device as the planner wants them.
#pragma once

#include <c10/core/Device.h>

#include "plan/device.h"

namespace customconv::torch_layer {

// Both are found out once for each device, safely from any thread.
const DeviceProperties& device_properties(c10::DeviceIndex device);
// False where the kernels were built for other architectures than the device's.
bool has_kernels_for(c10::DeviceIndex device);

}  // namespace customconv::torch_layer
