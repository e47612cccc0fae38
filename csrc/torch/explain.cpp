#include "torch/explain.h"

#include "torch/batch_invariance.h"
#include "torch/routing.h"

#ifdef CUSTOMCONV_WITH_CUDA
#include "torch/cuda/decide.h"
#include "torch/cuda/device.h"
#endif

namespace customconv::torch_layer {

namespace {

OrFallback<Convolution> described(const Call& call) {
  return describe(call.input, call.weight, call.bias,
                  {call.stride, call.padding, call.dilation, call.groups, call.transposed,
                   call.output_padding});
}

void compute_by_aten(const Call& call) {
  const BypassRouting bypass;
  if (call.transposed) {
    at::conv_transpose2d(call.input, call.weight, call.bias, call.stride, call.padding,
                         call.output_padding, call.groups, call.dilation);
  } else {
    at::conv2d(call.input, call.weight, call.bias, call.stride, call.padding, call.dilation,
               call.groups);
  }
}

// The problem of the call's pass. The gradient of the output is taken to lie as the output does.
ConvProblem problem_of(const Convolution& conv, const Call& call) {
  if (call.pass == Pass::kFprop) return conv.problem_of(call.pass);
  const auto grad = at::empty(conv.output_sizes(),
                              conv.input.options().device(at::kMeta).memory_format(conv.format));
  const bool is_dgrad = call.pass == Pass::kDgrad;
  const GradientFormats formats = gradient_formats(grad, conv.input, call.weight, call.transposed,
                                                   {is_dgrad, !is_dgrad, false});
  return conv.problem_of(call.pass, is_dgrad ? formats.input : formats.weight);
}

}  // namespace

TensorExplanation explain_call(const Call& call, const std::string& algorithm) {
  check_runs_on(algorithm, call.input);
  TensorExplanation explanation;
  const auto conv = described(call);
  const auto by_aten = [&](std::string why) {
    if (wants_batch_invariance() && call.pass != Pass::kWgrad) {
      why += "; the call raises, because PyTorch's own convolution is not batch invariant";
    }
    explanation.candidates = refused(why);
    explanation.fallback = std::move(why);
    return explanation;
  };
  if (!conv) {
    // Malformed arguments raise here what the operator raises.
    if (conv.why() != Fallback::kDtype) compute_by_aten(call);
    return by_aten(to_string(conv.why()));
  }
  explanation.problem = problem_of(*conv, call);
  if (!call.input.is_cuda())
    return by_aten("kernels run on CUDA tensors, not on " + call.input.device().str());
#ifdef CUSTOMCONV_WITH_CUDA
  const c10::DeviceIndex index = call.input.get_device();
  if (!has_kernels_for(index)) {
    return by_aten(std::string(to_string(Fallback::kArchitecture)) + ": " CUSTOMCONV_ARCH_LIST);
  }
  const DeviceProperties& device = device_properties(index);
  const Asked asked{*explanation.problem, layout_of(conv->format), algorithm_named(algorithm)};
  const Decided decided = decide(index, asked, device, /*records=*/false);
  explanation.candidates = candidates(asked, *decided, device);
  explanation.tuned = decided->tuned;
  if (decided->plan.family != FamilyId::kAten) {
    explanation.plan = decided->plan;
  } else {
    explanation.fallback =
        to_string(algorithm == "aten" ? Fallback::kAsked : why_aten(index, *decided));
  }
  return explanation;
#else
  return by_aten(to_string(Fallback::kBuild));
#endif
}

std::vector<ConvPlan> variants_for([[maybe_unused]] const Call& call) {
#ifdef CUSTOMCONV_WITH_CUDA
  const auto conv = described(call);
  if (!conv || !call.input.is_cuda() || !has_kernels_for(call.input.get_device())) return {};
  return variants(problem_of(*conv, call), device_properties(call.input.get_device()));
#else
  return {};
#endif
}

}  // namespace customconv::torch_layer
