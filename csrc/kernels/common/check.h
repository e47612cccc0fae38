// Checks that throw: a failed launch must never pass for a result.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace customconv {

inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // else whoever asks next, PyTorch for one, would find it
  throw std::runtime_error(std::string("customconv: ") + what + ": " + cudaGetErrorString(status));
}

inline void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

}  // namespace customconv
