#include "torch/explain.h"

#include "torch/batch_invariance.h"
#include "torch/routing.h"

#ifdef CUSTOMCONV_WITH_CUDA
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
  explanation.problem = conv->problem_of(call.pass);
  if (!call.input.is_cuda())
    return by_aten("kernels run on CUDA tensors, not on " + call.input.device().str());
#ifdef CUSTOMCONV_WITH_CUDA
  if (!has_kernels_for(call.input.get_device())) {
    return by_aten(std::string(to_string(Fallback::kArchitecture)) + ": " CUSTOMCONV_ARCH_LIST);
  }
  const DeviceProperties& device = device_properties(call.input.get_device());
  const auto explain_dense = [&] {
    Call dense = call;
    dense.input = dense_and_aligned(call.input, conv->format);
    dense.weight = dense_and_aligned(call.weight, conv->format);
    dense.is_dense = true;
    TensorExplanation of_dense = explain_call(dense, algorithm);
    of_dense.problem = explanation.problem;
    return of_dense;
  };
  // As the operator does it.
  if (is_batch_invariant(*explanation.problem) && !call.is_dense) return explain_dense();
  Explanation planned = explain(*explanation.problem, device, algorithm_named(algorithm));
  const bool ours = planned.plan.family != FamilyId::kAten;
  const bool rounded =
      ours && algorithm == "auto" && computes_in_tf32(*explanation.problem, device);
  if (rounded && !call.is_dense) {
    // As the operator does it: what is rounded to TF32 is made dense first. A family that is asked
    // for by name gets the tensors as they are, so it is possible if it can compute those.
    TensorExplanation of_dense = explain_dense();
    for (size_t i = 0; i < of_dense.candidates.size(); ++i) {
      Candidate& candidate = of_dense.candidates[i];
      const Candidate& as_it_is = planned.candidates[i];
      if (!as_it_is.possible && !candidate.reason.empty()) candidate.reason = as_it_is.reason;
      candidate.possible = as_it_is.possible;
      candidate.plan = as_it_is.plan;
    }
    return of_dense;
  }
  if (algorithm == "auto") {
    explanation.tuned = apply_tuned(call.input.get_device(), *explanation.problem, device, planned);
  }
  explanation.candidates = std::move(planned.candidates);
  if (planned.plan.family != FamilyId::kAten) {
    explanation.plan = planned.plan;
  } else {
    explanation.fallback = to_string(algorithm == "aten"   ? Fallback::kAsked
                                     : explanation.tuned   ? Fallback::kTuned
                                     : device.has_prices() ? Fallback::kNoFamily
                                                           : Fallback::kUnmeasured);
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
  return variants(conv->problem_of(call.pass), device_properties(call.input.get_device()));
#else
  return {};
#endif
}

}  // namespace customconv::torch_layer
