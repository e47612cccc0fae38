#include "torch/routing.h"

#include <ATen/Context.h>
#include <ATen/TracerMode.h>
#include <ATen/ops/_convolution_native.h>
#include <ATen/ops/convolution_backward_native.h>
#include <ATen/ops/convolution_native.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <utility>

#include "torch/aten.h"
#include "torch/batch_invariance.h"
#include "torch/convolve.h"
#include "torch/core.h"
#include "torch/ops.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

namespace {

using at::IntArrayRef;
using at::Tensor;

std::atomic<bool> opaque_on_cpu{false};
thread_local bool bypassed = false;

bool is_routed() { return is_routing() && !bypassed; }

// A call of PyTorch's function, but for its tensors.
struct Call {
  Geometry geometry;
  bool tf32;
};

// Why PyTorch computes a call, as far as its arguments tell before the planner sees them.
std::optional<Fallback> refusal(const Tensor& input, const Tensor& weight,
                                const Geometry& geometry) {
  if (!at::globalContext().userEnabledCuDNN()) return Fallback::kCudnnOff;
  if (input.layout() != at::kStrided || weight.layout() != at::kStrided) return Fallback::kLayout;
  if (weight.dim() != input.dim() || weight.dim() < 3 || weight.dim() > 5) {
    return Fallback::kArguments;
  }
  const IntArrayRef extra = geometry.output_padding;
  const bool pads_output =
      std::any_of(extra.begin(), extra.end(), [](int64_t v) { return v != 0; });
  if (!geometry.transposed && pads_output) return Fallback::kArguments;
  const size_t spatial = static_cast<size_t>(weight.dim() - 2);
  for (const IntArrayRef list : {geometry.stride, geometry.padding, geometry.dilation, extra}) {
    if (list.size() != spatial) return Fallback::kArguments;
  }
  return std::nullopt;
}

// The geometry of a 1-D convolution as that of a 2-D one with a height of one.
class WithHeight {
 public:
  explicit WithHeight(const Geometry& g)
      : stride_{1, g.stride[0]},
        padding_{0, g.padding[0]},
        dilation_{1, g.dilation[0]},
        output_padding_{0, g.output_padding[0]},
        groups_(g.groups),
        transposed_(g.transposed) {}
  Geometry geometry() const {
    return {2, stride_, padding_, dilation_, groups_, transposed_, output_padding_};
  }

 private:
  std::array<int64_t, 2> stride_, padding_, dilation_, output_padding_;
  int64_t groups_;
  bool transposed_;
};

constexpr int64_t kHeight = 2;  // the dimension

OrFallback<Tensor> forward_by_kernels(const Tensor& input, const Tensor& weight,
                                      const std::optional<Tensor>& bias, const Call& call) {
  if (const auto why = refusal(input, weight, call.geometry)) return *why;
  if (weight.dim() >= 4) {
    return convolve(input, weight, bias, call.geometry, Algorithm::kAuto, call.tf32);
  }
  // PyTorch makes the input contiguous, too, so that the output is.
  auto output = convolve(input.contiguous().unsqueeze(kHeight), weight.unsqueeze(kHeight), bias,
                         WithHeight(call.geometry).geometry(), Algorithm::kAuto, call.tf32);
  if (output) *output = output->squeeze(kHeight);
  return output;
}

OrFallback<Gradients> backward_by_kernels(const Tensor& grad_output, const Tensor& input,
                                          const Tensor& weight, const Call& call,
                                          std::array<bool, 3> mask) {
  if (const auto why = refusal(input, weight, call.geometry)) return *why;
  if (grad_output.dim() != weight.dim()) return Fallback::kArguments;
  if (weight.dim() >= 4) {
    return convolve_backward(grad_output, input, weight, call.geometry, mask, Algorithm::kAuto,
                             call.tf32);
  }
  auto gradients =
      convolve_backward(grad_output.unsqueeze(kHeight), input.contiguous().unsqueeze(kHeight),
                        weight.unsqueeze(kHeight), WithHeight(call.geometry).geometry(), mask,
                        Algorithm::kAuto, call.tf32);
  if (!gradients) return gradients;
  for (Tensor* gradient : {&std::get<0>(*gradients), &std::get<1>(*gradients)}) {
    if (gradient->defined()) *gradient = gradient->squeeze(kHeight);
  }
  return gradients;
}

bool computes_opaquely(const Tensor& input) {
  return input.is_cpu() && opaque_on_cpu.load(std::memory_order_relaxed);
}

OrFallback<Tensor> forward(const Tensor& input, const Tensor& weight,
                           const std::optional<Tensor>& bias, const Call& call) {
  if (!computes_opaquely(input)) return forward_by_kernels(input, weight, bias, call);
  const at::tracer::impl::NoTracerDispatchMode unrecorded;
  const BypassRouting bypass;
  const Geometry& g = call.geometry;
  const at::Context& context = at::globalContext();
  return at::native::_convolution(input, weight, bias, g.stride, g.padding, g.dilation,
                                  g.transposed, g.output_padding, g.groups,
                                  context.benchmarkCuDNN(), context.deterministicCuDNN(),
                                  context.userEnabledCuDNN(), call.tf32);
}

OrFallback<Gradients> backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                               at::OptionalIntArrayRef bias_sizes, const Call& call,
                               std::array<bool, 3> mask) {
  if (!computes_opaquely(input)) {
    return backward_by_kernels(grad_output, input, weight, call, mask);
  }
  const at::tracer::impl::NoTracerDispatchMode unrecorded;
  const BypassRouting bypass;
  const Geometry& g = call.geometry;
  return at::native::convolution_backward(grad_output, input, weight, bias_sizes, g.stride,
                                          g.padding, g.dilation, g.transposed, g.output_padding,
                                          g.groups, mask);
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  // PyTorch's tracer records aten::_convolution, which its function calls, and which is routed too.
  if (!is_routed() || at::tracer::impl::is_dispatch_enabled()) {
    return at::native::convolution(input, weight, bias, stride, padding, dilation, transposed,
                                   output_padding, groups);
  }
  const Geometry geometry{weight.dim() - 2, stride,     padding,       dilation,
                          groups,           transposed, output_padding};
  auto output = forward(input, weight, bias, {geometry, allows_tf32()});
  if (output) return std::move(*output);
  fall_back(output.why());
  const AsTuned as_tuned(output.why());
  const BypassRouting bypass;  // PyTorch's function calls aten::_convolution
  return at::native::convolution(input, weight, bias, stride, padding, dilation, transposed,
                                 output_padding, groups);
}

// Called by traced modules, with the switches of the time when they were traced, and while they are
// traced.
Tensor traced_convolution(const Tensor& input, const Tensor& weight,
                          const std::optional<Tensor>& bias, IntArrayRef stride,
                          IntArrayRef padding, IntArrayRef dilation, bool transposed,
                          IntArrayRef output_padding, int64_t groups, bool benchmark,
                          bool deterministic, bool cudnn_enabled, bool allow_tf32) {
  if (is_routed()) {
    const Geometry geometry{weight.dim() - 2, stride,     padding,       dilation,
                            groups,           transposed, output_padding};
    auto output = cudnn_enabled ? forward(input, weight, bias, {geometry, allow_tf32})
                                : OrFallback<Tensor>(Fallback::kCudnnOff);
    if (output) return std::move(*output);
    fall_back(output.why());
    deterministic = deterministic || output.why() == Fallback::kTuned;
  }
  return at::native::_convolution(input, weight, bias, stride, padding, dilation, transposed,
                                  output_padding, groups, benchmark, deterministic, cudnn_enabled,
                                  allow_tf32);
}

Gradients convolution_backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                               at::OptionalIntArrayRef bias_sizes, IntArrayRef stride,
                               IntArrayRef padding, IntArrayRef dilation, bool transposed,
                               IntArrayRef output_padding, int64_t groups,
                               std::array<bool, 3> output_mask) {
  if (is_routed()) {
    const Geometry geometry{weight.dim() - 2, stride,     padding,       dilation,
                            groups,           transposed, output_padding};
    auto gradients =
        backward(grad_output, input, weight, bias_sizes, {geometry, allows_tf32()}, output_mask);
    if (gradients) return std::move(*gradients);
    output_mask[0] ? fall_back(gradients.why()) : count(gradients.why());
  }
  return at::native::convolution_backward(grad_output, input, weight, bias_sizes, stride, padding,
                                          dilation, transposed, output_padding, groups,
                                          output_mask);
}

// PyTorch warns of an override of its own kernel, which is what this is for.
class DropOverrideWarning : public c10::WarningHandler {
 public:
  explicit DropOverrideWarning(c10::WarningHandler* next) : next_(next) {}
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("Overriding a previously registered kernel") == std::string::npos) {
      next_->process(warning);
    }
  }

 private:
  c10::WarningHandler* next_;
};

void override_on(c10::DispatchKey key) {
  DropOverrideWarning handler(c10::WarningUtils::get_warning_handler());
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  // Never destroyed, not even when the process ends: threads may convolve until then.
  auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  library->impl("convolution", TORCH_FN(convolution));
  library->impl("_convolution", TORCH_FN(traced_convolution));
  library->impl("convolution_backward", TORCH_FN(convolution_backward));
}

// For the rest of the process: to take an override back while other threads convolve is not safe.
[[maybe_unused]] const bool is_installed = (override_on(c10::DispatchKey::CUDA), true);

}  // namespace

void install_routing_on_cpu(bool opaque) {
  [[maybe_unused]] static const bool once = (override_on(c10::DispatchKey::CPU), true);
  opaque_on_cpu.store(opaque, std::memory_order_relaxed);
}

BypassRouting::BypassRouting() : before_(std::exchange(bypassed, true)) {}
BypassRouting::~BypassRouting() { bypassed = before_; }

}  // namespace customconv::torch_layer
