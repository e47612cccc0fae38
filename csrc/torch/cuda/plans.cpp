#include "torch/cuda/plans.h"

#include <c10/util/Exception.h>

#include <optional>

#include "torch/cuda/device.h"

namespace customconv::torch_layer {

namespace {

thread_local std::optional<ConvPlan> forced;

ConvPlan decided(c10::DeviceIndex device, ConvProblem& problem, Algorithm algorithm, bool prefer,
                 bool record) {
  if (forced && algorithm != Algorithm::kAuto) {
    check_plan(problem, *forced, device_properties(device));
    return *forced;
  }
  bool dropped = false;
  ConvPlan plan;
  try {
    plan = decide(device, problem, device_properties(device), algorithm, prefer, record, dropped);
  } catch (const std::runtime_error& error) {
    TORCH_CHECK(false, error.what());
  }
  if (dropped) {
    TORCH_WARN_ONCE(
        "customconv: a tuned plan was dropped because this build has no such plan for its problem; "
        "the planner decides instead. Further ones are dropped silently. To renew them, tune "
        "again.");
  }
  return plan;
}

}  // namespace

ConvPlan plan_on(c10::DeviceIndex device, ConvProblem& problem, Algorithm algorithm, bool prefer) {
  return decided(device, problem, algorithm, prefer, /*record=*/true);
}

bool rounds_on(c10::DeviceIndex device, ConvProblem problem, Algorithm algorithm) {
  // A forced plan is one for the operands as they are.
  if (forced && algorithm != Algorithm::kAuto) return false;
  decided(device, problem, algorithm, /*prefer=*/true, /*record=*/false);
  return problem.tf32;
}

void force_plan(const ConvPlan* plan) {
  forced = plan == nullptr ? std::nullopt : std::optional(*plan);
}

}  // namespace customconv::torch_layer
