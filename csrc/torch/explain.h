// What the operators would do with given tensors, without doing it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "torch/problem.h"

namespace customconv::torch_layer {

struct TensorExplanation {
  std::optional<ConvProblem> problem;  // none where the arguments are not ours to compute
  std::optional<ConvPlan> plan;        // none where ATen computes
  std::vector<Candidate> candidates;   // empty where the planner was not asked
  std::string fallback;                // why ATen computes; empty where a family does
};

// Every plan that the planner chooses from for these tensors.
std::vector<ConvPlan> variants_for(const at::Tensor& input, const at::Tensor& weight,
                                   const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                   at::IntArrayRef padding, at::IntArrayRef dilation,
                                   int64_t groups, Pass pass);

TensorExplanation explain_transpose(const at::Tensor& input, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                    at::IntArrayRef padding, at::IntArrayRef output_padding,
                                    int64_t groups, at::IntArrayRef dilation,
                                    const std::string& algorithm);

TensorExplanation explain_tensors(const at::Tensor& input, const at::Tensor& weight,
                                  const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                  at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                                  Pass pass, const std::string& algorithm);

}  // namespace customconv::torch_layer
