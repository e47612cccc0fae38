#include "torch/explain.h"

#ifdef CUSTOMCONV_WITH_CUDA
#include "torch/cuda/device.h"
#endif

namespace customconv::torch_layer {

namespace {

std::optional<Convolution> described(const Call& call) {
  if (call.transposed) {
    return describe_transpose(call.input, call.weight, call.bias, call.stride, call.padding,
                              call.output_padding, call.groups, call.dilation);
  }
  return describe(call.input, call.weight, call.bias, call.stride, call.padding, call.dilation,
                  call.groups);
}

void compute_by_aten(const Call& call) {
  if (call.transposed) {
    at::conv_transpose2d(call.input, call.weight, call.bias, call.stride, call.padding,
                         call.output_padding, call.groups, call.dilation);
  } else {
    at::conv2d(call.input, call.weight, call.bias, call.stride, call.padding, call.dilation,
               call.groups);
  }
}

}  // namespace

TensorExplanation explain_call(const Call& call, const std::string& algorithm) {
  check_runs_on(algorithm, call.input);
  TensorExplanation explanation;
  const auto conv = described(call);
  const auto by_aten = [&](std::string why) {
    explanation.candidates = refused(why);
    explanation.fallback = std::move(why);
    return explanation;
  };
  if (!conv) {
    if (!is_kernel_dtype(call.input.scalar_type()))
      return by_aten("there are no kernels for this dtype");
    // Malformed arguments raise here what the operator raises; empty tensors cost nothing.
    compute_by_aten(call);
    return by_aten(call.transposed ? "tensors that are empty or not strided, and an output padding "
                                     "that reaches the stride, are ATen's"
                                   : "tensors that are empty or not strided are ATen's");
  }
  explanation.problem = conv->problem_of(call.pass);
  if (!call.input.is_cuda())
    return by_aten("kernels run on CUDA tensors, not on " + call.input.device().str());
#ifdef CUSTOMCONV_WITH_CUDA
  if (!has_kernels_for(call.input.get_device())) {
    return by_aten("the kernels were built for other architectures: " CUSTOMCONV_ARCH_LIST);
  }
  Explanation planned = explain(*explanation.problem, device_properties(call.input.get_device()),
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

std::vector<ConvPlan> variants_for([[maybe_unused]] const Call& call) {
#ifdef CUSTOMCONV_WITH_CUDA
  const auto conv = described(call);
  if (!conv || !call.input.is_cuda() || !has_kernels_for(call.input.get_device())) return {};
  return variants(conv->problem_of(call.pass), device_properties(call.input.get_device()));
#else
  return {};
#endif
}

}  // namespace customconv::torch_layer
