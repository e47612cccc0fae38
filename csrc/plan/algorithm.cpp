#include "plan/algorithm.h"

#include <stdexcept>

namespace customconv {

namespace {

constexpr const char* kNames[] = {
#define CUSTOMCONV_FAMILY(name) #name,
#include "plan/families.def"
#undef CUSTOMCONV_FAMILY
};

}  // namespace

const char* to_string(FamilyId family) {
  return family == FamilyId::kAten ? "aten" : kNames[static_cast<size_t>(family)];
}

const char* to_string(Algorithm algorithm) {
  if (algorithm == Algorithm::kAuto) return "auto";
  if (algorithm == Algorithm::kAten) return "aten";
  return kNames[static_cast<size_t>(algorithm)];
}

Algorithm parse_algorithm(const std::string& name) {
  if (name == "auto") return Algorithm::kAuto;
  if (name == "aten") return Algorithm::kAten;
  std::string known;
  size_t i = 0;
  for (const char* family : kNames) {
    if (name == family) return static_cast<Algorithm>(i);
    known += std::string("'") + family + "', ";
    ++i;
  }
  throw std::invalid_argument("unknown algorithm '" + name + "': expected one of " + known +
                              "'auto', 'aten'");
}

}  // namespace customconv
