#include "torch/explain.h"

#include "torch/aten.h"

#ifdef CUSTOMCONV_WITH_CUDA
#include "torch/cuda/device.h"
#endif

namespace customconv::torch_layer {

TensorExplanation explain_tensors(const at::Tensor& input, const at::Tensor& weight,
                                  const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                  at::IntArrayRef padding, at::IntArrayRef dilation,
                                  int64_t groups, Pass pass, const std::string& algorithm) {
  check_runs_on(algorithm, input);
  TensorExplanation explanation;
  const auto conv = describe(input, weight, bias, stride, padding, dilation, groups);
  if (!conv) {
    // Malformed arguments raise here what the operator would raise; the rest is computed by ATen.
    const auto meta = [](const at::Tensor& t) { return t.to(at::kMeta); };
    const auto meta_bias =
        bias.has_value() && bias->defined() ? std::make_optional(meta(*bias)) : std::nullopt;
    at::conv2d(meta(input), meta(weight), meta_bias, stride, padding, dilation, groups);
    explanation.fallback = is_kernel_dtype(input.scalar_type())
                               ? "empty tensors, and tensors that are not dense, are ATen's"
                               : "no kernels for this dtype";
    return explanation;
  }
  explanation.problem = pass == Pass::kFprop ? conv->problem : conv->gradient(pass);
  if (!input.is_cuda()) {
    explanation.fallback = "tensors on " + input.device().str() + " are computed by ATen";
    return explanation;
  }
#ifdef CUSTOMCONV_WITH_CUDA
  Explanation planned = explain(*explanation.problem, device_properties(input.get_device()),
                                algorithm_named(algorithm));
  explanation.candidates = std::move(planned.candidates);
  if (planned.plan.family == FamilyId::kAten) {
    explanation.fallback = algorithm == "aten" ? "algorithm 'aten' was asked for"
                                               : "no family can compute this problem";
  } else {
    explanation.plan = planned.plan;
  }
#else
  explanation.fallback = "customconv was built without CUDA";
#endif
  return explanation;
}

}  // namespace customconv::torch_layer
