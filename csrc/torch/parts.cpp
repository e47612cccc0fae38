// Parts of images and volumes that several devices share.
#include <torch/library.h>

#include "torch/convolve.h"
#include "torch/operator.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

namespace {

using at::Tensor;

bool is_output_channels_last(const Tensor& input, const Tensor& weight) {
  return is_channels_last(memory_format(input, weight));
}

template <int kDims>
Tensor convolve_whole(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                      bool transposed, const Operator& op) {
  return transposed ? ConvTranspose<kDims>(op).forward(input, weight, bias)
                    : Conv<kDims>(op).forward(input, weight, bias);
}

bool convolve_part_of(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                      at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                      bool transposed, at::IntArrayRef output_padding, int64_t groups,
                      std::string_view algorithm, const Tensor& output, bool channels_last,
                      at::IntArrayRef whole_sizes, at::IntArrayRef whole_padding,
                      at::IntArrayRef whole_output_padding) {
  const bool deep = weight.dim() == 5;
  const auto done = convolve_part(
      input, weight, bias,
      {deep ? 3 : 2, stride, padding, dilation, groups, transposed, output_padding},
      algorithm_named(algorithm), {whole_sizes, whole_padding, whole_output_padding},
      channels_last ? channels_last_of(weight.dim()) : at::MemoryFormat::Contiguous, output);
  if (done) return *done;
  // The operator finds the same reason, and counts it or raises.
  const auto sym = [](at::IntArrayRef values) { return c10::fromIntArrayRefSlow(values); };
  const Operator op(sym(stride), sym(padding), sym(output_padding), sym(dilation), groups,
                    algorithm);
  output.copy_((deep ? convolve_whole<3> : convolve_whole<2>)(input, weight, bias, transposed, op));
  return true;
}

}  // namespace

TORCH_LIBRARY_IMPL(customconv, CompositeExplicitAutograd, m) {
  m.impl("_is_channels_last", is_output_channels_last);
  m.impl("_convolve_part", convolve_part_of);
}

}  // namespace customconv::torch_layer
