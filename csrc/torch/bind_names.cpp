#include "torch/bind_names.h"

#include <pybind11/stl.h>

#include <map>
#include <string>
#include <vector>

#include "plan/planner.h"

namespace py = pybind11;

namespace customconv::torch_layer {

namespace {

py::object value_of(const Field& field, const std::vector<int64_t>& numbers) {
  if (field.is_flag) return py::bool_(numbers[0] != 0);
  if (!field.words.empty()) return py::str(field.words[numbers[0]]);
  if (field.count == 1) return py::int_(numbers[0]);
  py::tuple all(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) all[i] = numbers[i];
  return all;
}

// The fields of all plans, and the words that each can be; none where it has numbers or is a flag.
std::map<std::string, std::map<std::string, std::vector<std::string>>> plan_words() {
  std::map<std::string, std::map<std::string, std::vector<std::string>>> all;
  for (const Kind& kind : kinds()) {
    std::string name = to_string(kind.family);
    if (!kind.word.empty()) name += ' ' + kind.word;
    for (const Field& field : kind.fields.list) all[name][field.name] = field.words;
  }
  return all;
}

}  // namespace

py::dict plan_fields(const PlanName& name) {
  py::dict fields;
  for (const Field& field : fields_of(name.payload.kind()).list) {
    fields[field.name] = value_of(field, field.read(name.payload));
  }
  return fields;
}

void bind_names(py::module_& m) {
  py::class_<PlanName>(m, "PlanName")
      .def(py::init(&parse_name), py::arg("text"))
      .def_property_readonly("family", [](const PlanName& n) { return to_string(n.family); })
      .def_property_readonly("kind", &kind_of)
      .def_property_readonly("fields", &plan_fields)
      .def_readonly("splits", &PlanName::splits)
      .def("__str__", py::overload_cast<const PlanName&>(&to_string));
  m.def("plan_words", plan_words);
}

}  // namespace customconv::torch_layer
