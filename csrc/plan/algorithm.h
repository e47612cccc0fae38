// The names of families, and what a user asks for by them.
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

}  // namespace customconv
