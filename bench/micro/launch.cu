// What a kernel costs before it does anything: by shared memory, parameters, clusters and code.
#include <cuda_runtime.h>

#include <cstdint>

namespace {

template <int kBytes>
struct Parameters {
  char bytes[kBytes];
};

template <int kBytes>
__global__ void empty(const __grid_constant__ Parameters<kBytes> p, int* out) {
  extern __shared__ char memory[];
  if (out != nullptr) *out = p.bytes[threadIdx.x % kBytes] + memory[0];  // never
}

// Code that each warp runs once: an instruction has 16 bytes.
template <int kInstructions>
__global__ void straight(float a, float* out) {
  float v = a;
#pragma unroll
  for (int i = 0; i < kInstructions; ++i)
    asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(v) : "f"(a));
  if (out != nullptr) *out = v;
}

struct Launch {
  int blocks, threads, shared, cluster;
};

template <typename... P>
int launch(const Launch& how, cudaStream_t stream, void (*kernel)(P...), P... arguments) {
  if (how.shared > 0) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, how.shared);
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(how.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = how.blocks;
  config.blockDim = how.threads;
  config.dynamicSmemBytes = how.shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = how.cluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace

extern "C" int launch_empty(int bytes, int blocks, int threads, int shared, int cluster,
                            void* stream) {
  const Launch how{blocks, threads, shared, cluster};
  const auto to = static_cast<cudaStream_t>(stream);
  int* const none = nullptr;
  switch (bytes) {
    case 64:
      return launch(how, to, empty<64>, Parameters<64>{}, none);
    case 1024:
      return launch(how, to, empty<1024>, Parameters<1024>{}, none);
    case 2048:
      return launch(how, to, empty<2048>, Parameters<2048>{}, none);
    case 4000:
      return launch(how, to, empty<4000>, Parameters<4000>{}, none);
    default:
      return cudaErrorInvalidValue;
  }
}

extern "C" int launch_straight(int kilobytes, int blocks, int threads, void* stream) {
  const Launch how{blocks, threads, 0, 1};
  const auto to = static_cast<cudaStream_t>(stream);
  float* const none = nullptr;
  switch (kilobytes) {
    case 1:
      return launch(how, to, straight<64>, 1.0f, none);
    case 4:
      return launch(how, to, straight<256>, 1.0f, none);
    case 16:
      return launch(how, to, straight<1024>, 1.0f, none);
    case 64:
      return launch(how, to, straight<4096>, 1.0f, none);
    default:
      return cudaErrorInvalidValue;
  }
}
