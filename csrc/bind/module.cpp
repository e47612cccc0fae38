// customconv._bind: the planner, its switches and its counts, for Python. What needs tensors is in
// operators (csrc/torch).
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bind/names.h"
#include "bind/tuning.h"
#include "core/build.h"
#include "core/devices.h"
#include "core/interface.h"
#include "plan/price.h"
#include "plan/text.h"

namespace py = pybind11;

namespace customconv::bind {

namespace {

// The counts that are not zero: of calls by pass and family, of fallbacks by reason.
py::tuple stats(bool reset) {
  const auto read = [reset](Counters::Counter& counter) {
    return reset ? counter.exchange(0, std::memory_order_relaxed)
                 : counter.load(std::memory_order_relaxed);
  };
  py::dict calls, fallbacks;
  for (size_t pass = 0; pass < kPassCount; ++pass) {
    for (size_t family = 0; family < kFamilyCount; ++family) {
      const uint64_t n = read(counters().calls[pass][family]);
      if (n == 0) continue;
      calls[py::make_tuple(to_string(static_cast<Pass>(pass)),
                           to_string(static_cast<FamilyId>(family)))] = n;
    }
  }
  for (size_t reason = 0; reason < kFallbackCount; ++reason) {
    const uint64_t n = read(counters().fallbacks[reason]);
    if (n != 0) fallbacks[to_string(static_cast<Fallback>(reason))] = n;
  }
  return py::make_tuple(calls, fallbacks);
}

void begin(std::atomic<int64_t>& open) { open.fetch_add(1, std::memory_order_relaxed); }

// False, and nothing changes, where none is left to end.
bool end(std::atomic<int64_t>& open) {
  int64_t before = open.load(std::memory_order_relaxed);
  while (before > 0) {
    if (open.compare_exchange_weak(before, before - 1, std::memory_order_relaxed)) return true;
  }
  return false;
}

void bind_switches(py::module_& m) {
  m.def("begin_routing", [] { begin(switches().open_routings); });
  m.def("end_routing", [] { return end(switches().open_routings); });
  m.def("is_routing", [] { return switches().routes(); });
  // How it was set before, whatever contexts are open.
  m.def("set_batch_invariant", [](bool enabled) {
    return switches().batch_invariant.exchange(enabled, std::memory_order_relaxed);
  });
  m.def("begin_batch_invariance", [] { begin(switches().open_batch_invariances); });
  m.def("end_batch_invariance", [] { end(switches().open_batch_invariances); });
  m.def("is_batch_invariant", [] { return switches().wants_batch_invariance(); });
  m.def("stats", stats, py::arg("reset"));
}

void bind_devices(py::module_& m) {
  m.def("device_properties", properties_of, py::arg("device_index"));
  m.def("why_no_kernels", customconv_why_no_kernels, py::arg("device_index"));
  m.def("driver_version", driver_version);
  m.def("kernel_libraries", kernel_libraries);
  m.def("loaded_kernel_libraries", loaded_kernel_libraries);
  m.def("library_for", library_for, py::arg("major"), py::arg("minor"), py::arg("names"));
}

// What becomes of a call.
struct Explanation {
  ConvProblem problem;
  std::optional<ConvPlan> plan;  // none where ATen computes
  std::vector<Candidate> candidates;
  std::string fallback;            // why ATen computes; empty where a family does
  std::optional<TunedPlan> tuned;  // where the choice is tuning's
};

Explanation explain(int device, const ConvProblem& problem, bool channels_last,
                    const std::string& algorithm) {
  Explanation found;
  found.problem = problem;
  const DeviceProperties& properties = properties_of(device);
  const Asked asked{problem, channels_last ? Layout::kNhwc : Layout::kNchw,
                    parse_algorithm(algorithm)};
  const auto decided = decide(device, asked, properties, /*records=*/false);
  found.candidates = candidates(asked, *decided, properties);
  found.tuned = decided->tuned;
  if (decided->plan.family != FamilyId::kAten) {
    found.plan = decided->plan;
  } else {
    found.fallback = to_string(algorithm == "aten"        ? Fallback::kAsked
                               : decided->tuned           ? Fallback::kTuned
                               : !properties.has_prices() ? Fallback::kUnmeasured
                               : problem.is_deep()        ? Fallback::kSlower
                                                          : Fallback::kNoFamily);
  }
  return found;
}

// For each of a problem's two or three dimensions; a single number is for all of them.
using Numbers = std::vector<int64_t>;

// A problem in the layouts that the arguments name; sizes of the output follow from the rest. Sizes
// and numbers are in PyTorch's order: of depth first.
ConvProblem make_problem(const std::string& op, const std::string& dtype, const Numbers& input,
                         const Numbers& weight, Numbers stride, Numbers padding, Numbers dilation,
                         int64_t groups, bool channels_last, bool bias, bool tf32,
                         int epilogue_passes, bool residual, bool statistics,
                         bool batch_invariant) {
  ConvProblem p;
  p.pass = pass_named(op);
  p.dtype = dtype_named(dtype);
  p.tf32 = tf32;
  p.has_bias = bias;
  p.epilogue_passes = epilogue_passes;
  p.has_residual = residual;
  p.has_statistics = statistics;
  p.batch_invariant = batch_invariant;
  const size_t dims = input.size() - 2;
  if ((input.size() != 4 && input.size() != 5) || weight.size() != input.size()) {
    throw py::value_error("input and weight must both have four or five sizes");
  }
  for (Numbers* numbers : {&stride, &padding, &dilation}) {
    if (numbers->size() == 1) numbers->resize(dims, numbers->front());
    if (numbers->size() != dims) {
      throw py::value_error("stride, padding and dilation must have a number for each dimension");
    }
  }
  p.N = input[0];
  p.C = input[1];
  p.H = input[dims];
  p.W = input[dims + 1];
  p.K = weight[0];
  p.R = weight[dims];
  p.S = weight[dims + 1];
  p.groups = groups;
  p.stride_h = stride[dims - 2];
  p.stride_w = stride[dims - 1];
  p.pad_h = padding[dims - 2];
  p.pad_w = padding[dims - 1];
  p.dilation_h = dilation[dims - 2];
  p.dilation_w = dilation[dims - 1];
  if (dims == 3) {
    p.D = input[2];
    p.T = weight[2];
    p.stride_d = stride[0];
    p.pad_d = padding[0];
    p.dilation_d = dilation[0];
    p.O = output_size(p.D, p.pad_d, p.dilation_d, p.T, p.stride_d);
    if (!p.is_deep()) p.stride_d = p.dilation_d = 1;
  }
  if (p.C != weight[1] * groups || groups < 1 || p.K % groups != 0) {
    throw py::value_error("input channels must be weight.size(1) * groups");
  }
  p.P = output_size(p.H, p.pad_h, p.dilation_h, p.R, p.stride_h);
  p.Q = output_size(p.W, p.pad_w, p.dilation_w, p.S, p.stride_w);
  if (p.O < 1 || p.P < 1 || p.Q < 1)
    throw py::value_error("the kernel is larger than the padded input");
  const Layout layout = channels_last ? Layout::kNhwc : Layout::kNchw;
  p.x_strides = dense_strides(p.x_sizes(), layout);
  p.w_strides = dense_strides(p.w_sizes(), layout);
  p.y_strides = dense_strides(p.y_sizes(), layout);
  return p;
}

// Plans whose prices are computed again and again, with other tables, while a table is fitted.
class Workload {
 public:
  explicit Workload(const DeviceProperties& device) : device_(device) {}

  void add(const ConvPlan& plan) { plans_.push_back(plan.works); }

  // The rows of the table that each plan needs, and which numbers of them.
  using Needed = std::pair<int, std::vector<const char*>>;
  std::vector<std::vector<Needed>> rows() const {
    std::vector<std::vector<Needed>> all;
    for (const WorkList& works : plans_) {
      std::vector<Needed>& needed = all.emplace_back();
      for (const Work& work : works) {
        std::vector<const char*> own;
        if (work.busy > 0) own.push_back("rate");
        if (work.waits > 0) own.push_back("wait");
        if (work.bytes > 0) own.push_back("bandwidth");
        needed.emplace_back(work.row, own);
        if (work.store_row == kNoRow) continue;
        needed.emplace_back(work.store_row, std::vector<const char*>{"store", "wait"});
      }
    }
    return all;
  }

  // Milliseconds of these plans, numbered as they were added, with a table of (row, number).
  py::array_t<double> predict(const py::array_t<double>& numbers,
                              const py::array_t<int64_t>& which) const {
    const auto at = numbers.unchecked<2>();
    std::vector<Price> table;
    for (py::ssize_t i = 0; i < at.shape(0); ++i) {
      const auto number = [&](py::ssize_t column) { return static_cast<float>(at(i, column)); };
      table.push_back({number(0), number(1), number(2), number(3)});
    }
    const auto plan = which.unchecked<1>();
    py::array_t<double> all(plan.shape(0));
    auto ms = all.mutable_unchecked<1>();
    for (py::ssize_t i = 0; i < plan.shape(0); ++i) {
      ms(i) = price(plans_.at(static_cast<size_t>(plan(i))), device_, table.data());
    }
    return all;
  }

 private:
  DeviceProperties device_;
  std::vector<WorkList> plans_;
};

}  // namespace

PYBIND11_MODULE(_bind, m) {
  m.doc() = "The planner of customconv.";
  m.attr("build") = kBuild;
  bind_switches(m);
  bind_devices(m);

  py::class_<ConvProblem>(m, "ConvProblem")
      .def(py::init(&make_problem), py::kw_only(), py::arg("op") = "fprop",
           py::arg("dtype") = "float32", py::arg("input"), py::arg("weight"),
           py::arg("stride") = Numbers{1}, py::arg("padding") = Numbers{0},
           py::arg("dilation") = Numbers{1}, py::arg("groups") = 1,
           py::arg("channels_last") = false, py::arg("bias") = false, py::arg("tf32") = false,
           py::arg("epilogue_passes") = 0, py::arg("residual") = false,
           py::arg("statistics") = false, py::arg("batch_invariant") = false)
      .def_property_readonly("output",
                             [](const ConvProblem& p) {
                               return p.is_deep() ? py::make_tuple(p.N, p.K, p.O, p.P, p.Q)
                                                  : py::make_tuple(p.N, p.K, p.P, p.Q);
                             })
      .def_property_readonly("is_deep", &ConvProblem::is_deep)
      .def_property_readonly("macs", &ConvProblem::macs)
      .def_property_readonly("least_bytes", &ConvProblem::least_bytes)
      .def_property_readonly("batch_invariant", is_batch_invariant)
      .def_property_readonly("needs_wide_index",
                             [](const ConvProblem& p) { return needs_wide_index(p); })
      .def_property_readonly("fields", fields_of)
      .def_static("from_fields", problem_from, py::arg("fields"))
      .def_property_readonly("text", problem_text)
      .def_static("from_text", parse_problem, py::arg("text"))
      .def("__str__", [](const ConvProblem& p) { return to_string(p); });

  py::class_<DeviceProperties>(m, "DeviceProperties")
      .def(py::init([](std::array<int, 2> capability, int sm_count, double clock_ghz,
                       double bandwidth_gb_s, int64_t l2_bytes, int shared_bytes_block,
                       bool has_blas) {
             DeviceProperties d;
             d.capability_major = capability[0];
             d.capability_minor = capability[1];
             d.sm_count = sm_count;
             d.clock_ghz = clock_ghz;
             d.bandwidth_gb_s = bandwidth_gb_s;
             d.l2_bytes = l2_bytes;
             d.shared_bytes_block = shared_bytes_block;
             d.has_blas = has_blas;
             return d;
           }),
           py::kw_only(), py::arg("capability") = std::array<int, 2>{9, 0},
           py::arg("sm_count") = 132, py::arg("clock_ghz") = 1.98,
           py::arg("bandwidth_gb_s") = 3352.0, py::arg("l2_bytes") = int64_t{50} << 20,
           py::arg("shared_bytes_block") = 227 << 10, py::arg("has_blas") = true)
      .def_property_readonly("capability",
                             [](const DeviceProperties& d) {
                               return py::make_tuple(d.capability_major, d.capability_minor);
                             })
      .def_readonly("sm_count", &DeviceProperties::sm_count)
      .def_readonly("clock_ghz", &DeviceProperties::clock_ghz)
      .def_readonly("bandwidth_gb_s", &DeviceProperties::bandwidth_gb_s)
      .def_readonly("l2_bytes", &DeviceProperties::l2_bytes)
      .def_readonly("shared_bytes_block", &DeviceProperties::shared_bytes_block)
      .def_readonly("has_blas", &DeviceProperties::has_blas)
      .def("vector_flops",
           [](const DeviceProperties& d, const std::string& dtype) {
             return d.vector_flops(dtype_named(dtype));
           })
      .def("matrix_flops", [](const DeviceProperties& d, const std::string& dtype, bool tf32) {
        return d.matrix_flops(dtype_named(dtype), tf32);
      });

  py::class_<ConvPlan>(m, "ConvPlan")
      .def_property_readonly("family", [](const ConvPlan& p) { return to_string(p.family); })
      .def_property_readonly("name", [](const ConvPlan& p) { return to_string(name_of(p)); })
      .def_property_readonly("kind", [](const ConvPlan& p) { return kind_of(name_of(p)); })
      .def_property_readonly("fields", [](const ConvPlan& p) { return plan_fields(name_of(p)); })
      .def_property_readonly("word", [](const ConvPlan& p) { return word_of(name_of(p)); })
      .def_property_readonly("label", [](const ConvPlan& p) { return label_of(name_of(p)); })
      .def_readonly("blocks", &ConvPlan::blocks)
      .def_readonly("threads", &ConvPlan::threads)
      .def_readonly("shared_bytes", &ConvPlan::shared_bytes)
      .def_readonly("workspace_bytes", &ConvPlan::workspace_bytes)
      .def_readonly("fuses", &ConvPlan::fuses)
      .def_readonly("splits", &ConvPlan::splits)
      .def_readonly("predicted_ms", &ConvPlan::predicted_ms)
      .def_property_readonly("has_works", [](const ConvPlan& p) { return !p.works.empty(); })
      .def_readonly("tuned", &ConvPlan::tuned)
      .def("__str__", [](const ConvPlan& p) { return to_string(p); });

  py::class_<Candidate>(m, "Candidate")
      .def_readonly("family", &Candidate::family)
      .def_property_readonly("plan",
                             [](const Candidate& c) -> std::optional<ConvPlan> {
                               return c.possible ? std::optional(c.plan) : std::nullopt;
                             })
      .def_readonly("reason", &Candidate::reason);

  py::class_<Explanation>(m, "Explanation")
      .def_readonly("problem", &Explanation::problem)
      .def_readonly("plan", &Explanation::plan)
      .def_readonly("candidates", &Explanation::candidates)
      .def_readonly("fallback", &Explanation::fallback)
      .def_readonly("tuned", &Explanation::tuned);
  m.def("explain", explain, py::arg("device_index"), py::arg("problem"), py::arg("channels_last"),
        py::arg("algorithm"));
  m.def("refused", refused, py::arg("reason"));

  m.def(
      "plan",
      [](ConvProblem problem, const DeviceProperties& device, const std::string& algorithm,
         const std::optional<ConvProblem>& part_of) {
        if (!part_of) return plan(problem, device, parse_algorithm(algorithm));
        const ConvProblem& p = *part_of;
        const Image image{p.H, p.W, p.P, p.Q, p.pad_h, p.pad_w};
        return plan(problem, device, parse_algorithm(algorithm), /*prefer=*/false, &image);
      },
      py::arg("problem"), py::arg("device") = DeviceProperties(), py::arg("algorithm") = "auto",
      py::arg("part_of") = py::none());

  m.def("sum_order", sum_order, py::arg("problem"), py::arg("plan"));

  m.def(
      "launch_shape",
      [](const ConvProblem& problem, const ConvPlan& plan, const DeviceProperties& device) {
        const LaunchShape s = launch_shape(problem, plan, device);
        return py::make_tuple(s.blocks, s.threads, s.shared_bytes, s.workspace_bytes);
      },
      py::arg("problem"), py::arg("plan"), py::arg("device") = DeviceProperties());
  m.def("check_plan", check_plan, py::arg("problem"), py::arg("plan"),
        py::arg("device") = DeviceProperties());

  m.def(
      "leaves_no_doubt",
      [](const ConvProblem& problem, const DeviceProperties& device) -> std::optional<std::string> {
        const FamilyId family = leaves_no_doubt(problem, device);
        if (family == FamilyId::kAten) return std::nullopt;
        return to_string(family);
      },
      py::arg("problem"), py::arg("device"));

  m.def("computes_in_tf32", computes_in_tf32, py::arg("problem"),
        py::arg("device") = DeviceProperties());

  m.def("plans", variants, py::arg("problem"), py::arg("device") = DeviceProperties());

  m.def("price_rows", price_rows);
  py::class_<Workload>(m, "Workload")
      .def(py::init<DeviceProperties>(), py::arg("device") = DeviceProperties())
      .def("add", &Workload::add)
      .def("rows", &Workload::rows)
      .def("predict", &Workload::predict);

  m.def("force_plan", force_plan, py::arg("plan"));

  bind_names(m);
  bind_tuning(m);
}

}  // namespace customconv::bind
