#include "torch/cuda/bias.h"

#include <ATen/cuda/EmptyTensor.h>

#include "torch/core.h"
#include "torch/cuda/place.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

at::Tensor bias_gradient(const at::Tensor& grad_output) {
  const c10::DeviceIndex device = grad_output.device().index();
  const KernelLibrary& kernels = *customconv_kernels(device);
  const Shape5 shape = shape_of(grad_output.sizes());
  const Layout layout = dense_layout(shape, strides_of(grad_output));
  const Shape5 sizes = rows_of_slices(shape);
  const DType dtype = dtype_of(grad_output.scalar_type());
  const int64_t bytes =
      is_aligned(grad_output) ? kernels.bias_gradient_bytes(layout, sizes, dtype) : -1;
  if (bytes < 0) return grad_output.sum(all_but_channels(grad_output.dim()));
  at::Tensor gradient = at::detail::empty_cuda({sizes[1]}, grad_output.scalar_type(),
                                               grad_output.device(), std::nullopt);
  const c10::DataPtr workspace = allocate(bytes);
  check(kernels.bias_gradient(layout, sizes, dtype, grad_output.const_data_ptr(),
                              gradient.mutable_data_ptr(), workspace.get(), place_on(device)));
  return gradient;
}

}  // namespace customconv::torch_layer
