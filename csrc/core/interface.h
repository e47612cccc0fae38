// The functions of libcustomconv for libraries that are linked apart from it, and that perhaps
// another compiler built: C functions and plain structs. What is built for one version of PyTorch
// (csrc/torch) uses no others.
#pragma once

#include <type_traits>

#include "core/fallback.h"
#include "core/state.h"
#include "kernels/library.h"
#include "plan/decide.h"

namespace customconv {

static_assert(std::is_trivially_copyable_v<Asked> && std::is_trivially_copyable_v<Decision> &&
              std::is_trivially_copyable_v<DeviceProperties>);

extern "C" {

Switches* customconv_switches();
Counters* customconv_counters();
const char* customconv_fallback_text(Fallback);

// What the planner knows of a device; null where the driver does not tell it.
const DeviceProperties* customconv_device(int index);
// The kernels that a device runs; null where it runs none, and then why.
const KernelLibrary* customconv_kernels(int device);
const char* customconv_why_no_kernels(int device);
// Whether there is a cuBLAS to call; none unless this is said, before a device is asked for.
void customconv_use_blas(bool exists);

// `decide`, or of a thread that forces a plan (`force_plan`) a decision for that one, where an
// algorithm is asked for by name.
Failure customconv_decide(int device, const Asked*, bool records, Decision* to);
// The plan of that name among those of a problem in its settled precision.
Failure customconv_plan_named(int device, const ConvProblem*, const char* name, ConvPlan* to);
// Writes each problem and its plan once to stderr, where CUSTOMCONV_LOG=plan asks for that.
void customconv_log_plan(const ConvProblem*, const ConvPlan*);

}  // extern "C"

// For measuring variants: until it is taken back by null, every call of this thread that asks for
// an algorithm by name runs this plan, on operands as they are. The plan must be one of the call's
// own variants.
void force_plan(const ConvPlan* plan);

}  // namespace customconv
