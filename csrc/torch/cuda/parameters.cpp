#include "torch/parameters.h"

#include <ATen/cuda/EmptyTensor.h>
#include <torch/library.h>

#include "torch/cuda/decide.h"
#include "torch/cuda/place.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

namespace {

using at::Tensor;
using parameters::BatchNorm;
using parameters::Copy;

bool is_known(at::ScalarType dtype) { return is_kernel_dtype(dtype) && dtype != at::kDouble; }

// Whether a kernel reads a tensor of this device, from memory without gaps.
bool is_readable(const Tensor& t, c10::Device device) {
  return t.device() == device && t.layout() == at::kStrided && t.is_non_overlapping_and_dense() &&
         is_known(t.scalar_type());
}

std::vector<Tensor> fold_batch_norms_cuda(at::TensorList means, at::TensorList variances,
                                          const OptionalTensors& weights,
                                          const OptionalTensors& biases,
                                          const OptionalTensors& shifts, at::ArrayRef<double> eps) {
  check_batch_norms(means, variances, weights, biases, shifts, eps);
  if (means.empty()) return {};
  const c10::Device device = means[0].device();
  if (!has_kernels_for(device.index())) {
    return fold_batch_norms(means, variances, weights, biases, shifts, eps);
  }
  std::vector<BatchNorm> batch_norms(means.size());
  std::vector<Tensor> folded;
  for (size_t i = 0; i < means.size(); ++i) {
    BatchNorm& b = batch_norms[i];
    const std::optional<Tensor> read[] = {means[i], variances[i], weights.get(i), biases.get(i),
                                          shifts.get(i)};
    for (int v = 0; v < BatchNorm::kVectors; ++v) {
      if (!read[v] || !read[v]->defined()) continue;
      if (!is_readable(*read[v], device)) {
        return fold_batch_norms(means, variances, weights, biases, shifts, eps);
      }
      b.vectors[v] = read[v]->const_data_ptr();
      b.types[v] = dtype_of(read[v]->scalar_type());
    }
    b.channels = static_cast<int32_t>(means[i].size(0));
    b.eps = static_cast<float>(eps[i]);
    for (float** to : {&b.scale, &b.new_shift}) {
      folded.push_back(at::detail::empty_cuda({b.channels}, at::kFloat, device, std::nullopt));
      *to = folded.back().mutable_data_ptr<float>();
    }
  }
  const c10::DeviceGuard guard(device);
  check(customconv_kernels(device.index())
            ->fold_batch_norms(batch_norms.data(), batch_norms.size(), place_on(device.index())));
  return folded;
}

std::vector<Tensor> copy_parameters_cuda(at::TensorList parameters, at::ScalarType dtype,
                                         bool channels_last) {
  if (parameters.empty()) return {};
  const c10::Device device = parameters[0].device();
  const at::ScalarType from = parameters[0].scalar_type();
  const auto has_taps = [](const Tensor& w) { return w.dim() == 4 || w.dim() == 5; };
  const auto taps_of = [](const Tensor& w) { return w.numel() / (w.size(0) * w.size(1)); };
  const auto is_ours = [&](const Tensor& w) {
    const bool dense = w.is_contiguous() || w.is_contiguous(channels_last_of(w.dim()));
    return dense && is_readable(w, device) && w.scalar_type() == from && w.numel() > 0 &&
           (!has_taps(w) || taps_of(w) <= parameters::kMostTaps);
  };
  if (!has_kernels_for(device.index()) || !is_known(dtype) ||
      !std::all_of(parameters.begin(), parameters.end(), is_ours)) {
    return copy_parameters(parameters, dtype, channels_last);
  }
  std::vector<Copy> work;
  std::vector<Tensor> copies;
  for (const Tensor& w : parameters) {
    const at::MemoryFormat last = channels_last_of(w.dim());
    const bool lies_last = w.is_contiguous(last);
    const bool becomes_last = has_taps(w) && (channels_last || !w.is_contiguous());
    copies.push_back(at::detail::empty_cuda(w.sizes(), dtype, device,
                                            becomes_last ? last : at::MemoryFormat::Contiguous));
    const void* from_data = w.const_data_ptr();
    void* to_data = copies.back().mutable_data_ptr();
    if (becomes_last && !lies_last) {
      work.push_back({from_data, to_data, w.size(0), static_cast<int32_t>(w.size(1)),
                      static_cast<int32_t>(taps_of(w))});
    } else {
      work.push_back({from_data, to_data, w.numel(), 1, 1});
    }
  }
  const c10::DeviceGuard guard(device);
  check(customconv_kernels(device.index())
            ->copy_parameters(work.data(), work.size(), dtype_of(from), dtype_of(dtype),
                              place_on(device.index())));
  return copies;
}

}  // namespace

TORCH_LIBRARY_IMPL(customconv, CUDA, m) {
  m.impl("fold_batch_norms", fold_batch_norms_cuda);
  m.impl("copy_parameters", copy_parameters_cuda);
}

}  // namespace customconv::torch_layer
