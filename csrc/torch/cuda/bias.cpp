#include "torch/cuda/bias.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/bias/bias.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

at::Tensor bias_gradient(const at::Tensor& grad_output) {
  const Shape4 sizes = shape4(grad_output.sizes());
  const Layout layout = dense_layout(sizes, shape4(grad_output.strides()));
  const BiasGradient sums(layout, sizes, static_cast<int>(grad_output.element_size()));
  const at::ScalarType dtype = grad_output.scalar_type();
  if (layout == Layout::kOther || dtype == at::kDouble || !is_aligned(grad_output) ||
      !sums.is_possible) {
    return grad_output.sum({0, 2, 3});
  }
  at::Tensor gradient =
      at::detail::empty_cuda({sizes[1]}, dtype, grad_output.device(), std::nullopt);
  // Freed when this returns: the allocator keeps it for the work queued on this stream.
  const c10::DataPtr workspace =
      c10::cuda::CUDACachingAllocator::get()->allocate(static_cast<size_t>(sums.workspace_bytes()));
  const auto launch = [&](auto kernels) {
    kernels(sums, grad_output.const_data_ptr(), gradient.mutable_data_ptr(), workspace.get(),
            at::cuda::getCurrentCUDAStream());
  };
  if (dtype == at::kFloat) launch(launch_bias_gradient<float>);
  if (dtype == at::kHalf) launch(launch_bias_gradient<__half>);
  if (dtype == at::kBFloat16) launch(launch_bias_gradient<__nv_bfloat16>);
  return gradient;
}

}  // namespace customconv::torch_layer
