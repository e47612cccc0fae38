// The planner: a pure function of the problem and the device.
#pragma once

#include <string>

#include "plan/plan.h"

namespace customconv {

// A user's choice of algorithm. `auto` is the planner's; `aten` is PyTorch's own convolution.
enum class Algorithm : uint8_t {
#define CUSTOMCONV_FAMILY(name) name,
#include "plan/families.def"
#undef CUSTOMCONV_FAMILY
  kAuto,
  kAten,
};

// Throws std::invalid_argument that lists the known names.
Algorithm parse_algorithm(const std::string& name);
const char* to_string(Algorithm algorithm);
const char* to_string(FamilyId family);

// The plan with the least predicted time; kAten where no family can. A forced family that cannot
// compute the problem throws std::runtime_error with its reason, unless `prefer` is set: then the
// planner chooses. Allocates nothing.
ConvPlan plan(const ConvProblem& problem, const DeviceProperties& device,
              Algorithm algorithm = Algorithm::kAuto, bool prefer = false);

// The same decision, with every family's plan or the reason why it has none.
Explanation explain(const ConvProblem& problem, const DeviceProperties& device,
                    Algorithm algorithm = Algorithm::kAuto);

// Every plan of every family that can: what the planner chooses from.
std::vector<ConvPlan> variants(const ConvProblem& problem, const DeviceProperties& device);

// Every family, refused for one and the same reason, and ATen, taken.
std::vector<Candidate> refused(const std::string& reason);

std::string to_string(const ConvPlan& plan);

}  // namespace customconv
