#include "torch/node.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/version.h>

#include <mutex>
#include <utility>

namespace customconv::torch_layer {

using torch::autograd::edge_list;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::dynamo::autograd::CompiledNodeArgs;
using torch::dynamo::autograd::IValuePacker;
using torch::dynamo::autograd::PackedArgs;
using torch::dynamo::autograd::SwapSavedVariables;

BackwardNode::BackwardNode(const char* name, Formula formula, edge_list next_edges,
                           Settings settings)
    : Node(std::move(next_edges)), name_(name), formula_(formula), settings_(std::move(settings)) {}

void BackwardNode::keep(const variable_list& tensors, bool last_is_result) {
  kept_.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    kept_.emplace_back(tensor, last_is_result && kept_.size() + 1 == tensors.size());
  }
}

variable_list BackwardNode::apply(variable_list&& incoming) {
  const std::lock_guard<std::mutex> lock(mutex_);  // against release_variables
  return formula_(incoming, unpack(), settings_, needed());
}

void BackwardNode::release_variables() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (SavedVariable& variable : kept_) variable.reset_data();
}

variable_list BackwardNode::unpack() {
  variable_list tensors;
  tensors.reserve(kept_.size());
  for (const SavedVariable& variable : kept_) tensors.push_back(variable.unpack(getptr()));
  return tensors;
}

std::vector<bool> BackwardNode::needed() const {
  std::vector<bool> wanted(num_outputs());
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = task_should_compute_output(i);
  return wanted;
}

void BackwardNode::compiled_args(CompiledNodeArgs& args) const {
  args.collect(std::string(name_));
  args.collect(kept_, /*is_output=*/true);  // as `unpack` unpacks them
  args.collect(settings_.geometry);
  args.collect(settings_.algorithm);
  args.collect(settings_.activation);
  args.collect(settings_.residual_last);
  args.collect(settings_.negative_slope);
}

variable_list BackwardNode::apply_with_saved(const variable_list& inputs,
                                             SwapSavedVariables& saved) {
  saved.before(kept_);
  saved.before(settings_.geometry);

  PackedArgs packed;
  packed.pack(unpack());
  packed.pack(settings_.geometry);
  packed.pack(settings_.algorithm);
  packed.pack(settings_.activation);
  packed.pack(settings_.residual_last);
  packed.pack(settings_.negative_slope);
  packed.pack(needed());
  const std::vector<c10::IValue> arguments = std::move(packed).vec();
  std::vector<at::TypePtr> schema;
  for (const c10::IValue& value : arguments) {
    schema.push_back(value.isTensor() ? at::TypePtr(at::TensorType::get()) : value.type());
  }
  const auto call = [formula = formula_](const variable_list& incoming,
                                         const std::vector<c10::IValue>& values) {
    PackedArgs packed_values(values);
    const auto kept = packed_values.unpack<variable_list>();
    Settings settings;
    settings.geometry = packed_values.unpack<std::vector<c10::SymInt>>();
    settings.algorithm = packed_values.unpack<std::string>();
    settings.activation = packed_values.unpack<std::string>();
    settings.residual_last = packed_values.unpack<bool>();
    settings.negative_slope = packed_values.unpack<double>();
    return formula(incoming, kept, settings, packed_values.unpack<std::vector<bool>>());
  };
  const auto& compiler = torch::dynamo::autograd::getPyCompilerInterface();
  const std::string bound =
      compiler->bind_function(saved.get_py_compiler(), name_, call, schema,
                              /*is_custom_function=*/true, /*is_traceable=*/true);
  const auto metadata =
      IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
          torch::dynamo::autograd::get_input_metadata(next_edges()));
  variable_list gradients = compiler->call_function(saved.get_py_compiler(), "apply_functional",
                                                    bound, inputs, arguments, metadata);

  saved.after(settings_.geometry);
  saved.after(kept_);
  return gradients;
}

void set_history(const variable_list& results, const char* name, Formula formula,
                 const variable_list& arguments, const variable_list& kept, Settings settings,
                 bool last_is_result) {
  edge_list edges;
  edges.reserve(arguments.size());
  for (const at::Tensor& argument : arguments) {
    edges.push_back(argument.defined() ? torch::autograd::impl::gradient_edge(argument)
                                       : torch::autograd::Edge());
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13  // nodes count their owners themselves
  const auto node =
      c10::make_intrusive<BackwardNode>(name, formula, std::move(edges), std::move(settings));
#else
  const std::shared_ptr<BackwardNode> node(
      new BackwardNode(name, formula, std::move(edges), std::move(settings)),
      torch::autograd::deleteNode);
#endif
  torch::autograd::set_history(results, node);
  node->keep(kept, last_is_result);
}

}  // namespace customconv::torch_layer
