// depthwise: every channel by filters of its own, by the kind of kernels that is fastest.
#include "plan/plan.h"

#include <vector>

namespace customconv::depthwise {

#define CUSTOMCONV_KIND(name) \
  namespace name {            \
  extern const Family kind;   \
  }
#include "kernels/depthwise/kinds.def"
#undef CUSTOMCONV_KIND

namespace {

const Family* const kKinds[] = {
#define CUSTOMCONV_KIND(name) &name::kind,
#include "kernels/depthwise/kinds.def"
#undef CUSTOMCONV_KIND
};

const char* can_implement(const ConvProblem& p, const DeviceProperties& d) {
  return kKinds[0]->can_implement(p, d);
}

const Family& kind_of(const ConvPlan& plan) {
  switch (plan.payload.kind()) {
#define CUSTOMCONV_KIND(name)      \
  case PlanKind::depthwise_##name: \
    return name::kind;
#include "kernels/depthwise/kinds.def"
#undef CUSTOMCONV_KIND
    default:
      return bands::kind;  // its gradients
  }
}

ConvPlan propose(const ConvProblem& p, const DeviceProperties& d, const Wanted&) {
  ConvPlan best{};
  for (const Family* kind : kKinds) {
    if (kind->can_implement(p, d) != nullptr) continue;
    const ConvPlan plan = kind->propose(p, d, {});
    if (plan.threads == 0) continue;
    if (best.threads == 0 || plan.predicted_ms < best.predicted_ms) best = plan;
  }
  return best;
}

std::vector<ConvPlan> variants(const ConvProblem& p, const DeviceProperties& d) {
  std::vector<ConvPlan> plans;
  for (const Family* kind : kKinds) {
    if (kind->can_implement(p, d) != nullptr) continue;
    for (const ConvPlan& plan : kind->variants(p, d)) plans.push_back(plan);
  }
  return plans;
}

// boxes and planes add taps in one order, whatever the tile.
int64_t sum_order(const ConvProblem& p, const ConvPlan& plan) {
  const Family& kind = kind_of(plan);
  const auto own = kind.sum_order != nullptr ? kind.sum_order(p, plan) : 0;
  return own * 256 + static_cast<int>(plan.payload.kind());
}

LaunchShape shape(const ConvProblem& p, const DeviceProperties& d, const ConvPlan& plan) {
  const Family& kind = kind_of(plan);
  return kind.can_implement(p, d) == nullptr ? kind.shape(p, d, plan) : LaunchShape{};
}

}  // namespace

extern const Family family;
const Family family{"depthwise", can_implement,  propose,  shape,
                    variants,    /*fuses=*/true, sum_order};

}  // namespace customconv::depthwise
