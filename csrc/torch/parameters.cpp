#include "torch/parameters.h"

#include <torch/library.h>

#include "torch/problem.h"

namespace customconv::torch_layer {

using at::Tensor;

void check_batch_norms(const at::TensorList& means, const at::TensorList& variances,
                       const OptionalTensors& weights, const OptionalTensors& biases,
                       const OptionalTensors& shifts, at::ArrayRef<double> eps) {
  const size_t count = means.size();
  TORCH_CHECK(variances.size() == count && weights.size() == count && biases.size() == count &&
                  shifts.size() == count && eps.size() == count,
              "fold_batch_norms: expected as many variances, weights, biases, shifts and eps as "
              "means, which are ",
              count);
  const auto check = [](const std::optional<Tensor>& t, const Tensor& mean) {
    TORCH_CHECK(!t || !t->defined() || (t->dim() == 1 && t->sym_sizes() == mean.sym_sizes()),
                "fold_batch_norms: expected vectors of the mean's size ", mean.sym_sizes());
  };
  for (size_t i = 0; i < count; ++i) {
    TORCH_CHECK(means[i].dim() == 1, "fold_batch_norms: expected a mean of one dimension");
    check(variances[i], means[i]);
    for (const auto* list : {&weights, &biases, &shifts}) check(list->get(i), means[i]);
  }
}

std::vector<Tensor> fold_batch_norms(at::TensorList means, at::TensorList variances,
                                     const OptionalTensors& weights, const OptionalTensors& biases,
                                     const OptionalTensors& shifts, at::ArrayRef<double> eps) {
  check_batch_norms(means, variances, weights, biases, shifts, eps);
  std::vector<Tensor> folded;
  for (size_t i = 0; i < means.size(); ++i) {
    const at::ScalarType dtype = means[i].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto given = [&](const OptionalTensors& list) {
      const std::optional<Tensor> t = list.get(i);
      return t && t->defined() ? t->to(dtype) : Tensor();
    };
    const Tensor weight = given(weights), bias = given(biases), shift = given(shifts);
    Tensor scale = (variances[i].to(dtype) + eps[i]).rsqrt();
    if (weight.defined()) scale = scale * weight;
    const Tensor mean = means[i].to(dtype);
    Tensor moved = (shift.defined() ? shift - mean : -mean) * scale;
    if (bias.defined()) moved = moved + bias;
    folded.push_back(scale);
    folded.push_back(moved);
  }
  return folded;
}

std::vector<Tensor> copy_parameters(at::TensorList parameters, at::ScalarType dtype,
                                    bool channels_last) {
  std::vector<Tensor> copies;
  for (const Tensor& parameter : parameters) {
    const int64_t dims = parameter.dim();
    const bool moves = channels_last && (dims == 4 || dims == 5);
    copies.push_back(
        parameter.to(dtype, /*non_blocking=*/false, /*copy=*/true,
                     moves ? channels_last_of(dims) : parameter.suggest_memory_format()));
  }
  return copies;
}

TORCH_LIBRARY_IMPL(customconv, CompositeExplicitAutograd, m) {
  m.impl("fold_batch_norms", fold_batch_norms);
  m.impl("copy_parameters", copy_parameters);
}

}  // namespace customconv::torch_layer
