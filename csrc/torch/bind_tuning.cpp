#include "torch/bind_tuning.h"

#include <pybind11/stl.h>
#include <torch/extension.h>

#include <utility>

#include "plan/cache.h"
#include "plan/decide.h"
#include "torch/aten.h"
#include "torch/names.h"

#ifdef CUSTOMCONV_WITH_CUDA
#include "torch/cuda/device.h"
#include "torch/cuda/run.h"
#endif

namespace py = pybind11;

namespace customconv::torch_layer {

namespace {

template <typename T>
struct Field {
  const char* name;
  T ConvProblem::* member;
  int64_t least;
};

constexpr Field<int64_t> kNumbers[] = {
    {"N", &ConvProblem::N, 1},
    {"C", &ConvProblem::C, 1},
    {"H", &ConvProblem::H, 1},
    {"W", &ConvProblem::W, 1},
    {"K", &ConvProblem::K, 1},
    {"R", &ConvProblem::R, 1},
    {"S", &ConvProblem::S, 1},
    {"P", &ConvProblem::P, 1},
    {"Q", &ConvProblem::Q, 1},
    {"groups", &ConvProblem::groups, 1},
    {"stride_h", &ConvProblem::stride_h, 1},
    {"stride_w", &ConvProblem::stride_w, 1},
    {"pad_h", &ConvProblem::pad_h, 0},
    {"pad_w", &ConvProblem::pad_w, 0},
    {"dilation_h", &ConvProblem::dilation_h, 1},
    {"dilation_w", &ConvProblem::dilation_w, 1},
};

constexpr Field<bool> kFlags[] = {
    {"tf32", &ConvProblem::tf32, 0},
    {"bias", &ConvProblem::has_bias, 0},
    {"residual", &ConvProblem::has_residual, 0},
    {"x_aligned", &ConvProblem::x_aligned, 0},
    {"w_aligned", &ConvProblem::w_aligned, 0},
    {"y_aligned", &ConvProblem::y_aligned, 0},
};

constexpr Field<Shape4> kStrides[] = {
    {"x_strides", &ConvProblem::x_strides, 0},
    {"w_strides", &ConvProblem::w_strides, 0},
    {"y_strides", &ConvProblem::y_strides, 0},
};

constexpr int64_t kMostPasses = 16;  // more than any epilogue has

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
  int64_t number(const char* name, int64_t least, int64_t most = int64_t{1} << 40) {
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
  for (const auto& field : kNumbers) fields[field.name] = p.*field.member;
  for (const auto& field : kFlags) fields[field.name] = p.*field.member;
  for (const auto& field : kStrides) {
    fields[field.name] = std::vector<int64_t>((p.*field.member).begin(), (p.*field.member).end());
  }
  fields["epilogue_passes"] = p.epilogue_passes;
  return fields;
}

ConvProblem problem_from(const py::dict& fields) {
  Reader reader(fields);
  ConvProblem p;
  p.pass = pass_named(reader.read<std::string>("op"));
  p.dtype = dtype_named(reader.read<std::string>("dtype"));
  for (const auto& field : kNumbers) p.*field.member = reader.number(field.name, field.least);
  for (const auto& field : kFlags) p.*field.member = reader.read<bool>(field.name);
  for (const auto& field : kStrides) {
    p.*field.member = reader.read<Shape4>(field.name);
    for (const int64_t stride : p.*field.member) {
      Reader::checked(field.name, stride, 0, int64_t{1} << 50);
    }
  }
  p.epilogue_passes = static_cast<int>(reader.number("epilogue_passes", 0, kMostPasses));
  reader.end();
  if (p.C % p.groups != 0 || p.K % p.groups != 0) {
    throw py::value_error("groups must divide C and K");
  }
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

  m.def("aten_pass", aten_pass, py::arg("problem"), py::arg("x"), py::arg("w"), py::arg("y"),
        py::arg("bias"), py::call_guard<py::gil_scoped_release>());
  py::class_<DeterministicCudnn>(m, "DeterministicCudnn").def(py::init<>());
#ifdef CUSTOMCONV_WITH_CUDA
  m.def(
      "device_properties",
      [](int device_index) {
        return device_properties(static_cast<c10::DeviceIndex>(device_index));
      },
      py::arg("device_index"));
  m.def("driver_version", driver_version);
  m.def("run_plan", run_plan, py::arg("problem"), py::arg("plan"), py::arg("x"), py::arg("w"),
        py::arg("y"), py::arg("bias"), py::arg("residual"),
        py::call_guard<py::gil_scoped_release>());
#endif
}

}  // namespace customconv::torch_layer
