#include "torch/cuda/run.h"

#include "torch/convolve.h"
#include "torch/core.h"
#include "torch/cuda/blas.h"
#include "torch/cuda/decide.h"
#include "torch/cuda/place.h"

namespace customconv::torch_layer {

namespace {

// Throws unless the tensor lies as the problem says.
void check_operand(const at::Tensor& t, const char* name, const ConvProblem& problem,
                   const Shape5& shape, const Shape5& strides, bool aligned,
                   const at::Tensor& like) {
  const int64_t dims = problem.is_deep() ? 5 : 4;
  TORCH_CHECK(t.is_cuda() && t.device() == like.device() && t.scalar_type() == like.scalar_type(),
              "run_plan: expected ", name, " of type ", like.scalar_type(), " on ", like.device(),
              " as x is, but got ", t.scalar_type(), " on ", t.device());
  const auto sizes = in_torch_order(shape, dims);
  TORCH_CHECK(t.sizes() == at::IntArrayRef(sizes) && strides_of(t) == strides,
              "run_plan: expected ", name, " of sizes ", at::IntArrayRef(sizes), " and strides ",
              at::IntArrayRef(in_torch_order(strides, dims)), ", but got ", t.sizes(), " and ",
              t.strides());
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
  customconv_log_plan(&problem, &plan);
  const bool adds_bias = problem.has_bias && problem.pass == Pass::kDgrad && !plan.fuses;
  if (adds_bias) operands.epilogue.bias = nullptr;
  const Place place = place_on(result.device().index());
  LaunchContext context;
  context.device = place.device;
  context.stream = place.stream;
  if (plan.uses_blas) context.blas = current_blas();
  c10::DataPtr workspace;
  if (plan.workspace_bytes > 0) {
    workspace = allocate(plan.workspace_bytes);
    context.workspace = workspace.get();
  }
  check(customconv_kernels(place.device)->convolve(problem, plan, operands, context));
  if (adds_bias) result.add_(per_channel(*bias, static_cast<size_t>(result.dim() - 2)));
}

void run_plan(const ConvProblem& problem, const std::string& name, const at::Tensor& x,
              const at::Tensor& w, const at::Tensor& y, const std::optional<at::Tensor>& bias,
              const std::optional<at::Tensor>& residual) {
  TORCH_CHECK(is_kernel_dtype(x.scalar_type()) && dtype_of(x.scalar_type()) == problem.dtype,
              "run_plan: expected x of type ", to_string(problem.dtype), ", but got ",
              x.scalar_type());
  check_operand(x, "x", problem, problem.x_sizes(), problem.x_strides, problem.x_aligned, x);
  check_operand(w, "w", problem, problem.w_sizes(), problem.w_strides, problem.w_aligned, x);
  check_operand(y, "y", problem, problem.y_sizes(), problem.y_strides, problem.y_aligned, x);
  TORCH_CHECK(has_kernels_for(x.get_device()),
              "run_plan: ", customconv_why_no_kernels(x.get_device()));
  ConvPlan plan;
  check(customconv_plan_named(x.get_device(), &problem, name.c_str(), &plan));
  const bool gradient = problem.pass == Pass::kDgrad;
  check_dense(bias, "bias", problem.has_bias, gradient ? problem.C : problem.K, x);
  check_dense(residual, "residual", problem.has_residual, problem.result_count(), x);
  const c10::DeviceGuard guard(x.device());
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
