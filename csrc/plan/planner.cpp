#include "plan/planner.h"

#include <array>
#include <cstdio>
#include <stdexcept>

namespace customconv {

#define CUSTOMCONV_FAMILY(name) \
  namespace name {              \
  extern const Family family;   \
  }
#include "plan/families.def"
#undef CUSTOMCONV_FAMILY

namespace {

constexpr size_t kFamilyCount = static_cast<size_t>(FamilyId::kAten);

const std::array<const Family*, kFamilyCount> kFamilies = {
#define CUSTOMCONV_FAMILY(name) &name::family,
#include "plan/families.def"
#undef CUSTOMCONV_FAMILY
};

bool is_family(Algorithm algorithm) { return static_cast<size_t>(algorithm) < kFamilyCount; }

constexpr double kPassMs = 0.003;  // to launch one
constexpr double kPassBandwidth = 0.85;

// What PyTorch takes for an epilogue that the kernels of a family don't do.
double epilogue_ms(const ConvProblem& p, const DeviceProperties& device) {
  const double y_bytes = static_cast<double>(p.y_count() * element_size(p.dtype));
  const double pass = 2 * y_bytes * 1e-6 / (kPassBandwidth * device.bandwidth_gb_s);
  return p.epilogue_passes * (kPassMs + pass);
}

// A family's own plan as the planner compares it.
ConvPlan complete(ConvPlan plan, size_t index, const ConvProblem& problem,
                  const DeviceProperties& device) {
  plan.family = static_cast<FamilyId>(index);
  plan.fuses = kFamilies[index]->fuses;
  if (!plan.fuses) plan.predicted_ms += epilogue_ms(problem, device);
  return plan;
}

// Leaves a family's plan in `plan`, or returns why there is none: also where nothing is known that
// rules a problem out, but no tile fits it.
const char* propose(size_t index, const ConvProblem& problem, const DeviceProperties& device,
                    ConvPlan& plan) {
  const char* why_not = kFamilies[index]->can_implement(problem, device);
  if (why_not != nullptr) return why_not;
  plan = complete(kFamilies[index]->propose(problem, device), index, problem, device);
  return plan.grid[0] > 0 ? nullptr : "none of its tiles fits the problem";
}

std::string format_ms(double ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g ms", ms);
  return text;
}

}  // namespace

const char* to_string(FamilyId family) {
  return family == FamilyId::kAten ? "aten" : kFamilies[static_cast<size_t>(family)]->name;
}

const char* to_string(Algorithm algorithm) {
  if (algorithm == Algorithm::kAuto) return "auto";
  if (algorithm == Algorithm::kAten) return "aten";
  return kFamilies[static_cast<size_t>(algorithm)]->name;
}

Algorithm parse_algorithm(const std::string& name) {
  if (name == "auto") return Algorithm::kAuto;
  if (name == "aten") return Algorithm::kAten;
  std::string known;
  for (size_t i = 0; i < kFamilyCount; ++i) {
    if (name == kFamilies[i]->name) return static_cast<Algorithm>(i);
    known += std::string("'") + kFamilies[i]->name + "', ";
  }
  throw std::invalid_argument("unknown algorithm '" + name + "': expected one of " + known +
                              "'auto', 'aten'");
}

ConvPlan plan(const ConvProblem& problem, const DeviceProperties& device, Algorithm algorithm,
              bool prefer) {
  if (algorithm == Algorithm::kAten) return {};
  if (is_family(algorithm)) {
    const auto index = static_cast<size_t>(algorithm);
    ConvPlan own;
    const char* why_not = propose(index, problem, device, own);
    if (why_not == nullptr) return own;
    if (!prefer) {
      throw std::runtime_error(std::string("algorithm '") + kFamilies[index]->name +
                               "' cannot compute this " + to_string(problem.pass) + ": " + why_not);
    }
  }
  ConvPlan best;
  for (size_t i = 0; i < kFamilyCount; ++i) {
    ConvPlan proposed;
    if (propose(i, problem, device, proposed) != nullptr) continue;
    if (best.family == FamilyId::kAten || proposed.predicted_ms < best.predicted_ms) {
      best = proposed;
    }
  }
  return best;
}

Explanation explain(const ConvProblem& problem, const DeviceProperties& device,
                    Algorithm algorithm) {
  Explanation explanation;
  explanation.plan = plan(problem, device, algorithm);
  const ConvPlan& taken = explanation.plan;
  for (size_t i = 0; i < kFamilyCount; ++i) {
    Candidate candidate;
    candidate.family = kFamilies[i]->name;
    const char* why_not = propose(i, problem, device, candidate.plan);
    candidate.possible = why_not == nullptr;
    if (taken.family != static_cast<FamilyId>(i)) {
      if (!candidate.possible) {
        candidate.reason = why_not;
      } else if (algorithm != Algorithm::kAuto) {
        candidate.reason = std::string("algorithm '") + to_string(algorithm) + "' was asked for";
      } else {
        candidate.reason = "predicted " + format_ms(candidate.plan.predicted_ms) + ", against " +
                           format_ms(taken.predicted_ms) + " for " + to_string(taken.family);
      }
    }
    explanation.candidates.push_back(std::move(candidate));
  }
  Candidate aten;
  aten.family = "aten";
  if (taken.family != FamilyId::kAten) {
    aten.reason = "used where no family of ours can compute the problem";
  }
  explanation.candidates.push_back(std::move(aten));
  return explanation;
}

std::vector<ConvPlan> variants(const ConvProblem& problem, const DeviceProperties& device) {
  std::vector<ConvPlan> all;
  for (size_t i = 0; i < kFamilyCount; ++i) {
    const Family& family = *kFamilies[i];
    if (family.variants == nullptr) {
      ConvPlan own;
      if (propose(i, problem, device, own) == nullptr) all.push_back(own);
    } else if (family.can_implement(problem, device) == nullptr) {
      for (const ConvPlan& plan : family.variants(problem, device)) {
        all.push_back(complete(plan, i, problem, device));
      }
    }
  }
  return all;
}

std::vector<Candidate> refused(const std::string& reason) {
  std::vector<Candidate> candidates;
  for (const Family* family : kFamilies) {
    Candidate candidate;
    candidate.family = family->name;
    candidate.reason = reason;
    candidates.push_back(std::move(candidate));
  }
  Candidate aten;
  aten.family = "aten";
  candidates.push_back(std::move(aten));
  return candidates;
}

std::string to_string(const ConvPlan& plan) {
  std::string text = to_string(plan.family);
  if (plan.family == FamilyId::kAten) return text;
  text += std::string(" ") + plan.variant + " grid (" + std::to_string(plan.grid[0]) + ", " +
          std::to_string(plan.grid[1]) + ", " + std::to_string(plan.grid[2]) + ") block " +
          std::to_string(plan.block) + " shared " + std::to_string(plan.shared_bytes) +
          " workspace " + std::to_string(plan.workspace_bytes) + " predicted " +
          format_ms(plan.predicted_ms);
  return text;
}

}  // namespace customconv
