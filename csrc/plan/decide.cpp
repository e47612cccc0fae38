#include "plan/decide.h"

#include <utility>

#include "plan/cache.h"

namespace customconv {

namespace {

// Makes the operands that the pass reads dense and aligned, and says which were not.
Copies make_dense(ConvProblem& p, Layout layout) {
  const auto copy = [layout](const Shape5& sizes, Shape5& strides, bool& aligned) {
    const bool is_dense = strides_match(sizes, strides, layout);
    if (!is_dense) strides = dense_strides(sizes, layout);
    return !std::exchange(aligned, true) || !is_dense;
  };
  Copies copies;
  if (p.pass != Pass::kDgrad) copies.x = copy(p.x_sizes(), p.x_strides, p.x_aligned);
  if (p.pass != Pass::kWgrad) copies.w = copy(p.w_sizes(), p.w_strides, p.w_aligned);
  if (p.pass != Pass::kFprop) copies.y = copy(p.y_sizes(), p.y_strides, p.y_aligned);
  return copies;
}

// All but the plan, for what an algorithm does.
Decision lay_out(const Asked& asked, Algorithm algorithm, const DeviceProperties& device) {
  Decision d;
  d.problem = asked.problem;
  ConvProblem dense = asked.problem;
  const Copies copies = make_dense(dense, asked.layout);
  if (!copies.any()) return d;
  const bool is_free = algorithm == Algorithm::kAuto;
  const bool rounds = is_free ? computes_in_tf32(dense, device)
                              : dense.tf32 && may_round_to_tf32(static_cast<FamilyId>(algorithm));
  if (rounds || is_batch_invariant(dense)) {
    d.problem = dense;
    d.copies = copies;
  } else if (is_free) {
    d.problem.tf32 = false;  // as `plan` would settle once more
  }
  return d;
}

// The problem that is tuned in place of what was asked for.
ConvProblem tunable_problem(const Asked& asked, const Decision& decision) {
  ConvProblem problem = decision.problem;
  problem.tf32 = asked.problem.tf32;
  return problem;
}

}  // namespace

Decision decide_anew(int device_index, const Asked& asked, const DeviceProperties& device) {
  Decision d = lay_out(asked, asked.algorithm, device);
  if (asked.algorithm == Algorithm::kAuto) {
    ConvProblem problem = tunable_problem(asked, d);
    if (const auto tuned = tuned_plan(device_index, problem)) {
      if (const auto plan = resolve(*tuned, problem, device)) {
        return {problem, *plan, d.copies, tuned};
      }
      drop_tuned_plan(device_index, problem);
      d.dropped = true;
    }
  }
  d.plan =
      plan(d.problem, device, asked.algorithm, asked.prefer, asked.image ? &*asked.image : nullptr);
  const bool is_named = asked.algorithm != Algorithm::kAuto && asked.algorithm != Algorithm::kAten;
  if (asked.prefer && is_named && d.plan.family != static_cast<FamilyId>(asked.algorithm)) {
    // The planner's choice has its own copies.
    d = lay_out(asked, Algorithm::kAuto, device);
    d.plan = plan(d.problem, device);
  }
  return d;
}

std::shared_ptr<const Decision> decide(int device_index, const Asked& asked,
                                       const DeviceProperties& device, bool records) {
  const PlanKey key =
      key_of(device_index, asked.problem, asked.algorithm, asked.prefer, asked.layout, asked.image);
  std::shared_ptr<const Decision> decision = decisions().find(key);
  if (decision == nullptr) {
    // No lock is held while planning. The generation is read first, so that a plan made before a
    // tuned one arrived is not cached after it.
    const uint64_t generation = decisions().generation();
    auto made = std::make_shared<Decision>(decide_anew(device_index, asked, device));
    auto kept = made;
    if (made->dropped) {  // which is told once
      kept = std::make_shared<Decision>(*made);
      kept->dropped = false;
    }
    decisions().insert(key, std::move(kept), generation);
    decision = std::move(made);
  }
  if (records && is_recording() && asked.algorithm == Algorithm::kAuto &&
      !is_batch_invariant(asked.problem) && !asked.problem.has_statistics) {
    record(device_index, tunable_problem(asked, *decision));
  }
  return decision;
}

std::vector<Candidate> candidates(const Asked& asked, const Decision& decision,
                                  const DeviceProperties& device) {
  const ConvPlan& taken = decision.plan;
  const std::string name = to_string(taken.family);
  const bool in_order = is_batch_invariant(asked.problem);
  const bool has_prices = device.has_prices() || asked.problem.batch_invariant;
  // Whose times were compared.
  ConvProblem compared = decision.problem;
  if (in_order) compared.N = reference_batch(compared);
  const auto ms_of = [&](FamilyId family) -> std::optional<double> {
    ConvPlan own;
    if (!keeps_precision(family, compared)) return std::nullopt;
    if (propose(family, compared, device, own) != nullptr) return std::nullopt;
    return own.predicted_ms;
  };
  const bool is_free = asked.algorithm == Algorithm::kAuto;
  const double taken_ms =
      in_order && is_free ? ms_of(taken.family).value_or(0) : taken.predicted_ms;
  const auto why_not_taken = [&](FamilyId family) -> std::string {
    if (!is_free) {
      return std::string("algorithm '") + to_string(asked.algorithm) + "' was asked for";
    }
    if (!has_prices && !taken.tuned) return "nobody has measured this GPU";
    if (!may_choose(family, compared)) return "PyTorch's own is faster for most such volumes";
    const std::optional<double> ms = ms_of(family);
    if (!ms) {
      return compared.tf32 ? "it computes in IEEE float32, and TF32 is faster here"
                           : "it rounds to TF32, and IEEE float32 is faster here";
    }
    if (taken.tuned) return name + " was the fastest when it was tuned";
    if (in_order && family == FamilyId::direct) {
      return "used where no other family can compute the problem for every batch";
    }
    return "predicted " + format_ms(*ms) + ", against " + format_ms(taken_ms) + " for " + name +
           (in_order ? ", of " + std::to_string(compared.N) + " images" : "");
  };
  std::vector<Candidate> all = refused("");
  for (Candidate& candidate : all) {
    const auto family = static_cast<FamilyId>(&candidate - all.data());
    const bool is_taken = family == taken.family;
    if (family != FamilyId::kAten) {
      const auto named = static_cast<Algorithm>(family);
      ConvProblem problem = in_order ? decision.problem : lay_out(asked, named, device).problem;
      problem.tf32 = asked.problem.tf32;
      const char* why_not = propose(family, problem, device, candidate.plan);
      candidate.possible = why_not == nullptr;
      if (!is_taken) candidate.reason = candidate.possible ? why_not_taken(family) : why_not;
      if (is_taken && taken.tuned) candidate.plan = taken;
    } else if (!is_taken) {
      candidate.reason =
          taken.tuned  ? name + " was the fastest when it was tuned"
          : has_prices ? "used where no family of ours can compute the problem, or none faster"
                       : "used on a GPU that nobody has measured, where bytes leave a doubt";
    }
  }
  return all;
}

std::vector<Candidate> refused(const std::string& reason) {
  std::vector<Candidate> all;
  for (size_t i = 0; i <= static_cast<size_t>(FamilyId::kAten); ++i) {
    const auto family = static_cast<FamilyId>(i);
    Candidate candidate;
    candidate.family = to_string(family);
    if (family != FamilyId::kAten) candidate.reason = reason;
    all.push_back(std::move(candidate));
  }
  return all;
}

}  // namespace customconv
