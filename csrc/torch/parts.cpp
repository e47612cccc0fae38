// Parts of images that several devices share.
#include <torch/library.h>

#include "torch/convolve.h"
#include "torch/operator.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

namespace {

using at::Tensor;

bool is_channels_last(const Tensor& input, const Tensor& weight) {
  return memory_format(input, weight) == at::MemoryFormat::ChannelsLast;
}

bool convolve_part_of(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                      at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                      bool transposed, at::IntArrayRef output_padding, int64_t groups,
                      std::string_view algorithm, const Tensor& output, bool channels_last,
                      at::IntArrayRef whole_sizes, at::IntArrayRef whole_padding,
                      at::IntArrayRef whole_output_padding) {
  const auto done = convolve_part(
      input, weight, bias, {stride, padding, dilation, groups, transposed, output_padding},
      algorithm_named(algorithm), {whole_sizes, whole_padding, whole_output_padding},
      channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous, output);
  if (done) return *done;
  // The operator finds the same reason, and counts it or raises.
  const auto sym = [](at::IntArrayRef values) { return c10::fromIntArrayRefSlow(values); };
  const Operator op(sym(stride), sym(padding), sym(output_padding), sym(dilation), groups,
                    algorithm);
  output.copy_(transposed ? ConvTranspose2d(op).forward(input, weight, bias)
                          : Conv2d(op).forward(input, weight, bias));
  return true;
}

}  // namespace

TORCH_LIBRARY_IMPL(customconv, CompositeExplicitAutograd, m) {
  m.impl("_is_channels_last", is_channels_last);
  m.impl("_convolve_part", convolve_part_of);
}

}  // namespace customconv::torch_layer
