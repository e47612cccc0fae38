#include "bind/names.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/implicit_gemm/sm90/tile.h"
#include "plan/planner.h"

namespace py = pybind11;

namespace customconv::bind {

namespace {

py::object value_of(const Field& field, const std::vector<int64_t>& numbers) {
  if (field.is_flag) return py::bool_(numbers[0] != 0);
  if (!field.words.empty()) return py::str(field.words[numbers[0]]);
  if (field.count == 1) return py::int_(numbers[0]);
  py::tuple all(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) all[i] = numbers[i];
  return all;
}

// The fields of all plans in their order, and the words that each can be; none where it has numbers
// or is a flag.
py::dict plan_words() {
  py::dict all;
  for (const Kind& kind : kinds()) {
    if (kind.family == FamilyId::kAten) continue;
    py::dict words;
    for (const Field& field : kind.fields.list) words[field.name] = field.words;
    all[py::make_tuple(to_string(kind.family), kind.word)] = words;
  }
  return all;
}

// The words of the loader and the tile of each kernel of implicit_gemm's main loop for Hopper.
std::vector<std::pair<std::string, std::string>> main_loop_tiles() {
  namespace sm90 = implicit_gemm::sm90;
  const std::vector<Field>& fields = fields_of(PlanKind::implicit_gemm_main_loop).list;
  const auto words = std::find_if(fields.begin(), fields.end(), [](const Field& field) {
                       return std::string("tile") == field.name;
                     })->words;
  std::vector<std::pair<std::string, std::string>> tiles;
  for (int loader = 0; loader < sm90::kLoaderCount; ++loader) {
    for (int tile = 0; tile < sm90::kTileShapeCount; ++tile) {
      const auto own = static_cast<sm90::Loader>(loader);
      const sm90::TileShape& shape = sm90::kTileShapes[tile];
      if (!sm90::has_tile(own, shape) && !sm90::has_clusters(own, shape)) continue;
      tiles.emplace_back(sm90::kLoaderNames[loader], words[tile]);
    }
  }
  return tiles;
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
  m.def("main_loop_tiles", main_loop_tiles);
}

}  // namespace customconv::bind
