// What a family's planner is made of whose `Search(problem, device, all)` weighs plans: `best()`
// returns the cheapest, and every plan weighed goes to `all` where that is not null.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace customconv {

template <typename Search>
ConvPlan cheapest_of(const ConvProblem& problem, const DeviceProperties& device) {
  return Search(problem, device).best();
}

template <typename Search>
std::vector<ConvPlan> all_of(const ConvProblem& problem, const DeviceProperties& device) {
  std::vector<ConvPlan> plans;
  Search(problem, device, &plans).best();
  return plans;
}

}  // namespace customconv
