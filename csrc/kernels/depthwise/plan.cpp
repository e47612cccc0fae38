// depthwise: every channel by filters of its own, by the kind of kernels that is fastest.
#include "plan/plan.h"

#include <iterator>
#include <stdexcept>
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

// A kind's own plan with its number among all.
ConvPlan numbered(ConvPlan plan, size_t kind) {
  if (plan.variant_index < 0 || plan.variant_index >= kKindVariants) {
    throw std::logic_error("customconv: depthwise: a variant has no number");
  }
  plan.variant_index += static_cast<int>(kind) * kKindVariants;
  return plan;
}

ConvPlan propose(const ConvProblem& p, const DeviceProperties& d) {
  ConvPlan best{};
  for (size_t i = 0; i < std::size(kKinds); ++i) {
    if (kKinds[i]->can_implement(p, d) != nullptr) continue;
    const ConvPlan plan = numbered(kKinds[i]->propose(p, d), i);
    if (plan.block == 0) continue;
    if (best.block == 0 || plan.predicted_ms < best.predicted_ms) best = plan;
  }
  return best;
}

std::vector<ConvPlan> variants(const ConvProblem& p, const DeviceProperties& d) {
  std::vector<ConvPlan> plans;
  for (size_t i = 0; i < std::size(kKinds); ++i) {
    if (kKinds[i]->can_implement(p, d) != nullptr) continue;
    for (const ConvPlan& plan : kKinds[i]->variants(p, d)) plans.push_back(numbered(plan, i));
  }
  return plans;
}

// boxes and planes add taps in one order, whatever the tile; the others' follows from the variant.
int64_t sum_order(const ConvProblem&, const ConvPlan& plan) {
  const int kind = plan.variant_index / kKindVariants;
  const bool by_kind =
      kind == static_cast<int>(Kind::boxes) || kind == static_cast<int>(Kind::planes);
  return by_kind ? int64_t{kind} * kKindVariants : plan.variant_index;
}

}  // namespace

extern const Family family;
const Family family{"depthwise", can_implement, propose, variants, /*fuses=*/true, sum_order};

}  // namespace customconv::depthwise
