#include "bind/tuning.h"

#include <pybind11/stl.h>

#include <utility>

#include "plan/cache.h"
#include "plan/decide.h"
#include "plan/text.h"

namespace py = pybind11;

namespace customconv::bind {

namespace {

// One field after the other, so that none is left over unseen.
class Reader {
 public:
  explicit Reader(const py::dict& fields) : fields_(fields) {}

  template <typename T>
  T read(const char* name) {
    ++count_;
    if (!fields_.contains(name)) throw py::value_error(std::string("it has no ") + name);
    try {
      // pybind11 takes None for false, too.
      if (fields_[name].is_none()) throw py::cast_error();
      return fields_[name].cast<T>();
    } catch (const py::cast_error&) {
      throw py::value_error(std::string(name) + " has another type than expected");
    }
  }
  int64_t number(const char* name, int64_t least, int64_t most) {
    return checked(name, read<int64_t>(name), least, most);
  }
  static int64_t checked(const char* name, int64_t value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return value;
    throw py::value_error(std::string(name) + " is out of range: " + std::to_string(value));
  }
  void end() const {
    if (count_ != fields_.size()) throw py::value_error("it has fields that are unknown");
  }

 private:
  const py::dict& fields_;
  size_t count_ = 0;
};

std::pair<ConvProblem, std::vector<ConvPlan>> settled_and_plans(ConvProblem problem,
                                                                const DeviceProperties& device) {
  std::vector<ConvPlan> plans = tunable(problem, device);
  return {problem, std::move(plans)};
}

// Operands are copied in the layout that most tensors have, if nothing else is said.
Asked asked_of(const ConvProblem& problem, std::optional<bool> channels_last,
               const std::string& algorithm, bool prefer) {
  const auto count = [&problem](Layout layout) {
    return strides_match(problem.x_sizes(), problem.x_strides, layout) +
           strides_match(problem.w_sizes(), problem.w_strides, layout) +
           strides_match(problem.y_sizes(), problem.y_strides, layout);
  };
  const bool last = channels_last.value_or(count(Layout::kNhwc) > count(Layout::kNchw));
  return {problem, last ? Layout::kNhwc : Layout::kNchw, parse_algorithm(algorithm), prefer};
}

void check_device_index(int device_index) {
  if (device_index < 0) throw py::value_error("a device's index is not negative");
}

}  // namespace

py::dict fields_of(const ConvProblem& p) {
  py::dict fields;
  fields["op"] = to_string(p.pass);
  fields["dtype"] = to_string(p.dtype);
  for (const auto& field : kProblemNumbers) fields[field.name] = p.*field.member;
  if (p.is_deep()) {
    for (const auto& field : kDepthNumbers) fields[field.name] = p.*field.member;
  }
  for (const auto& field : kProblemFlags) fields[field.name] = p.*field.member;
  for (const auto& field : kProblemStrides) {
    fields[field.name] = listed_strides(p, p.*field.member);
  }
  fields[kEpiloguePasses.name] = p.*kEpiloguePasses.member;
  return fields;
}

ConvProblem problem_from(const py::dict& fields) {
  Reader reader(fields);
  ConvProblem p;
  p.pass = pass_named(reader.read<std::string>("op"));
  p.dtype = dtype_named(reader.read<std::string>("dtype"));
  for (const auto& f : kProblemNumbers) p.*f.member = reader.number(f.name, f.least, f.most);
  const bool deep = fields.contains("D");
  if (deep) {
    for (const auto& f : kDepthNumbers) p.*f.member = reader.number(f.name, f.least, f.most);
  }
  for (const auto& f : kProblemFlags) p.*f.member = reader.read<bool>(f.name);
  for (const auto& f : kProblemStrides) {
    const auto strides = reader.read<std::vector<int64_t>>(f.name);
    if (strides.size() != (deep ? 5 : 4)) {
      throw py::value_error(std::string(f.name) + " has another type than expected");
    }
    for (size_t i = 0; i < strides.size(); ++i) {
      (p.*f.member)[i] = Reader::checked(f.name, strides[i], f.least, f.most);
    }
  }
  p.epilogue_passes = static_cast<int>(
      reader.number(kEpiloguePasses.name, kEpiloguePasses.least, kEpiloguePasses.most));
  reader.end();
  check_fields(p, deep);
  return p;
}

void bind_tuning(py::module_& m) {
  py::class_<TunedPlan>(m, "TunedPlan")
      .def(py::init([](const std::string& name, double ms, double pytorch_ms) {
             return TunedPlan{parse_name(name), ms, pytorch_ms};
           }),
           py::arg("name"), py::arg("ms") = 0.0, py::arg("pytorch_ms") = 0.0)
      .def_property_readonly("name", [](const TunedPlan& p) { return to_string(p.name); })
      .def_property_readonly("family", [](const TunedPlan& p) { return to_string(p.name.family); })
      .def_readonly("ms", &TunedPlan::ms)
      .def_readonly("pytorch_ms", &TunedPlan::pytorch_ms);

  m.def("tunable", settled_and_plans, py::arg("problem"), py::arg("device") = DeviceProperties());
  m.def(
      "set_tuned_plan",
      [](int device_index, const ConvProblem& problem, const TunedPlan& plan) {
        check_device_index(device_index);
        set_tuned_plan({device_index, problem, plan});
      },
      py::arg("device_index"), py::arg("problem"), py::arg("plan"));
  m.def("tuned_plans", [] {
    std::vector<std::tuple<int, ConvProblem, TunedPlan>> listed;
    for (const TunedProblem& tuned : tuned_plans()) {
      listed.emplace_back(tuned.device_index, tuned.problem, tuned.plan);
    }
    return listed;
  });
  m.def("clear_tuned_plans", clear_tuned_plans);
  m.def("begin_recording", begin_recording);
  m.def("end_recording", end_recording);
  py::class_<Decision, std::shared_ptr<Decision>>(m, "Decision")
      .def_readonly("problem", &Decision::problem)
      .def_readonly("plan", &Decision::plan)
      .def_property_readonly("copies",
                             [](const Decision& d) {
                               return std::string(d.copies.x ? "x" : "") + (d.copies.w ? "w" : "") +
                                      (d.copies.y ? "y" : "");
                             })
      .def_readonly("tuned", &Decision::tuned)
      .def_readonly("dropped", &Decision::dropped);

  m.def(
      "decide",
      [](int device_index, const ConvProblem& problem, const DeviceProperties& device,
         std::optional<bool> channels_last, const std::string& algorithm, bool prefer) {
        check_device_index(device_index);
        return *decide(device_index, asked_of(problem, channels_last, algorithm, prefer), device,
                       /*records=*/true);
      },
      py::arg("device_index"), py::arg("problem"), py::arg("device") = DeviceProperties(),
      py::kw_only(), py::arg("channels_last") = std::nullopt, py::arg("algorithm") = "auto",
      py::arg("prefer") = false, py::call_guard<py::gil_scoped_release>());
  m.def("lookups", [] { return decisions().lookups(); });
  // The problems of no device are not tuned.
  m.def(
      "candidates",
      [](const ConvProblem& problem, const DeviceProperties& device, const std::string& algorithm,
         std::optional<bool> channels_last, int device_index) {
        const Asked asked = asked_of(problem, channels_last, algorithm, /*prefer=*/false);
        return candidates(asked, decide_anew(device_index, asked, device), device);
      },
      py::arg("problem"), py::arg("device") = DeviceProperties(), py::arg("algorithm") = "auto",
      py::kw_only(), py::arg("channels_last") = std::nullopt, py::arg("device_index") = -1);

  py::class_<PlanCache>(m, "PlanCache")
      .def(py::init<size_t>(), py::arg("capacity"))
      .def(
          "find",
          [](PlanCache& cache, int device_index,
             const ConvProblem& problem) -> std::optional<ConvPlan> {
            const auto found = cache.find(key_of(device_index, problem));
            return found ? std::optional(found->plan) : std::nullopt;
          },
          py::arg("device_index"), py::arg("problem"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("generation", &PlanCache::generation)
      .def_property_readonly("lookups", &PlanCache::lookups)
      .def(
          "insert",
          [](PlanCache& cache, int device_index, const ConvProblem& problem, const ConvPlan& plan,
             uint64_t generation) {
            auto decision = std::make_shared<Decision>();
            decision->plan = plan;
            cache.insert(key_of(device_index, problem), std::move(decision), generation);
          },
          py::arg("device_index"), py::arg("problem"), py::arg("plan"), py::arg("generation"),
          py::call_guard<py::gil_scoped_release>())
      .def("clear", &PlanCache::clear)
      .def("__len__", &PlanCache::size);
}

}  // namespace customconv::bind
