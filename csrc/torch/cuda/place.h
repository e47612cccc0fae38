// Where kernels run: the current stream of a device, and the memory of PyTorch's allocator.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/library.h"

namespace customconv::torch_layer {

inline Place place_on(c10::DeviceIndex device) {
  return {device, c10::cuda::getCurrentCUDAStream(device).stream()};
}

// Memory on the current device. It may be freed as soon as its work is queued: the allocator keeps
// it for this stream.
inline c10::DataPtr allocate(int64_t bytes) {
  return c10::cuda::CUDACachingAllocator::get()->allocate(static_cast<size_t>(bytes));
}

}  // namespace customconv::torch_layer
