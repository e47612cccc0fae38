#include "torch/convolve.h"

#include "torch/core.h"

namespace customconv::torch_layer {

namespace {

Fallback refusal(const at::Tensor& input) {
  return input.is_cuda() ? Fallback::kBuild : Fallback::kDevice;
}

}  // namespace

const bool kHasCuda = false;

OrFallback<at::Tensor> convolve(const at::Tensor& input, const at::Tensor&,
                                const std::optional<at::Tensor>&, const Geometry&, Algorithm,
                                bool) {
  return refusal(input);
}

OrFallback<bool> convolve_part(const at::Tensor& input, const at::Tensor&,
                               const std::optional<at::Tensor>&, const Geometry&, Algorithm,
                               const Whole&, at::MemoryFormat, const at::Tensor&) {
  return refusal(input);
}

OrFallback<Gradients> convolve_backward(const at::Tensor&, const at::Tensor& input,
                                        const at::Tensor&, const Geometry&, std::array<bool, 3>,
                                        Algorithm, bool) {
  return refusal(input);
}

void run_plan(const ConvProblem&, const std::string&, const at::Tensor&, const at::Tensor&,
              const at::Tensor&, const std::optional<at::Tensor>&,
              const std::optional<at::Tensor>&) {
  TORCH_CHECK(false, customconv_fallback_text(Fallback::kBuild));
}

}  // namespace customconv::torch_layer
