// CUSTOMCONV_LOG=plan prints each new plan once, to stderr.
#pragma once

#include "plan/planner.h"

namespace customconv {

void log_plan(const ConvProblem& problem, const ConvPlan& plan);

}  // namespace customconv
