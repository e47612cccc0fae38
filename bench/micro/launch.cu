// What a kernel costs before it does anything: by shared memory, parameters, clusters and code.
#include <cuda_runtime.h>

#include "kernels/common/start.h"
#include "program.cuh"

using namespace customconv;

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

template <int kBytes>
int run_empty(const Start& how) {
  start("empty kernel", how, empty<kBytes>, Parameters<kBytes>{}, static_cast<int*>(nullptr));
  return 0;
}
template <int kKilobytes>
int run_straight(const Start& how) {
  start("straight code", how, straight<kKilobytes * 1024 / 16>, 1.0f, static_cast<float*>(nullptr));
  return 0;
}

}  // namespace

extern "C" int launch_empty(int bytes, int blocks, int threads, int shared, int cluster,
                            void* stream) {
  return micro::guarded([&] {
    const Start how{blocks, threads, shared, static_cast<cudaStream_t>(stream), false, cluster};
    switch (bytes) {
      case 64:
        return run_empty<64>(how);
      case 1024:
        return run_empty<1024>(how);
      case 2048:
        return run_empty<2048>(how);
      case 4000:
        return run_empty<4000>(how);
      default:
        return micro::kDoesNotFit;
    }
  });
}

extern "C" int launch_straight(int kilobytes, int blocks, int threads, void* stream) {
  return micro::guarded([&] {
    const Start how{blocks, threads, 0, static_cast<cudaStream_t>(stream)};
    switch (kilobytes) {
      case 1:
        return run_straight<1>(how);
      case 4:
        return run_straight<4>(how);
      case 16:
        return run_straight<16>(how);
      case 64:
        return run_straight<64>(how);
      default:
        return micro::kDoesNotFit;
    }
  });
}
