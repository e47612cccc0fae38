// What becomes of a call: who computes it, by which plan, in which precision, and which operands
// are copied first. Whatever computes or explains a call asks here, once for each of its passes.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "plan/planner.h"
#include "plan/tuned.h"

namespace customconv {

struct Asked {
  ConvProblem problem;            // as the tensors lie; its tf32 says what is allowed
  Layout layout = Layout::kNchw;  // of operands that are copied
  Algorithm algorithm = Algorithm::kAuto;
  bool prefer = false;              // see `plan`
  std::optional<Image> image = {};  // of which a batch-invariant problem is a part
};

// Operands that are made dense and aligned, because they are not.
struct Copies {
  bool x = false, w = false, y = false;
  bool any() const { return x || w || y; }
};

struct Decision {
  ConvProblem problem;  // as it is run: after the copies, in the plan's precision
  ConvPlan plan;
  Copies copies;
  std::optional<TunedPlan> tuned;  // of which the plan is
  bool dropped = false;            // a tuned plan, just now
};

// Operands are copied where they are rounded to TF32 or batches are invariant: then not only the
// precision but each bit follows from the numbers, and not from their strides or, of an image, from
// its place in a batch. A family that is asked for by name and never rounds takes them as they are.
//
// The plan is the tuned one of the problem after the copies, else what `plan` gives, whose errors
// it throws. A tuned plan that the planner does not list is dropped.
Decision decide_anew(int device_index, const Asked& asked, const DeviceProperties& device);

// The same from the cache of decisions, if it is there. While a recording is on, `records` keeps
// the problem to be tuned: not one with statistics, nor a batch-invariant one, whose plan is for
// all batches.
std::shared_ptr<const Decision> decide(int device_index, const Asked& asked,
                                       const DeviceProperties& device, bool records);

// Every family with the plan that it would have if it were asked for by name, or why it has none,
// and why it is not the one that was decided for.
std::vector<Candidate> candidates(const Asked& asked, const Decision& decision,
                                  const DeviceProperties& device);
// Every family, refused for one and the same reason, and ATen, taken.
std::vector<Candidate> refused(const std::string& reason);

}  // namespace customconv
