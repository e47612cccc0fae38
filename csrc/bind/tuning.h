// What customconv.tuning needs of C++.
#pragma once

#include <pybind11/pybind11.h>

#include "plan/problem.h"

namespace customconv::bind {

// Every field of a problem by its name, in integers, strings and lists of integers; and back, with
// ValueError for fields that are missing, unknown or out of range.
pybind11::dict fields_of(const ConvProblem& problem);
ConvProblem problem_from(const pybind11::dict& fields);

void bind_tuning(pybind11::module_& m);

}  // namespace customconv::bind
