// Problems as Python asks for them, and what a library computes of them.
#pragma once

#include <vector>

#include "kernels/launch.h"
#include "plan/name.h"
#include "plan/plan.h"

namespace customconv {

// Sizes and strides are of (n, c, h, w, d), as in plan/problem.h, and the geometry of (h, w, d).
struct Asked {
  int64_t input[5], weight[5], stride[3], padding[3], dilation[3], groups;
  int64_t x_strides[5], w_strides[5], y_strides[5];
  int64_t dtype;  // float32, float16, bfloat16
  int64_t pass;   // fprop, dgrad, wgrad
  int64_t tf32;
  int64_t batch_invariant;
};

// Plans that the library can run, the parts of statistics that they leave, and what runs them. The
// fields of these plans (plan/name.h) are the library's to give, too.
std::vector<ConvPlan> plans_of(const ConvProblem& problem);
int64_t statistics_parts(const ConvProblem& problem, const ConvPlan& plan);
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context);

}  // namespace customconv
