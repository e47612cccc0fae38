#include "torch/explain.h"

#include "torch/aten.h"

#ifdef CUSTOMCONV_WITH_CUDA
#include "torch/cuda/device.h"
#endif

namespace customconv::torch_layer {

namespace {

// `raise` is called where the arguments are not ours: malformed ones raise there what the operator
// raises; empty tensors cost nothing.
template <typename Raise>
TensorExplanation explain_pass(const std::optional<Convolution>& conv, Pass pass,
                               const at::Tensor& input, const std::string& algorithm,
                               const char* other_reason, const Raise& raise) {
  TensorExplanation explanation;
  const auto by_aten = [&](std::string why) {
    explanation.candidates = refused(why);
    explanation.fallback = std::move(why);
    return explanation;
  };
  if (!conv) {
    if (!is_kernel_dtype(input.scalar_type()))
      return by_aten("there are no kernels for this dtype");
    raise();
    return by_aten(other_reason);
  }
  explanation.problem =
      pass == Pass::kFprop && !conv->transposed ? conv->problem : conv->gradient(pass);
  if (!input.is_cuda())
    return by_aten("kernels run on CUDA tensors, not on " + input.device().str());
#ifdef CUSTOMCONV_WITH_CUDA
  if (!has_kernels_for(input.get_device())) {
    return by_aten("the kernels were built for other architectures: " CUSTOMCONV_ARCH_LIST);
  }
  Explanation planned = explain(*explanation.problem, device_properties(input.get_device()),
                                algorithm_named(algorithm));
  explanation.candidates = std::move(planned.candidates);
  if (planned.plan.family == FamilyId::kAten) {
    explanation.fallback = algorithm == "aten" ? "algorithm 'aten' was asked for"
                                               : "no family can compute this problem";
  } else {
    explanation.plan = planned.plan;
  }
  return explanation;
#else
  return by_aten("customconv was built without CUDA");
#endif
}

}  // namespace

TensorExplanation explain_tensors(const at::Tensor& input, const at::Tensor& weight,
                                  const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                  at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                                  Pass pass, const std::string& algorithm) {
  check_runs_on(algorithm, input);
  return explain_pass(describe(input, weight, bias, stride, padding, dilation, groups), pass, input,
                      algorithm, "tensors that are empty or not strided are ATen's", [&] {
                        aten_conv2d(input, weight, bias, c10::fromIntArrayRefSlow(stride),
                                    c10::fromIntArrayRefSlow(padding),
                                    c10::fromIntArrayRefSlow(dilation), groups);
                      });
}

TensorExplanation explain_transpose(const at::Tensor& input, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                    at::IntArrayRef padding, at::IntArrayRef output_padding,
                                    int64_t groups, at::IntArrayRef dilation,
                                    const std::string& algorithm) {
  check_runs_on(algorithm, input);
  return explain_pass(
      describe_transpose(input, weight, bias, stride, padding, output_padding, groups, dilation),
      Pass::kDgrad, input, algorithm,
      "tensors that are empty or not strided, and an output_padding of a stride or more, are "
      "ATen's",
      [&] {
        at::conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups,
                             dilation);
      });
}

std::vector<ConvPlan> variants_for(const at::Tensor& input, const at::Tensor& weight,
                                   const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                   at::IntArrayRef padding, at::IntArrayRef dilation,
                                   int64_t groups, Pass pass) {
#ifdef CUSTOMCONV_WITH_CUDA
  const auto conv = describe(input, weight, bias, stride, padding, dilation, groups);
  if (!conv || !input.is_cuda() || !has_kernels_for(input.get_device())) return {};
  return variants(pass == Pass::kFprop ? conv->problem : conv->gradient(pass),
                  device_properties(input.get_device()));
#else
  return {};
#endif
}

}  // namespace customconv::torch_layer
