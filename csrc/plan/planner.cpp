#include "plan/planner.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
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

// Whether the rows of all operands of a 1x1 convolution's product are whole 16-byte vectors. A row
// holds channels in NHWC, and the pixels of an image in NCHW.
bool has_whole_vectors(const ConvProblem& p) {
  const bool channels_last = dense_layout(p.y_sizes(), p.y_strides) == Layout::kNhwc;
  return p.C % 4 == 0 && p.K % 4 == 0 && (channels_last || p.P * p.Q % 4 == 0);
}

// Whether a family rounds this problem's float32 operands to TF32, as the problem allows it.
bool rounds_to_tf32(FamilyId family, const ConvProblem& p) {
  switch (family) {
    case FamilyId::implicit_gemm:
    case FamilyId::grouped:
    case FamilyId::col2im:
      return true;
    case FamilyId::im2col:
      // cuBLAS may, but is free not to. It does in large products of whole vectors.
      return p.is_pointwise() && p.groups == 1 && p.C >= 64 && p.K >= 64 && has_whole_vectors(p);
    case FamilyId::direct:
    case FamilyId::tiled:
    case FamilyId::depthwise:
    case FamilyId::kAten:
      break;
  }
  return false;
}

// Whether a family computes a problem in the precision that was settled on.
bool keeps_precision(size_t index, const ConvProblem& settled) {
  return !settled.tf32 || rounds_to_tf32(static_cast<FamilyId>(index), settled);
}

// The cheapest plan in the problem's precision.
ConvPlan cheapest(const ConvProblem& problem, const DeviceProperties& device) {
  ConvPlan best;
  for (size_t i = 0; i < kFamilyCount; ++i) {
    ConvPlan proposed;
    if (!keeps_precision(i, problem)) continue;
    if (propose(i, problem, device, proposed) != nullptr) continue;
    if (best.family == FamilyId::kAten || proposed.predicted_ms < best.predicted_ms) {
      best = proposed;
    }
  }
  return best;
}

double cheapest_ms(const ConvProblem& problem, const DeviceProperties& device) {
  const ConvPlan best = cheapest(problem, device);
  return best.family == FamilyId::kAten ? std::numeric_limits<double>::infinity()
                                        : best.predicted_ms;
}

std::string format_ms(double ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g ms", ms);
  return text;
}

}  // namespace

bool computes_in_tf32(const ConvProblem& problem, const DeviceProperties& device) {
  if (!problem.tf32) return false;
  ConvProblem dense = problem;
  dense.x_aligned = dense.w_aligned = dense.y_aligned = true;
  double ratio = 1;
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    dense.x_strides = dense_strides(dense.x_sizes(), layout);
    dense.w_strides = dense_strides(dense.w_sizes(), layout);
    dense.y_strides = dense_strides(dense.y_sizes(), layout);
    dense.tf32 = true;
    ratio *= cheapest_ms(dense, device);
    dense.tf32 = false;
    ratio /= cheapest_ms(dense, device);
  }
  return ratio <= 1;
}

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

ConvPlan plan(ConvProblem& problem, const DeviceProperties& device, Algorithm algorithm,
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
  problem.tf32 = computes_in_tf32(problem, device);
  return cheapest(problem, device);
}

Explanation explain(const ConvProblem& problem, const DeviceProperties& device,
                    Algorithm algorithm) {
  Explanation explanation;
  ConvProblem settled = problem;
  explanation.plan = plan(settled, device, algorithm);
  const ConvPlan& taken = explanation.plan;
  for (size_t i = 0; i < kFamilyCount; ++i) {
    Candidate candidate;
    candidate.family = kFamilies[i]->name;
    // As if it were asked for by name, in whatever precision it has.
    const char* why_not = propose(i, problem, device, candidate.plan);
    candidate.possible = why_not == nullptr;
    ConvPlan weighed;
    const bool keeps =
        keeps_precision(i, settled) && propose(i, settled, device, weighed) == nullptr;
    if (taken.family != static_cast<FamilyId>(i)) {
      if (!candidate.possible) {
        candidate.reason = why_not;
      } else if (algorithm != Algorithm::kAuto) {
        candidate.reason = std::string("algorithm '") + to_string(algorithm) + "' was asked for";
      } else if (!keeps) {
        candidate.reason = settled.tf32 ? "it computes in IEEE float32, and TF32 is faster here"
                                        : "it rounds to TF32, and IEEE float32 is faster here";
      } else {
        candidate.reason = "predicted " + format_ms(weighed.predicted_ms) + ", against " +
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

std::vector<ConvPlan> tunable(ConvProblem& problem, const DeviceProperties& device) {
  problem.tf32 = computes_in_tf32(problem, device);
  std::vector<ConvPlan> plans = variants(problem, device);
  const auto is_out = [&](const ConvPlan& plan) {
    return plan.grid[0] < 1 || !keeps_precision(static_cast<size_t>(plan.family), problem);
  };
  plans.erase(std::remove_if(plans.begin(), plans.end(), is_out), plans.end());
  std::stable_sort(plans.begin(), plans.end(), [](const ConvPlan& a, const ConvPlan& b) {
    return a.predicted_ms < b.predicted_ms;
  });
  const ConvPlan taken = cheapest(problem, device);
  if (taken.family != FamilyId::kAten) plans.insert(plans.begin(), taken);
  return plans;
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
  std::string text = std::string(plan.tuned ? "tuned " : "") + to_string(plan.family);
  if (plan.family == FamilyId::kAten) return text;
  text += std::string(" ") + plan.variant;
  if (plan.tile[0] > 0) {
    text += " tile " + std::to_string(plan.tile[0]) + " x " + std::to_string(plan.tile[1]) + " x " +
            std::to_string(plan.tile[2]);
  }
  if (plan.splits > 1) text += " splits " + std::to_string(plan.splits);
  text += " grid (" + std::to_string(plan.grid[0]) + ", " + std::to_string(plan.grid[1]) + ", " +
          std::to_string(plan.grid[2]) + ") block " + std::to_string(plan.block) + " shared " +
          std::to_string(plan.shared_bytes) + " workspace " + std::to_string(plan.workspace_bytes) +
          " predicted " + format_ms(plan.predicted_ms);
  return text;
}

}  // namespace customconv
