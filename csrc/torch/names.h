// Names that Python gives to the planner's terms.
#pragma once

#include <pybind11/pybind11.h>

#include <initializer_list>
#include <string>

#include "plan/planner.h"

namespace customconv::torch_layer {

// The value of that name; ValueError if there is none.
template <typename Enum>
Enum named(const std::string& name, std::initializer_list<Enum> values, const char* what) {
  for (const Enum value : values) {
    if (name == to_string(value)) return value;
  }
  throw pybind11::value_error(std::string("unknown ") + what + " '" + name + "'");
}

inline DType dtype_named(const std::string& name) {
  return named(name, {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16},
               "dtype");
}

inline Pass pass_named(const std::string& name) {
  return named(name, {Pass::kFprop, Pass::kDgrad, Pass::kWgrad}, "op");
}

inline FamilyId family_named(const std::string& name) {
  return named(name,
               {
#define CUSTOMCONV_FAMILY(name) FamilyId::name,
#include "plan/families.def"
#undef CUSTOMCONV_FAMILY
                   FamilyId::kAten},
               "family");
}

}  // namespace customconv::torch_layer
