// Starts kernels with what a plain launch cannot say.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/common/check.h"

namespace customconv {

struct Start {
  int64_t blocks;
  int threads;
  int shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool early = false;  // may begin while the kernel in front of it, one of ours, still runs
  int cluster = 1;     // thread blocks
};

template <typename... P>
void start(const char* what, const Start& how, void (*kernel)(P...), const P&... arguments) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(how.blocks));
  config.blockDim = dim3(static_cast<unsigned>(how.threads));
  config.dynamicSmemBytes = static_cast<size_t>(how.shared_bytes);
  config.stream = how.stream;
  config.attrs = attributes;
  if (how.early) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (how.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(how.cluster), 1, 1};
  }
  constexpr int kUnasked = 48 << 10;  // of shared memory, that any kernel may have
  if (how.shared_bytes > kUnasked) {
    check_cuda(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, how.shared_bytes),
        what);
  }
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

}  // namespace customconv
