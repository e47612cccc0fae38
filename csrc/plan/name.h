// The name of a plan: a line of text that no other plan of the problem has, and that can be read
// back. "tiled kernel=3-taps-x8 warps=4x1 tile=1x14x2 chunk=8": the family, the word of its kind
// where it has several, and the fields. Flags are left out where they do not hold, and numbers
// where they are what the kind has by default.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/fields.h"
#include "plan/plan.h"

namespace customconv {

struct PlanName {
  FamilyId family = FamilyId::kAten;
  Payload payload;
  int64_t splits = 1;
};
bool operator==(const PlanName& a, const PlanName& b);

PlanName name_of(const ConvPlan& plan);
// The name that a text is. Throws std::invalid_argument that says what is wrong with it: no such
// plan can exist, or it is not the text of its plan.
PlanName parse_name(const std::string& text);

std::string to_string(const PlanName& name);
// The name without splits and sizes: what plans have in common that differ in them alone.
std::string kind_of(const PlanName& name);
// What tells its kind from the family's others (kinds.def).
const std::string& word_of(const PlanName& name);
// The kernel, for people: that word, and the first field that has words.
std::string label_of(const PlanName& name);

struct Kind {
  FamilyId family;
  std::string word;  // see kinds.def
  Fields fields;
};
// In the order of PlanKind; the last is kNone, of plans without fields.
const std::vector<Kind>& kinds();
const Fields& fields_of(PlanKind kind);

}  // namespace customconv
