// Operators behind customconv.explain and customconv.tune. Problems and plans pass as text, so that
// the planner's module for Python needs no tensors.
#include <torch/library.h>

#include "plan/text.h"
#include "torch/aten.h"
#include "torch/convolve.h"
#include "torch/core.h"
#include "torch/operator.h"
#include "torch/problem.h"
#include "torch/routing.h"

namespace customconv::torch_layer {

namespace {

using at::Tensor;

// The problem of a pass of the convolution. The gradient of the output is taken to lie as the
// output does.
ConvProblem problem_of(const Convolution& conv, const Tensor& weight, Pass pass) {
  if (pass == Pass::kFprop) return conv.problem_of(pass);
  const auto grad = at::empty(conv.output_sizes(),
                              conv.input.options().device(at::kMeta).memory_format(conv.format));
  const bool is_dgrad = pass == Pass::kDgrad;
  const GradientFormats formats =
      gradient_formats(grad, conv, weight, {is_dgrad, !is_dgrad, false});
  return conv.problem_of(pass, is_dgrad ? formats.input : formats.weight);
}

template <int kDims>
Tensor convolve_by_aten(const Tensor& input, const Tensor& weight,
                        const std::optional<Tensor>& bias, bool transposed, const Operator& op) {
  return transposed ? ConvTranspose<kDims>(op).aten_forward(input, weight, bias)
                    : Conv<kDims>(op).aten_forward(input, weight, bias);
}

// What is asked of the planner for a call: the problem as text, whether operands are copied in
// channels-last, and if it is not asked, why not. Malformed arguments raise what the operator
// raises.
std::tuple<std::string, bool, std::string> describe_call(
    const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
    std::string_view op, std::string_view algorithm, bool transposed,
    at::IntArrayRef output_padding) {
  check_runs_on(algorithm, input);
  const bool deep = weight.dim() == 5;
  const auto conv =
      describe(input, weight, bias,
               {deep ? 3 : 2, stride, padding, dilation, groups, transposed, output_padding});
  if (!conv) {
    if (conv.why() != Fallback::kDtype) {
      const auto sym = [](at::IntArrayRef values) { return c10::fromIntArrayRefSlow(values); };
      const Operator op(sym(stride), sym(padding), sym(output_padding), sym(dilation), groups,
                        algorithm);
      (deep ? convolve_by_aten<3> : convolve_by_aten<2>)(input, weight, bias, transposed, op);
    }
    return {"", false, customconv_fallback_text(conv.why())};
  }
  std::string why_not;
  if (!input.is_cuda()) {
    why_not = "kernels run on CUDA tensors, not on " + input.device().str();
  } else if (!kHasCuda) {
    why_not = customconv_fallback_text(Fallback::kBuild);
  }
  return {problem_text(problem_of(*conv, weight, pass_named(std::string(op)))),
          is_channels_last(conv->format), why_not};
}

void run_plan_of(std::string_view problem, std::string_view plan, const Tensor& x, const Tensor& w,
                 const Tensor& y, const std::optional<Tensor>& bias,
                 const std::optional<Tensor>& residual) {
  run_plan(parse_problem(std::string(problem)), std::string(plan), x, w, y, bias, residual);
}

Tensor aten_pass_of(std::string_view problem, const Tensor& x, const Tensor& w, const Tensor& y,
                    const std::optional<Tensor>& bias) {
  return aten_pass(parse_problem(std::string(problem)), x, w, y, bias);
}

}  // namespace

TORCH_LIBRARY_IMPL(customconv, CompositeExplicitAutograd, m) {
  m.impl("_describe_call", TORCH_FN(describe_call));
}

// What Python asks of these libraries alone.
TORCH_LIBRARY_FRAGMENT(customconv, m) {
  m.def(
      "_run_plan(str problem, str plan, Tensor(a!) x, Tensor(b!) w, Tensor(c!) y, Tensor? bias, "
      "Tensor? residual) -> ()",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(run_plan_of)));
  m.def("_aten_pass(str problem, Tensor x, Tensor w, Tensor y, Tensor? bias) -> Tensor",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(aten_pass_of)));
  // For tests.
  m.def("_route_on_cpu(bool opaque) -> ()", TORCH_FN(install_routing_on_cpu));
}

}  // namespace customconv::torch_layer
