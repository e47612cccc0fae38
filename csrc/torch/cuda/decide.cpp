#include "torch/cuda/decide.h"

#include <c10/util/Exception.h>

#include <optional>

#include "torch/cuda/device.h"

namespace customconv::torch_layer {

namespace {

thread_local std::optional<ConvPlan> forced;

}  // namespace

Decided decide_on(c10::DeviceIndex device, const Asked& asked) {
  if (forced && asked.algorithm != Algorithm::kAuto) {
    check_plan(asked.problem, *forced, device_properties(device));
    Decision decision;
    decision.problem = asked.problem;
    decision.plan = *forced;
    return std::make_shared<const Decision>(std::move(decision));
  }
  Decided decided;
  try {
    decided = decide(device, asked, device_properties(device), /*records=*/true);
  } catch (const std::runtime_error& error) {
    TORCH_CHECK(false, error.what());
  }
  if (decided->dropped) {
    TORCH_WARN_ONCE(
        "customconv: a tuned plan was dropped because this build has no such plan for its problem; "
        "the planner decides instead. Further ones are dropped silently. To renew them, tune "
        "again.");
  }
  return decided;
}

Fallback why_aten(c10::DeviceIndex device, const Decision& decision) {
  if (decision.tuned) return Fallback::kTuned;
  return device_properties(device).has_prices() ? Fallback::kNoFamily : Fallback::kUnmeasured;
}

void force_plan(const ConvPlan* plan) {
  forced = plan == nullptr ? std::nullopt : std::optional(*plan);
}

}  // namespace customconv::torch_layer
