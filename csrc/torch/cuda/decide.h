// What becomes of a call on a device.
#pragma once

#include <c10/core/Device.h>

#include "torch/core.h"

namespace customconv::torch_layer {

// False where no library of kernels runs on the device.
inline bool has_kernels_for(c10::DeviceIndex device) {
  return customconv_kernels(device) != nullptr;
}

// The decision for a pass that is about to run. Throws where a family that is asked for by name
// cannot compute it. While a recording is on, `records` keeps the problem to be tuned.
Decision decide_on(c10::DeviceIndex device, const Asked& asked, bool records = true);

// Why PyTorch computes a pass, unless it was asked for.
Fallback why_aten(c10::DeviceIndex device, const Decision& decision);

}  // namespace customconv::torch_layer
