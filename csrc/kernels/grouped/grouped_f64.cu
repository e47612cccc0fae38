#include <stdexcept>

#include "kernels/launch.h"

namespace customconv::grouped {

template <>
void launch<double>(const ConvProblem&, const ConvPlan&, const Operands&, const LaunchContext&) {
  throw std::logic_error("customconv: grouped: float64 is never planned");
}

}  // namespace customconv::grouped
