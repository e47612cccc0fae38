// A node of the autograd graph, written by hand. Unlike a torch::autograd::Function it works inside
// functorch's transforms and in forward mode.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <string>
#include <vector>

namespace customconv::torch_layer {

// What a node keeps besides tensors.
struct Settings {
  // Stride, padding, output padding and dilation, a number for each dimension, and the groups.
  std::vector<c10::SymInt> geometry;
  std::string algorithm;
  // Only fused operators have these.
  std::string activation = "none";
  bool residual_last = false;
  double negative_slope = 0;
};

// The gradients of an operator's tensor arguments, in their order, from those of its results.
// `kept` holds the tensors that the node was made with, `needed` says which gradients are asked
// for.
using Formula = torch::autograd::variable_list (*)(const torch::autograd::variable_list& incoming,
                                                   const torch::autograd::variable_list& kept,
                                                   const Settings& settings,
                                                   const std::vector<bool>& needed);

class BackwardNode : public torch::autograd::Node {
 public:
  // `name` must be an identifier: compiled autograd writes it into a graph.
  BackwardNode(const char* name, Formula formula, torch::autograd::edge_list next_edges,
               Settings settings);

  // Keeps tensors for the formula. If the last one is a result of this node, the node must be its
  // history already: the result would own the node, and the node the result, for ever.
  void keep(const torch::autograd::variable_list& tensors, bool last_is_result);

  std::string name() const override { return name_; }
  void release_variables() override;
  // Compiled autograd: what the graph depends on, and the formula as one call in it.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override;
  torch::autograd::variable_list apply_with_saved(
      const torch::autograd::variable_list& inputs,
      torch::dynamo::autograd::SwapSavedVariables& saved) override;

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& incoming) override;

 private:
  torch::autograd::variable_list unpack();
  std::vector<bool> needed() const;

  const char* name_;
  Formula formula_;
  Settings settings_;
  std::vector<torch::autograd::SavedVariable> kept_;
};

// Makes a new node the history of the results; the gradient of an undefined one is undefined. The
// node keeps some tensors, of which the last may be a result.
void set_history(const torch::autograd::variable_list& results, const char* name, Formula formula,
                 const torch::autograd::variable_list& arguments,
                 const torch::autograd::variable_list& kept, Settings settings,
                 bool last_is_result = false);

}  // namespace customconv::torch_layer
