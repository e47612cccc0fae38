// The planner: a pure function of the problem and the device.
#pragma once

#include <string>
#include <vector>

#include "plan/algorithm.h"
#include "plan/plan.h"

namespace customconv {

// Whether plans may be of a batch that is not the problem's: the sums of a weight gradient run over
// the batch, so that it has no such plans.
bool is_batch_invariant(const ConvProblem& problem);

// The batch that batch-invariant plans are chosen for: kReferenceBatch images, fewer of huge ones.
constexpr int64_t kReferenceBatch = 16;
int64_t reference_batch(const ConvProblem& problem);

// The sizes of whole images, where a batch-invariant problem computes a part of each of them. It is
// planned for the images, so that a part gets the bits that it has in them.
struct Image {
  int64_t H, W, P, Q;
  int64_t pad_h, pad_w;
};

// Whether the planner itself chooses to round a float32 problem that may be rounded to TF32. Two
// views of the same numbers must not give results that differ by that rounding. So not strides and
// alignment decide, but dense tensors of the same sizes: how much faster or slower rounding is, in
// the geometric mean of both layouts. For a batch-invariant problem, N does not decide either.
bool computes_in_tf32(const ConvProblem& problem, const DeviceProperties& device);

// The plan with the least predicted time, and in `problem.tf32` the precision that it is for; kAten
// where no family can; a problem that is to be rounded to TF32 must be of dense, aligned tensors. A
// forced family that cannot compute the problem throws std::runtime_error with its reason, unless
// `prefer` is set: then the planner chooses. Where the device has no prices, the planner chooses
// what `leaves_no_doubt`. Allocates nothing, unless the problem is batch invariant.
//
// A batch-invariant problem must be of dense, aligned tensors in one layout; their strides become
// those of that layout, also where a size is one. It gets a plan of ours on any device:
// std::runtime_error says why there is none. If it is a part of an `image`, kAten says that no plan
// of the part adds up sums in the order that the image's plan has.
ConvPlan plan(ConvProblem& problem, const DeviceProperties& device,
              Algorithm algorithm = Algorithm::kAuto, bool prefer = false,
              const Image* image = nullptr);

// In which order a plan adds the terms of a sum; see Family.
int64_t sum_order(const ConvProblem& problem, const ConvPlan& plan);

// What the launcher takes for a plan of ours; no threads where the problem has no such plan.
LaunchShape launch_shape(const ConvProblem& problem, const ConvPlan& plan,
                         const DeviceProperties& device);
// Throws std::invalid_argument where a plan is of another problem.
void check_plan(const ConvProblem& problem, const ConvPlan& plan, const DeviceProperties& device);

// The family whose kernels are faster than PyTorch's on any GPU, also one that has no prices; kAten
// where there is a doubt.
FamilyId leaves_no_doubt(const ConvProblem& problem, const DeviceProperties& device);

// Leaves a family's plan in `plan`, or returns why it has none.
const char* propose(FamilyId family, const ConvProblem& problem, const DeviceProperties& device,
                    ConvPlan& plan);
// Whether a family rounds float32 operands to TF32, in some of the problems that allow it.
bool may_round_to_tf32(FamilyId family);
// Whether the planner may choose a family's plan of a problem. Of volumes, it chooses what is
// faster than PyTorch's kernels; without one, they are left to PyTorch though `direct` computes
// them all.
bool may_choose(FamilyId family, const ConvProblem& problem);
// Whether a family computes a problem in the precision that was settled on, or a higher one.
bool keeps_precision(FamilyId family, const ConvProblem& settled);

// Every plan of every family that can: what the planner chooses from.
std::vector<ConvPlan> variants(const ConvProblem& problem, const DeviceProperties& device);

// Those of them in the precision that the planner settles on, and in `problem.tf32` that precision.
// The one that it would take comes first, though a family may list plans below its time that it
// does not propose; the predicted times of the others ascend.
std::vector<ConvPlan> tunable(ConvProblem& problem, const DeviceProperties& device);

std::string format_ms(double ms);
std::string to_string(const ConvPlan& plan);

}  // namespace customconv
