#include "torch/cuda/device.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <deque>
#include <mutex>
#include <string_view>

#include "kernels/launch.h"

namespace customconv::torch_layer {

namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

DeviceProperties read(int device) {
  const cudaDeviceProp* prop = at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device));
  DeviceProperties p;
  p.capability_major = prop->major;
  p.capability_minor = prop->minor;
  p.sm_count = prop->multiProcessorCount;
  p.clock_ghz = attribute(cudaDevAttrClockRate, device) * 1e-6;
  // Two transfers a clock, eight bits a byte, kilohertz.
  p.bandwidth_gb_s = 2.0 * attribute(cudaDevAttrMemoryClockRate, device) *
                     attribute(cudaDevAttrGlobalMemoryBusWidth, device) / 8 * 1e-6;
  p.l2_bytes = prop->l2CacheSize;
  p.shared_bytes_block = static_cast<int>(prop->sharedMemPerBlockOptin);
  p.max_grid_x = prop->maxGridSize[0];
  p.built_for_90a = std::string_view(CUSTOMCONV_ARCH_LIST).find("9.0a") != std::string_view::npos;
  return p;
}

struct Entry {
  std::once_flag once;
  DeviceProperties properties;
  bool has_kernels = false;
};

const Entry& entry_of(c10::DeviceIndex device) {
  static std::deque<Entry> entries(static_cast<size_t>(at::cuda::device_count()));
  Entry& entry = entries.at(static_cast<size_t>(device));
  std::call_once(entry.once, [&] {
    const c10::cuda::CUDAGuard guard(device);
    entry.properties = read(device);
    entry.has_kernels = current_device_runs_kernels();
  });
  return entry;
}

}  // namespace

const DeviceProperties& device_properties(c10::DeviceIndex device) {
  return entry_of(device).properties;
}

bool has_kernels_for(c10::DeviceIndex device) { return entry_of(device).has_kernels; }

int driver_version() {
  int version = 0;
  C10_CUDA_CHECK(cudaDriverGetVersion(&version));
  return version;
}

}  // namespace customconv::torch_layer
