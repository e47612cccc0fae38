#include "torch/cuda/decide.h"

namespace customconv::torch_layer {

Decision decide_on(c10::DeviceIndex device, const Asked& asked, bool records) {
  Decision decision;
  check(customconv_decide(device, &asked, records, &decision));
  if (decision.dropped) {
    TORCH_WARN_ONCE(
        "customconv: a tuned plan was dropped because this build has no such plan for its problem; "
        "the planner decides instead. Further ones are dropped silently. To renew them, tune "
        "again.");
  }
  return decision;
}

Fallback why_aten(c10::DeviceIndex device, const Decision& decision) {
  if (decision.tuned) return Fallback::kTuned;
  if (!customconv_device(device)->has_prices()) return Fallback::kUnmeasured;
  return decision.problem.is_deep() ? Fallback::kSlower : Fallback::kNoFamily;
}

}  // namespace customconv::torch_layer
