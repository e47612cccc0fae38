// What the planner of a family of many plans is made of.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "plan/hardware.h"
#include "plan/plan.h"
#include "plan/price.h"

namespace customconv {

// Tiles, or parts of them, that a search has tried: so few that a list will do.
template <typename T>
class Tried {
 public:
  void clear() { tried_.clear(); }
  // Whether it is new.
  bool add(const T& each) {
    if (std::find(tried_.begin(), tried_.end(), each) != tried_.end()) return false;
    tried_.push_back(each);
    return true;
  }

 private:
  std::vector<T> tried_;
};

// Weighs plans and keeps the cheapest; without a block until there is one. A family's own search
// derives from it, and adds its plans in `best()`, which returns the cheapest.
class PlanSearch {
 public:
  // `all`: where every plan goes that is weighed.
  PlanSearch(const ConvProblem& p, const DeviceProperties& d, std::vector<ConvPlan>* all = nullptr,
             const Wanted& wanted = {})
      : p_(p), d_(d), all_(all), wanted_(wanted) {}

 protected:
  // Whether it has found enough.
  bool is_over() const { return best_.threads > 0 && best_.predicted_ms <= wanted_.enough_ms; }
  // Whether a plan need not be weighed whose blocks keep a unit busy for at least so many clocks
  // each.
  bool is_slow(uint16_t row, double blocks, double busy) const {
    const double clocks = std::ceil(blocks / d_.sm_count) * busy / prices_of(d_)[row].rate;
    return hardware::kLaunchMs + clocks / (d_.clock_ghz * 1e6) >= limit();
  }

  // Prices a plan's works, as far as that matters. Whether the plan is to be kept.
  bool is_wanted(ConvPlan& plan) const {
    plan.predicted_ms = price(plan.works, d_, limit());
    return all_ != nullptr || best_.threads == 0 || plan.predicted_ms < best_.predicted_ms;
  }
  void keep(const ConvPlan& plan) {
    if (all_ != nullptr) all_->push_back(plan);
    if (best_.threads == 0 || plan.predicted_ms < best_.predicted_ms) best_ = plan;
  }
  void add(ConvPlan& plan) {
    if (is_wanted(plan)) keep(plan);
  }

  const ConvProblem& p_;
  const DeviceProperties& d_;
  ConvPlan best_{};

 private:
  double limit() const {
    if (all_ != nullptr) return kNoLimit;
    return best_.threads == 0 ? wanted_.most_ms : std::min(best_.predicted_ms, wanted_.most_ms);
  }

  std::vector<ConvPlan>* all_;
  Wanted wanted_;
};

// The best plan of any `Search(problem, device, all, wanted)` with such a `best()`.
template <typename Search>
ConvPlan cheapest_of(const ConvProblem& problem, const DeviceProperties& device,
                     const Wanted& wanted) {
  return Search(problem, device, nullptr, wanted).best();
}

template <typename Search>
std::vector<ConvPlan> all_of(const ConvProblem& problem, const DeviceProperties& device) {
  std::vector<ConvPlan> plans;
  Search(problem, device, &plans).best();
  return plans;
}

}  // namespace customconv
