// The properties of a CUDA device as the planner wants them.
#pragma once

#include <c10/core/Device.h>

#include "plan/device.h"

namespace customconv::torch_layer {

// Both are found out once for each device, safely from any thread.
const DeviceProperties& device_properties(c10::DeviceIndex device);
// False where the kernels were built for other architectures than the device's.
bool has_kernels_for(c10::DeviceIndex device);

// The latest version of CUDA that the driver can run: 1000 times the major number, plus 10 times
// the minor one.
int driver_version();

}  // namespace customconv::torch_layer
