// Plans' names and fields, for Python.
#pragma once

#include <pybind11/pybind11.h>

#include "plan/name.h"

namespace customconv::bind {

// What a plan's family decided, by name: words as strings, flags, numbers and tuples of them.
pybind11::dict plan_fields(const PlanName& name);

void bind_names(pybind11::module_& m);

}  // namespace customconv::bind
