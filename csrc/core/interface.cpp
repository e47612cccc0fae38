#include "core/interface.h"

#include <optional>
#include <stdexcept>
#include <string>

#include "core/devices.h"
#include "core/failure.h"
#include "core/log.h"
#include "plan/cache.h"
#include "plan/name.h"

namespace customconv {

namespace {

thread_local std::optional<ConvPlan> forced;

// A plan by its name. Measuring asks for the same one again and again.
ConvPlan plan_named(int device, const ConvProblem& problem, const std::string& name) {
  struct Last {
    PlanKey key{};
    std::string name;
    ConvPlan plan;
  };
  thread_local Last last;
  const PlanKey key = key_of(device, problem);
  if (last.key == key && last.name == name) return last.plan;
  const PlanName wanted = parse_name(name);
  for (const ConvPlan& plan : variants(problem, properties_of(device))) {
    if (name_of(plan) == wanted) {
      last = {key, name, plan};
      return plan;
    }
  }
  throw std::invalid_argument("the problem has no plan '" + name + "'");
}

}  // namespace

void force_plan(const ConvPlan* plan) {
  forced = plan == nullptr ? std::nullopt : std::optional(*plan);
}

extern "C" {

Switches* customconv_switches() { return &switches(); }

Counters* customconv_counters() { return &counters(); }

const char* customconv_fallback_text(Fallback reason) { return to_string(reason); }

const DeviceProperties* customconv_device(int index) {
  const DeviceProperties* found = nullptr;
  guarded([&] { found = &properties_of(index); });
  return found;
}

const KernelLibrary* customconv_kernels(int device) {
  const KernelLibrary* found = nullptr;
  guarded([&] { found = kernels_of(device).library; });
  return found;
}

const char* customconv_why_no_kernels(int device) {
  const char* why = "";
  const Failure failure = guarded([&] { why = kernels_of(device).why_not.c_str(); });
  return failure == nullptr ? why : failure;
}

void customconv_use_blas(bool exists) { use_blas(exists); }

Failure customconv_decide(int device, const Asked* asked, bool records, Decision* to) {
  return guarded([&] {
    const DeviceProperties& properties = properties_of(device);
    if (forced && asked->algorithm != Algorithm::kAuto) {
      check_plan(asked->problem, *forced, properties);
      *to = {};
      to->problem = asked->problem;
      to->plan = *forced;
      return;
    }
    *to = *decide(device, *asked, properties, records);
  });
}

Failure customconv_plan_named(int device, const ConvProblem* problem, const char* name,
                              ConvPlan* to) {
  return guarded([&] { *to = plan_named(device, *problem, name); });
}

void customconv_log_plan(const ConvProblem* problem, const ConvPlan* plan) {
  log_plan(*problem, *plan);
}

}  // extern "C"

}  // namespace customconv
