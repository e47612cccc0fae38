// What the planner of a family of many plans is made of.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace customconv {

// Weighs plans and keeps the cheapest; without a block until there is one. A family's own search
// derives from it, and adds its plans in `best()`, which returns the cheapest.
class PlanSearch {
 public:
  // `all`: where every plan goes that is weighed.
  PlanSearch(const ConvProblem& p, const DeviceProperties& d, std::vector<ConvPlan>* all = nullptr)
      : p_(p), d_(d), all_(all) {}

 protected:
  void add(const ConvPlan& plan) {
    if (all_ != nullptr) all_->push_back(plan);
    if (best_.threads == 0 || plan.predicted_ms < best_.predicted_ms) best_ = plan;
  }

  const ConvProblem& p_;
  const DeviceProperties& d_;
  ConvPlan best_{};

 private:
  std::vector<ConvPlan>* all_;
};

// The best plan of any `Search(problem, device, all)` with such a `best()`.
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
