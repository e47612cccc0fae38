// Problems as Python asks for them, and what a library computes of them.
#pragma once

#include <vector>

#include "kernels/launch.h"
#include "plan/name.h"
#include "plan/plan.h"

namespace customconv {

struct Asked {
  int64_t input[4], weight[4], stride[2], padding[2], dilation[2], groups;
  int64_t x_strides[4], w_strides[4], y_strides[4];
  int64_t dtype;  // float32, float16, bfloat16
  int64_t pass;   // fprop, dgrad, wgrad
  int64_t tf32;
};

// Plans that the library can run, the parts of statistics that they leave, and what runs them. The
// fields of these plans (plan/name.h) are the library's to give, too.
std::vector<ConvPlan> plans_of(const ConvProblem& problem);
int64_t statistics_parts(const ConvProblem& problem, const ConvPlan& plan);
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context);

}  // namespace customconv
