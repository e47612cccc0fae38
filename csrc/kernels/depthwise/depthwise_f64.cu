#include <stdexcept>

#include "kernels/launch.h"

namespace customconv::depthwise {

template <>
void launch<double>(const ConvProblem&, const ConvPlan&, const Operands&, const LaunchContext&) {
  throw std::logic_error("customconv: depthwise: float64 is never planned");
}

}  // namespace customconv::depthwise
