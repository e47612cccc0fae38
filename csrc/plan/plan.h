// What the planner decides: which family computes a problem, with which variant and launch.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "plan/device.h"
#include "plan/payload.h"
#include "plan/problem.h"
#include "plan/work.h"

namespace customconv {

// The families in the order in which explain() prints them. kAten is not one of ours: it stands for
// PyTorch's own convolution.
enum class FamilyId : uint8_t {
#define CUSTOMCONV_FAMILY(name) name,
#include "plan/families.def"
#undef CUSTOMCONV_FAMILY
  kAten,
};

// What a launch takes.
struct LaunchShape {
  int64_t blocks = 0;    // of the main kernel
  int threads = 0;       // of a block; 0: nothing is launched
  int shared_bytes = 0;  // of a block
  int64_t workspace_bytes = 0;
};

struct ConvPlan : LaunchShape {
  FamilyId family = FamilyId::kAten;
  bool uses_blas = false;        // launch needs a cuBLAS handle
  bool fuses = false;            // its kernels do an epilogue too: of dgrad, the bias is one
  int64_t statistics_parts = 0;  // that they leave of y's statistics
  int64_t splits = 1;            // parts that a sum is cut into, added up in a fixed order
  WorkList works = {};           // what predicted_ms follows from
  double predicted_ms = 0;
  bool tuned = false;    // it was measured to be the fastest
  Payload payload = {};  // what the family decided
};

// What a search need not do: it may end with a plan of no more than `enough_ms`, and miss those of
// `most_ms` or more.
struct Wanted {
  double enough_ms = 0;
  double most_ms = std::numeric_limits<double>::infinity();
};

// A family: `can_implement` says why not, or nullptr; the others are called only where it can. All
// are asked about folded problems (plan/fold.h).
struct Family {
  const char* name;
  const char* (*can_implement)(const ConvProblem&, const DeviceProperties&);
  // The cheapest plan; a search may do no more than is wanted.
  ConvPlan (*propose)(const ConvProblem&, const DeviceProperties&, const Wanted&);
  // What the launcher takes for a plan, by the functions that it calls: what a plan of the problem
  // says, but where blocks take turns all of them. No threads where the problem has no such plan.
  LaunchShape (*shape)(const ConvProblem&, const DeviceProperties&, const ConvPlan&);
  // Every plan that `propose` weighs; null where that is one.
  std::vector<ConvPlan> (*variants)(const ConvProblem&, const DeviceProperties&) = nullptr;
  bool fuses = false;  // its kernels do the epilogue of fprop: scale, residual and activation
  // Plans of unsplit sums with the same number give the same bits, whatever N is; null where all
  // do.
  int64_t (*sum_order)(const ConvProblem&, const ConvPlan&) = nullptr;
  // Plans of all those orders, also where `propose` leaves them out for the problem's N; null where
  // `variants` has them.
  std::vector<ConvPlan> (*all_orders)(const ConvProblem&, const DeviceProperties&) = nullptr;
  // Parts of y's statistics that a plan's kernels leave, or 0; null where none do.
  int64_t (*statistics_parts)(const ConvProblem&, const ConvPlan&) = nullptr;
  // Whether the planner may choose its plans of a problem of volumes, folded if it can be, as they
  // are faster than PyTorch's; null where it computes none but folded ones, of which it may all.
  bool (*may_choose_volume)(const ConvProblem&) = nullptr;
};

struct Candidate {
  const char* family = "";
  bool possible = false;
  ConvPlan plan;       // meaningful where possible
  std::string reason;  // why it was not taken; empty for the one taken
};

}  // namespace customconv
