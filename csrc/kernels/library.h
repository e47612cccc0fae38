// What a library of kernels offers, without CUDA's headers. There is one library for each
// architecture that was built for. All that launches a kernel, and the CUDA runtime that does, is
// inside: the runtime is linked statically, so that PyTorch may bring another one, and no struct of
// CUDA's passes here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/failure.h"
#include "kernels/launch.h"
#include "kernels/parameters/parameters.h"
#include "kernels/statistics/statistics.h"

namespace customconv {

// A device, and the stream on it that a kernel is launched on.
struct Place {
  int device = 0;
  Stream stream = nullptr;
};

struct KernelLibrary {
  const char* build;         // CUSTOMCONV_BUILD, the same in all libraries that fit together
  const char* architecture;  // as TORCH_CUDA_ARCH_LIST writes it
  int runtime_version;       // of CUDA: 1000 times the major number, plus 10 times the minor one

  Failure (*convolve)(const ConvProblem&, const ConvPlan&, const Operands&, const LaunchContext&);

  // The gradient of a bias (kernels/bias). Bytes of workspace, or -1 where there is no kernel.
  int64_t (*bias_gradient_bytes)(Layout, const Shape5& sizes, DType);
  Failure (*bias_gradient)(Layout, const Shape5& sizes, DType, const void* grad, void* to,
                           void* workspace, const Place&);

  // The statistics of an output's channels (kernels/statistics).
  int64_t (*count_statistics_parts)(const ConvProblem&);
  Failure (*statistics_parts)(const ConvProblem&, const void* y, const StatisticsParts&,
                              const Place&);
  Failure (*merge_statistics)(const StatisticsParts&, int64_t count, int64_t channels,
                              int64_t pixels, const statistics::Merged&, const Place&);

  // A network's parameters (kernels/parameters).
  Failure (*fold_batch_norms)(const parameters::BatchNorm*, size_t count, const Place&);
  Failure (*copy_parameters)(const parameters::Copy*, size_t count, DType from, DType to,
                             const Place&);
};

// The one symbol that a library of kernels has, and its name.
using KernelLibraryFunction = const KernelLibrary* (*)();
constexpr const char* kKernelLibraryName = "customconv_kernel_library";

}  // namespace customconv
