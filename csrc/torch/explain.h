// What the operators would do with given tensors, without doing it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/decide.h"
#include "torch/problem.h"

namespace customconv::torch_layer {

// A call of conv2d or conv_transpose2d, or the computation of one of its gradients.
struct Call {
  at::Tensor input, weight;
  std::optional<at::Tensor> bias;
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups;
  Pass pass;
  bool transposed;
  std::vector<int64_t> output_padding;  // if transposed
};

struct TensorExplanation {
  std::optional<ConvProblem> problem;  // none where the arguments are not ours to compute
  std::optional<ConvPlan> plan;        // none where ATen computes
  std::vector<Candidate> candidates;   // empty where the planner was not asked
  std::string fallback;                // why ATen computes; empty where a family does
  std::optional<TunedPlan> tuned;      // where the choice is tuning's
};

// Every plan that the planner chooses from for these tensors.
std::vector<ConvPlan> variants_for(const Call& call);

TensorExplanation explain_call(const Call& call, const std::string& algorithm);

}  // namespace customconv::torch_layer
