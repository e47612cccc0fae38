#include "torch/cuda/run.h"

#include <ATen/Dispatch.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "torch/log.h"

namespace customconv::torch_layer {

namespace {

// CUDA's own name of a type that ATen has too.
template <typename T>
struct CudaType {
  using type = T;
};
template <>
struct CudaType<at::Half> {
  using type = __half;
};
template <>
struct CudaType<at::BFloat16> {
  using type = __nv_bfloat16;
};

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  switch (plan.family) {
#define CUSTOMCONV_FAMILY(name)                        \
  case FamilyId::name:                                 \
    name::launch<T>(problem, plan, operands, context); \
    return;
#include "plan/families.def"
#undef CUSTOMCONV_FAMILY
    case FamilyId::kAten:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "a plan for ATen has no kernel");
}

}  // namespace

void run(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
         at::ScalarType dtype) {
  log_plan(problem, plan);
  LaunchContext context;
  context.stream = at::cuda::getCurrentCUDAStream();
  if (plan.uses_blas) context.blas = at::cuda::getCurrentCUDABlasHandle();
  // Freed when this returns: the allocator keeps it for the work queued on this stream.
  c10::DataPtr workspace;
  if (plan.workspace_bytes > 0) {
    workspace =
        c10::cuda::CUDACachingAllocator::get()->allocate(static_cast<size_t>(plan.workspace_bytes));
    context.workspace = workspace.get();
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "customconv_conv2d", [&] {
    launch<typename CudaType<scalar_t>::type>(problem, plan, operands, context);
  });
}

}  // namespace customconv::torch_layer
