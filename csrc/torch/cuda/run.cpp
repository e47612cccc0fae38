#include "torch/cuda/run.h"

#include <ATen/Dispatch.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "plan/planner.h"
#include "torch/cuda/device.h"
#include "torch/log.h"
#include "torch/problem.h"

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

// Throws unless the tensor lies as the problem says.
void check_operand(const at::Tensor& t, const char* name, const Shape4& sizes,
                   const Shape4& strides, bool aligned, const at::Tensor& like) {
  TORCH_CHECK(t.is_cuda() && t.device() == like.device() && t.scalar_type() == like.scalar_type(),
              "run_plan: expected ", name, " of type ", like.scalar_type(), " on ", like.device(),
              " as x is, but got ", t.scalar_type(), " on ", t.device());
  TORCH_CHECK(t.sizes() == at::IntArrayRef(sizes) && t.strides() == at::IntArrayRef(strides),
              "run_plan: expected ", name, " of sizes ", at::IntArrayRef(sizes), " and strides ",
              at::IntArrayRef(strides), ", but got ", t.sizes(), " and ", t.strides());
  TORCH_CHECK(!aligned || is_aligned(t), "run_plan: ", name, " is not aligned to 16 bytes");
}

void check_dense(const std::optional<at::Tensor>& t, const char* name, bool wanted, int64_t count,
                 const at::Tensor& like) {
  const bool given = t && t->defined();
  TORCH_CHECK(given == wanted, "run_plan: the problem has ", wanted ? "a " : "no ", name);
  TORCH_CHECK(!given || (t->numel() == count && t->is_non_overlapping_and_dense() &&
                         t->device() == like.device() && t->scalar_type() == like.scalar_type()),
              "run_plan: expected a dense ", name, " of ", count, " elements as x's");
}

}  // namespace

void run(const ConvProblem& problem, const ConvPlan& plan, Operands operands,
         const at::Tensor& result, const std::optional<at::Tensor>& bias) {
  log_plan(problem, plan);
  const bool adds_bias = problem.has_bias && problem.pass == Pass::kDgrad && !plan.fuses;
  if (adds_bias) operands.epilogue.bias = nullptr;
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
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, result.scalar_type(), "customconv_conv2d",
      [&] { launch<typename CudaType<scalar_t>::type>(problem, plan, operands, context); });
  if (adds_bias) result.add_(bias->view({-1, 1, 1}));
}

void run_plan(const ConvProblem& problem, const ConvPlan& plan, const at::Tensor& x,
              const at::Tensor& w, const at::Tensor& y, const std::optional<at::Tensor>& bias,
              const std::optional<at::Tensor>& residual) {
  TORCH_CHECK(plan.family != FamilyId::kAten, "run_plan: a plan for ATen has no kernel");
  TORCH_CHECK(is_kernel_dtype(x.scalar_type()) && dtype_of(x.scalar_type()) == problem.dtype,
              "run_plan: expected x of type ", to_string(problem.dtype), ", but got ",
              x.scalar_type());
  check_operand(x, "x", problem.x_sizes(), problem.x_strides, problem.x_aligned, x);
  check_operand(w, "w", problem.w_sizes(), problem.w_strides, problem.w_aligned, x);
  check_operand(y, "y", problem.y_sizes(), problem.y_strides, problem.y_aligned, x);
  check_plan(problem, plan, device_properties(x.device().index()));
  const bool gradient = problem.pass == Pass::kDgrad;
  check_dense(bias, "bias", problem.has_bias, gradient ? problem.C : problem.K, x);
  check_dense(residual, "residual", problem.has_residual, problem.result_count(), x);
  const c10::cuda::CUDAGuard guard(x.device());
  Operands operands;
  operands.x = x.mutable_data_ptr();
  operands.w = w.mutable_data_ptr();
  operands.y = y.mutable_data_ptr();
  if (problem.has_bias) operands.epilogue.bias = bias->const_data_ptr();
  if (plan.fuses && problem.epilogue_passes > 0) {
    if (problem.has_residual) operands.epilogue.residual = residual->const_data_ptr();
    operands.epilogue.activation = Activation::kRelu;
  }
  run(problem, plan, operands, gradient ? x : problem.pass == Pass::kWgrad ? w : y, bias);
}

}  // namespace customconv::torch_layer
