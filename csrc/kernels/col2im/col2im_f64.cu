#include <stdexcept>

#include "kernels/launch.h"

namespace customconv::col2im {

template <>
void launch<double>(const ConvProblem&, const ConvPlan&, const Operands&, const LaunchContext&) {
  throw std::logic_error("customconv: col2im: float64 is never planned");
}

}  // namespace customconv::col2im
