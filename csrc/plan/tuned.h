// Plans that were measured to be the fastest, and the problems that are recorded to be measured.
//
// All of it belongs to the process and is safe from any thread. Devices are told by their index.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "plan/name.h"

namespace customconv {

// What tuning chose. It names a plan instead of holding one, so that it survives in a file: only a
// plan that the planner lists for the problem is ever run.
struct TunedPlan {
  PlanName name;
  double ms = 0;          // as it was measured
  double pytorch_ms = 0;  // of PyTorch's own convolution; 0 where it was not measured
};

// The plan of that name among those of the problem, in the precision that the planner settles on,
// which `problem.tf32` is set to; none where the planner lists no such plan. PyTorch's own
// convolution (kAten) rounds where it may. So it is refused where that is allowed and the planner
// settles on IEEE float32: another view of the same numbers would not be rounded.
std::optional<ConvPlan> resolve(const TunedPlan& tuned, ConvProblem& problem,
                                const DeviceProperties& device);

struct TunedProblem {
  int device_index;
  ConvProblem problem;  // its tf32 says what is allowed
  TunedPlan plan;
};

// From now on `decide` takes this plan for the problem, in place of an earlier one.
void set_tuned_plan(const TunedProblem& tuned);
std::optional<TunedPlan> tuned_plan(int device_index, const ConvProblem& problem);
std::vector<TunedProblem> tuned_plans();
void drop_tuned_plan(int device_index, const ConvProblem& problem);
void clear_tuned_plans();

// Between these two, each problem that is recorded is kept once. `begin` gives false, and nothing
// changes, where a recording is under way.
bool begin_recording();
std::vector<std::pair<int, ConvProblem>> end_recording();
bool is_recording();
void record(int device_index, const ConvProblem& problem);

}  // namespace customconv
