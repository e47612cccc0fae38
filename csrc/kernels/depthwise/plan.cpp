// depthwise: every channel by filters of its own, by the kind of kernels that is fastest.
#include "plan/plan.h"

#include <vector>

#include "kernels/depthwise/variants.h"

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

// `visit` gets the number and the family of every kind that can.
template <typename Visit>
void each_kind(const ConvProblem& p, const DeviceProperties& d, Visit visit) {
  int first_variant = 0;
  for (const Family* kind : kKinds) {
    if (kind->can_implement(p, d) == nullptr) visit(first_variant, *kind);
    first_variant += kKindVariants;
  }
}

ConvPlan propose(const ConvProblem& p, const DeviceProperties& d) {
  ConvPlan best{};
  each_kind(p, d, [&](int first_variant, const Family& kind) {
    ConvPlan plan = kind.propose(p, d);
    plan.variant_index += first_variant;
    if (best.block == 0 || plan.predicted_ms < best.predicted_ms) best = plan;
  });
  return best;
}

std::vector<ConvPlan> variants(const ConvProblem& p, const DeviceProperties& d) {
  std::vector<ConvPlan> plans;
  each_kind(p, d, [&](int first_variant, const Family& kind) {
    for (ConvPlan plan : kind.variants(p, d)) {
      plan.variant_index += first_variant;
      plans.push_back(plan);
    }
  });
  return plans;
}

}  // namespace

extern const Family family;
const Family family{"depthwise", can_implement, propose, variants, /*fuses=*/true};

}  // namespace customconv::depthwise
