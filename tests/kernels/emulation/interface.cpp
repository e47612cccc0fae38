// A library for Python: the plans of a problem, and what each computes.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "gpu.h"
#include "problems.h"

namespace customconv {
namespace {

struct Found {
  char fields[256], kind[256];  // all, and those that are no sizes
  int64_t splits;
};

void copy(const std::string& text, char (&to)[256]) {
  if (text.size() >= sizeof to) throw std::length_error("the fields of a plan");
  std::strcpy(to, text.c_str());
}

// Strides, of which those of a depth of one are 0.
Shape5 strides_of(const int64_t (&strides)[5], int64_t depth) {
  return {strides[0], strides[1], strides[2], strides[3], depth > 1 ? strides[4] : 0};
}

ConvProblem problem_of(const Asked& a) {
  constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  ConvProblem p;
  constexpr Pass kPasses[] = {Pass::kFprop, Pass::kDgrad, Pass::kWgrad};
  p.pass = kPasses[a.pass];
  p.dtype = kDTypes[a.dtype];
  p.tf32 = a.tf32 != 0;
  p.batch_invariant = a.batch_invariant != 0;
  p.N = a.input[0];
  p.C = a.input[1];
  p.H = a.input[2];
  p.W = a.input[3];
  p.K = a.weight[0];
  p.R = a.weight[2];
  p.S = a.weight[3];
  p.stride_h = a.stride[0];
  p.stride_w = a.stride[1];
  p.pad_h = a.padding[0];
  p.pad_w = a.padding[1];
  p.dilation_h = a.dilation[0];
  p.dilation_w = a.dilation[1];
  p.groups = a.groups;
  p.D = a.input[4];
  p.T = a.weight[4];
  p.stride_d = a.stride[2];
  p.pad_d = a.padding[2];
  p.dilation_d = a.dilation[2];
  p.O = output_size(p.D, p.pad_d, p.dilation_d, p.T, p.stride_d);
  p.P = output_size(p.H, p.pad_h, p.dilation_h, p.R, p.stride_h);
  p.Q = output_size(p.W, p.pad_w, p.dilation_w, p.S, p.stride_w);
  p.x_strides = strides_of(a.x_strides, p.D);
  p.w_strides = strides_of(a.w_strides, p.T);
  p.y_strides = strides_of(a.y_strides, p.O);
  p.x_aligned = p.w_aligned = p.y_aligned = true;
  return p;
}

std::string failure;

}  // namespace
}  // namespace customconv

// How many plans there are; the first ones are written to `found`.
extern "C" int64_t list_plans(const customconv::Asked* asked, customconv::Found* found,
                              int64_t most) {
  using namespace customconv;
  const std::vector<ConvPlan> plans = plans_of(problem_of(*asked));
  const auto count = static_cast<int64_t>(plans.size());
  for (int64_t i = 0; i < std::min(count, most); ++i) {
    const ConvPlan& plan = plans[static_cast<size_t>(i)];
    const Fields& fields = fields_of(plan.payload.kind());
    copy(text_of(fields, plan.payload, /*sizes=*/true), found[i].fields);
    copy(text_of(fields, plan.payload, /*sizes=*/false), found[i].kind);
    found[i].splits = plan.splits;
  }
  return count;
}

// Parts of statistics that a plan leaves.
extern "C" int64_t count_statistics(const customconv::Asked* asked, int64_t number) {
  using namespace customconv;
  const ConvProblem problem = problem_of(*asked);
  return statistics_parts(problem, plans_of(problem).at(static_cast<size_t>(number)));
}

// By the plan of that number, with its statistics unless these are null. Tensors begin at multiples
// of 256 bytes, as PyTorch's do on a GPU. Returns what went wrong, or null.
extern "C" const char* compute(const customconv::Asked* asked, int64_t number, void* x, void* w,
                               void* y, float* moments, float* counts) {
  using namespace customconv;
  constexpr size_t kAlignment = 256;
  try {
    const ConvProblem problem = problem_of(*asked);
    const ConvPlan plan = plans_of(problem).at(static_cast<size_t>(number));
    const size_t bytes = (static_cast<size_t>(plan.workspace_bytes) / kAlignment + 1) * kAlignment;
    const std::unique_ptr<void, decltype(&std::free)> workspace(
        std::aligned_alloc(kAlignment, bytes), &std::free);
    std::memset(workspace.get(), 0xFF, bytes);  // no numbers
    Operands operands;
    operands.x = x;
    operands.w = w;
    operands.y = y;
    operands.epilogue.statistics = {moments, counts};
    LaunchContext context;
    context.workspace = workspace.get();
    launch(problem, plan, operands, context);
    return nullptr;
  } catch (const std::exception& error) {
    failure = error.what();
    return failure.c_str();
  }
}
