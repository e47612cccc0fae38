// What the price of a plan of grouped is counted from.
#pragma once

#include "kernels/grouped/geometry.h"
#include "plan/plan.h"
#include "plan/price.h"

namespace customconv::grouped {

// How often shared memory is asked for eight rows of an operand by boxes, once if all lie in banks
// of their own.
double count_conflicts(const Geometry& geometry, const Tile& tile);

// What a block of a weight gradient takes: clocks and waits of a tile, and clocks of its sums at
// the end. By boxes, these are the clocks of one instruction for each four sums.
struct GradientClocks {
  double tile, waits, sums;
};

// Counts the work of a problem's plans, which the problem, the device and the geometry outlive.
// `resident`: blocks that share a multiprocessor. `asked`: see count_conflicts.
class Counter {
 public:
  Counter(const ConvProblem& problem, const DeviceProperties& device, const Geometry& geometry)
      : p_(problem), d_(device), g_(geometry) {}

  WorkList count(const SlotsPlan& way, const Work& work, const ConvPlan& plan,
                 double resident) const;
  WorkList count(const BoxesPlan& way, const BoxWork& work, const ConvPlan& plan, double resident,
                 double asked) const;

  GradientClocks count_tile(const SlotGradientsPlan& way, const GradientWork& work) const;
  GradientClocks count_tile(const BoxGradientsPlan& way, const GradientBoxWork& work,
                            double asked) const;
  WorkList count(const SlotGradientsPlan& way, const GradientWork& work, const ConvPlan& plan,
                 double resident, const GradientClocks& clocks) const;
  WorkList count(const BoxGradientsPlan& way, const GradientBoxWork& work, const ConvPlan& plan,
                 double resident, const GradientClocks& clocks) const;

 private:
  customconv::Work work_of(PriceKind kind, int row, const ConvPlan& plan, double resident) const;
  double part_bytes() const;
  double bring(bool vectors) const;

  const ConvProblem& p_;
  const DeviceProperties& d_;
  const Geometry& g_;
  const int size_ = static_cast<int>(element_size(p_.dtype));
  const bool in_vectors_ = g_.in[1] == 1 && g_.C * size_ % kUnitBytes == 0;
  const bool out_vectors_ = g_.out[1] == 1 && g_.K * size_ % kUnitBytes == 0;
};

}  // namespace customconv::grouped
